"""The image classifier of a checkpoint, and the metadata and weights that checkpoints store."""

import itertools
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from relu_nmt.attention.kernels import set_attention_backend
from relu_nmt.config import from_dict, to_dict
from relu_nmt.errors import CheckpointError, ConfigError, DataError
from relu_nmt.training.checkpoint import Checkpoint, load_checkpoint, load_weights
from relu_nmt.vision.base import (
    VisionModel,
    VisionOutput,
    build_vision_model,
    grid_of,
    resize_positions,
)
from relu_nmt.vision.batches import ImageTransform
from relu_nmt.vision.config import VisionTransformerConfig
from relu_nmt.vision.image_files import composed, read_image, to_rgb
from relu_nmt.vision.swin import fit_position_biases
from relu_nmt.vision.training_config import CROSS_ENTROPY, PreprocessingConfig
from relu_nmt.vision.vision_transformer import VisionTransformer

if TYPE_CHECKING:
    from PIL.Image import Image

TASK_NAME = "image_classification"
BATCH_SIZE = 32


def describe_task(
    classes: Sequence[str], preprocessing: PreprocessingConfig, criterion: str = CROSS_ENTROPY
) -> dict[str, Any]:
    """Return the metadata of data and loss that a checkpoint stores as JSON."""
    return {
        "name": TASK_NAME,
        "classes": list(classes),
        "preprocessing": to_dict(preprocessing),
        "criterion": criterion,
    }


