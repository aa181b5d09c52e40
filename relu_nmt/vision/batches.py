"""Batches of images, planned by the same sampler as those of sentences."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from relu_nmt.config.shared import BatchLimits
from relu_nmt.data.batches import plan_batches
from relu_nmt.vision.augmentation import ImageTransform, sample_generator
from relu_nmt.vision.images import ImageSet


@dataclass(frozen=True)
class ImageBatch:
    """Images of one size and their classes.

    Args:
        ids: [B] int64, numbers of the images in their set.
        images: [B, 3, size, size], normalised.
        labels: [B] int64.
    """

    ids: Tensor
    images: Tensor
    labels: Tensor

    @property
    def num_sentences(self) -> int:
        """The number of images; the trainer's log calls samples sentences."""
        return self.labels.size(0)

    @property
    def num_tokens(self) -> int:
        """The number of images, so that the log's ``wps`` counts images a second."""
        return self.labels.size(0)

    def to(self, device: torch.device | str) -> "ImageBatch":
        """Return the batch on ``device``; from pinned memory the copy does not block."""
        return self._with(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "ImageBatch":
        """Return the batch in page-locked memory, from which a GPU copies faster."""
        return self._with(Tensor.pin_memory)

    def _with(self, move: Callable[[Tensor], Tensor]) -> "ImageBatch":
        return replace(self, images=move(self.images), labels=move(self.labels))


class ImageBatches:
    """The batches of a set of images, epoch by epoch, each loaded by its number.

    Args:
        images: the images.
        transform: makes them squares of numbers.
        batch_size: images of a batch; the last one of an epoch may have fewer.
        seed: shuffles and augments anew each epoch; None keeps the order and takes the middle of
            each image (validation).
    """

    def __init__(
        self, images: ImageSet, transform: ImageTransform, batch_size: int, seed: int | None = None
    ) -> None:
        self.images = images
        self._transform = transform
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = 0
        self._plan: list[np.ndarray] | None = None

    @property
    def num_batches(self) -> int:
        """The number of batches of every epoch."""
        return -(-len(self.images) // self._batch_size)

    def begin_epoch(self, epoch: int) -> int:
        """Plan ``epoch`` (from 1) and return its number of batches."""
        self._epoch = epoch
        if self._plan is None or self._seed is not None:
            shuffle_seed = None if self._seed is None else (self._seed, epoch)
            sizes = np.ones(len(self.images), dtype=np.int64)
            limits = BatchLimits(max_sentences=self._batch_size)
            self._plan = plan_batches(sizes, None, limits, shuffle_seed)
        return len(self._plan)

    def load(self, index: int) -> ImageBatch:
        """Read batch ``index`` of the planned epoch.

        Raises:
            DataError: an image cannot be decoded.
        """
        assert self._plan is not None, "begin_epoch comes first"
        numbers = self._plan[index]
        pixels = np.stack([self._view(int(number)) for number in numbers])
        return ImageBatch(
            torch.from_numpy(numbers.copy()),
            torch.from_numpy(pixels),
            torch.from_numpy(self.images.labels[numbers]),
        )

    def _view(self, number: int) -> np.ndarray:
        image = self.images.read(number)
        if self._seed is None:
            return self._transform.evaluation(image)
        return self._transform.training(image, sample_generator(self._seed, self._epoch, number))
