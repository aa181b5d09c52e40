"""A batch of images, and mixup and cutmix: each with a part of another one, and of its class."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class ImageBatch:
    """Images of one size and their classes.

    Args:
        ids: [B] int64, numbers of the images in their set.
        images: [B, 3, size, size], normalised.
        labels: [B] int64.
        other_labels: [B] int64, classes of the images that they are mixed with, if they are.
        share: weight of ``labels``; the rest is that of ``other_labels``.
    """

    ids: Tensor
    images: Tensor
    labels: Tensor
    other_labels: Tensor | None = None
    share: float = 1.0

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
        others = None if self.other_labels is None else move(self.other_labels)
        return replace(
            self, images=move(self.images), labels=move(self.labels), other_labels=others
        )


def mixed(
    batch: ImageBatch, mixup: float, cutmix: float, generator: np.random.Generator
) -> ImageBatch:
    """Return a batch whose images are mixed with those of the batch in reversed order.

    With both, one of them is chosen with equal probability. The share of the own image is the
    same for the whole batch.

    Args:
        batch: of images and their classes.
        mixup: a of the distribution Beta(a, a) of the share in a weighted mean; 0: no mixup.
        cutmix: a of the distribution of the share of pixels that stay, the others being a box of
            the other image; 0: no cutmix.
        generator: of this batch in this epoch.

    Reference: Zhang et al. 2018, "mixup: Beyond empirical risk minimization"; Yun et al. 2019,
    "CutMix", algorithm in appendix A.

    Example:
        >>> images = torch.stack([torch.zeros(3, 4, 4), torch.ones(3, 4, 4)])
        >>> batch = ImageBatch(torch.arange(2), images, torch.tensor([5, 6]))
        >>> found = mixed(batch, 1.0, 0.0, np.random.default_rng(1))
        >>> found.other_labels.tolist(), abs(round(float(found.images[1].mean()) - found.share, 6))
        ([6, 5], 0.0)
    """
    uses_cutmix = cutmix > 0 and (mixup == 0 or generator.random() < 0.5)
    alpha = cutmix if uses_cutmix else mixup
    share = float(generator.beta(alpha, alpha))
    others = batch.images.flip(0)
    if uses_cutmix:
        height, width = batch.images.shape[2:]
        box, share = _box(height, width, share, generator)
        images = batch.images.clone()
        images[:, :, box[0], box[1]] = others[:, :, box[0], box[1]]
    else:
        images = torch.lerp(others, batch.images, share)
    return replace(batch, images=images, other_labels=batch.labels.flip(0), share=share)


def _box(
    height: int, width: int, share: float, generator: np.random.Generator
) -> tuple[tuple[slice, slice], float]:
    """Return rows and columns of a box with its centre anywhere, and the share outside of it.

    Its sides are those of the image times the root of 1 - ``share``; what lies outside of the image
    is lost, so that the share grows.
    """
    sides = []
    for size in (height, width):
        length = int(size * (1 - share) ** 0.5)
        start = int(generator.integers(size)) - length // 2
        sides.append(slice(max(0, start), min(size, start + length)))
    rows, columns = sides
    area = (rows.stop - rows.start) * (columns.stop - columns.start)
    return (rows, columns), 1 - area / (height * width)