def classes_of(metadata: Mapping[str, Any], path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the classes of the checkpoint at ``path`` with these metadata.

    Raises:
        CheckpointError: it is not the checkpoint of an image classifier.
    """
    task = metadata.get("task")
    if not isinstance(task, dict) or task.get("name") != TASK_NAME:
        raise CheckpointError(f"{path}: not the checkpoint of an image classifier")
    return tuple(task["classes"])


def start_weights(
    model: VisionModel, checkpoint: Checkpoint, classes: Sequence[str]
) -> tuple[Mapping[str, Tensor], list[str]]:
    """Return the weights of another image classifier as initial weights of this one.

    If the classes differ, the head keeps its new weights. Learned positions of another image size
    and position biases of other windows are interpolated.

    Args:
        model: the new model.
        checkpoint: of the other model.
        classes: of the new model.

    Returns:
        the weights, and notes on the changes for the log.
    """
    own, start, notes = model.state_dict(), dict(checkpoint.model_tensors), []
    # Keep the new head for other classes.
    others = checkpoint.metadata["task"]["classes"]
    if [composed(name) for name in classes] != [composed(name) for name in others]:
        start |= {name: own[name] for name in own if name.startswith("head.")}
        notes.append(f"the head for {len(classes):,} other classes starts anew")
    # Fit the positions to the new image size.
    config = from_dict(VisionTransformerConfig, checkpoint.metadata["model_config"])
    grids = [grid_of(each.image_sides, each.patch_sides) for each in (config, model.config)]
    if "positions" in start and isinstance(model, VisionTransformer) and grids[0] != grids[1]:
        start["positions"] = resize_positions(start["positions"], *grids)
        notes.append(
            f"positions of {config.shown_size} pixels are interpolated to those of "
            f"{model.config.shown_size}"
        )
    return start, notes + fit_position_biases(start, own)


class ImageClassifier:
    """A trained model, ready to classify pictures of any size.

    Args:
        model: the model; it is put into evaluation mode.
        classes: names of its C classes.
        transform: maps a picture to the input of the model.
        device: a GPU by default, if there is one.
        dtype: ``torch.float16`` or ``torch.bfloat16`` to compute in; float32 by default.
        criterion: the loss of the training; with ``sigmoid_cross_entropy`` each class has an
            independent probability, so they need not sum to 1.

    Example:
        >>> from PIL import Image
        >>> config = VisionTransformerConfig(image_size=8, patch_size=4, layers=1)
        >>> transform = ImageTransform(PreprocessingConfig(), config.image_size)
        >>> classifier = ImageClassifier(build_vision_model(config, 2), ("cat", "dog"), transform)
        >>> [found] = classifier.classify([Image.new("RGB", (50, 40))])
        >>> sorted(found), round(sum(found.values()), 4)
        (['cat', 'dog'], 1.0)
    """

    def __init__(
        self,
        model: VisionModel,
        classes: Sequence[str],
        transform: ImageTransform,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        criterion: str = CROSS_ENTROPY,
    ) -> None:
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        self.dtype = None if dtype == torch.float32 else dtype
        self.model = model.to(self.device).eval()
        self.classes = tuple(classes)
        self.transform = transform
        self.criterion = criterion

    @classmethod
    def from_checkpoint(
        cls,
        path: str | os.PathLike[str],
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        attention_backend: str = "auto",
        image_size: int | Sequence[int] | None = None,
    ) -> "ImageClassifier":
        """Return the classifier of a checkpoint.

        Args:
            path: the file.
            device: a GPU by default, if there is one.
            dtype: to compute in; float32 by default.
            attention_backend: ``auto``, or a back end that every attention of the model has.
            image_size: pixels a side of the model's input, or height and width; by default as in
                training.

        Raises:
            CheckpointError: the file is missing or damaged, or its weights do not fit its settings.
            ConfigError: the back end is unknown.
            MissingExtraError: the back end is not installed.
        """
        # Build the model from its settings, and load the weights.
        checkpoint = load_checkpoint(path)
        classes = classes_of(checkpoint.metadata, path)
        try:
            config = from_dict(VisionTransformerConfig, checkpoint.metadata["model_config"])
            task = checkpoint.metadata["task"]
            preprocessing = from_dict(PreprocessingConfig, task["preprocessing"])
            model = build_vision_model(config, len(classes))
        except ConfigError as error:  # such as an attention that only a user's file registers
            raise CheckpointError(f"{path}: {error}") from error
        load_weights(model, checkpoint.model_tensors, path)
        set_attention_backend(model, attention_backend)
        # At another size, keep the same share of a side of each picture.
        transform = ImageTransform(preprocessing, config.image_size)
        if image_size is not None:
            transform = transform.with_size(image_size)
        criterion = task.get("criterion", CROSS_ENTROPY)  # older checkpoints do not have it
        return cls(model, classes, transform, device, dtype, criterion)

    def classify(
        self,
        images: Iterable["Image | str | os.PathLike[str]"],
        top_k: int | None = None,
        batch_size: int = BATCH_SIZE,
        damaged: Callable[[DataError], object] | None = None,
    ) -> list[dict[str, float]]:
        """Return the probabilities of classes for each picture, the likeliest class first.

        Args:
            images: files, or images of Pillow.
            top_k: number of classes to return; all by default.
            batch_size: pictures to classify at once.
            damaged: called with the error of each picture that cannot be read, whose result is
                empty. By default the first error is raised.

        Raises:
            DataError: a file is missing or no image, or an image has pixels of 32 bits.
            MissingExtraError: Pillow is not installed, which reads files.
        """
        remaining, results = iter(images), []
        while chunk := list(itertools.islice(remaining, batch_size)):
            # Read a batch; damaged pictures have no view and an empty result.
            views: list[np.ndarray | None] = [self._view(image, damaged) for image in chunk]
            found = iter(self._likeliest([view for view in views if view is not None], top_k))
            results += [{} if view is None else next(found) for view in views]
        return results

    def _view(
        self,
        image: "Image | str | os.PathLike[str]",
        damaged: Callable[[DataError], object] | None,
    ) -> np.ndarray | None:
        """Return the pixels of a picture; None if ``damaged`` was called with its error."""
        try:
            if isinstance(image, str | os.PathLike):
                return self.transform.evaluation(read_image(image))
            return self.transform.evaluation(to_rgb(image, "image"))
        except DataError as error:
            if damaged is None:
                raise
            damaged(error)
            return None

    def _likeliest(self, views: Sequence[np.ndarray], top_k: int | None) -> list[dict[str, float]]:
        """Return the probabilities of the likeliest classes of each view."""
        if not views:
            return []
        # Probabilities [B, C], of which the best are kept.
        logits = self.outputs(torch.from_numpy(np.stack(views))).logits
        shares = logits.softmax(1) if self.criterion == CROSS_ENTROPY else logits.sigmoid()
        best = shares.topk(min(top_k or len(self.classes), len(self.classes)))
        return [
            {self.classes[number]: value for number, value in zip(*pair, strict=True)}
            for pair in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    @torch.inference_mode()
    def outputs(self, images: Tensor, blocks: Collection[int] = ()) -> VisionOutput:
        """Return the model's output for normalised images [B, 3, Y, X], as its ``forward``."""
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
            return self.model(images.to(self.device, non_blocking=True), blocks)
