"""The image classifier of a checkpoint, and the start from another one."""

import itertools
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from relu_nmt.attention.base import use_backend
from relu_nmt.config import from_dict, to_dict
from relu_nmt.config.stored import checked
from relu_nmt.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    OutOfMemoryError,
    refuse_unordered,
    reporting,
)
from relu_nmt.training.checkpoint import Checkpoint, load_checkpoint, load_weights
from relu_nmt.vision import base
from relu_nmt.vision.attention_maps import ImageAttention, image_weights
from relu_nmt.vision.config import (
    CROSS_ENTROPY,
    PreprocessingConfig,
    VisionTransformerConfig,
    shown_sides,
)
from relu_nmt.vision.image_files import composed, read_image, to_rgb
from relu_nmt.vision.swin import fit_position_biases
from relu_nmt.vision.transforms import ImageTransform
from relu_nmt.vision.vision_transformer import VisionTransformer

if TYPE_CHECKING:
    from PIL.Image import Image

    Picture = Image | str | os.PathLike[str]

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


CLASSIFIER_FORM = {
    "model_config": dict[str, Any],
    "task": {"classes": list[str], "preprocessing": dict[str, Any], "criterion?": str},
}
"""The form of the metadata of an image classifier."""


def classifier_metadata(
    metadata: Mapping[str, Any], path: str | os.PathLike[str]
) -> dict[str, Any]:
    """Return the metadata of an image classifier. Refuse metadata of another kind of checkpoint."""
    if metadata.get("task", {}).get("name") != TASK_NAME:
        raise CheckpointError(f"{path}: not the checkpoint of an image classifier")
    with reporting(f"{path}: damaged", CheckpointError, ValueError):
        return checked(CLASSIFIER_FORM, dict(metadata), "metadata")


def fitted_weights(
    model: base.VisionModel,
    checkpoint: Checkpoint,
    classes: Sequence[str],
    say: Callable[[str], object],
) -> dict[str, Tensor]:
    """Return the weights of another classifier, fitted to a new model, and report changes.

    The head stays new if the classes differ. Positions of another image size are interpolated.
    """
    initial = model.state_dict()
    weights = dict(checkpoint.model_tensors)
    # Keep the new head for other classes.
    earlier_classes = checkpoint.metadata["task"]["classes"]
    if list(map(composed, classes)) != list(map(composed, earlier_classes)):
        weights |= {name: initial[name] for name in initial if name.startswith("head.")}
        say(f"the head for {len(classes):,} other classes starts anew")
    config = from_dict(VisionTransformerConfig, checkpoint.metadata["model_config"])
    stored_grid = base.grid_of(config.image_sides, config.patch_sides)
    grid = base.grid_of(model.config.image_sides, model.config.patch_sides)
    if "positions" in weights and isinstance(model, VisionTransformer) and stored_grid != grid:
        weights["positions"] = base.resize_positions(weights["positions"], stored_grid, grid)
        stored_sides = shown_sides(config.image_sides)
        sides = shown_sides(model.config.image_sides)
        say(f"positions of {stored_sides} pixels are interpolated to those of {sides}")
    for note in fit_position_biases(weights, initial):
        say(note)
    return weights


class ImageClassifier:
    """A trained model, ready to classify pictures of any size.

    The model is put into evaluation mode, on a GPU by default, if there is one. It computes in
    float32, or in the ``dtype`` ``torch.float16`` or ``torch.bfloat16``. The ``criterion`` is the
    loss of the training: with ``sigmoid_cross_entropy`` each class has an independent probability,
    so they need not sum to 1.

    Example:
        >>> from PIL import Image
        >>> from relu_nmt.vision.base import build_vision_model
        >>> config = VisionTransformerConfig(image_size=8, patch_size=4, layers=1)
        >>> transform = ImageTransform(PreprocessingConfig(), config.image_size)
        >>> classifier = ImageClassifier(build_vision_model(config, 2), ("cat", "dog"), transform)
        >>> [shares] = classifier.classify([Image.new("RGB", (50, 40))])
        >>> sorted(shares), round(sum(shares.values()), 4)
        (['cat', 'dog'], 1.0)
    """

    def __init__(
        self,
        model: base.VisionModel,
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
            dtype: float32 by default.
            attention_backend: ``auto``, or a back end that every attention of the model has.
            image_size: pixels a side of the input, or height and width (default: as in training).

        Raises:
            CheckpointError: the file is missing or damaged, or its weights do not fit its settings.
            ConfigError: the back end is unknown.
            MissingExtraError: the back end is not installed.
        """
        checkpoint = load_checkpoint(path)
        metadata = classifier_metadata(checkpoint.metadata, path)
        task = metadata["task"]
        classes = task["classes"]
        # Report settings at fault, such as an attention that only a user's file registers.
        with reporting(path, CheckpointError, (ConfigError, OutOfMemoryError)):
            config = from_dict(VisionTransformerConfig, metadata["model_config"])
            preprocessing = from_dict(PreprocessingConfig, task["preprocessing"])
            model = base.build_vision_model(config, len(classes))
        use_backend(model, attention_backend)
        load_weights(model, checkpoint.model_tensors, path)
        # At another size, keep the same share of a side of each picture.
        transform = ImageTransform(preprocessing, config.image_size)
        if image_size is not None:
            transform = transform.with_size(image_size)
        criterion = task.get("criterion", CROSS_ENTROPY)  # older checkpoints do not have it
        return cls(model, classes, transform, device, dtype, criterion)

    def classify(
        self,
        images: "Picture | Iterable[Picture]",
        top_k: int | None = None,
        batch_size: int = BATCH_SIZE,
        report_damaged: Callable[[DataError], object] | None = None,
    ) -> list[dict[str, float]]:
        """Return the probabilities of classes for each picture, the likeliest class first.

        Args:
            images: files or images of Pillow, or a single one.
            top_k: number of classes to return (default: all).
            batch_size: pictures to classify at once.
            report_damaged: called with the error of each picture that cannot be read, whose result
                is empty. By default the first error is raised.

        Raises:
            DataError: a file is missing or no image, or an image has pixels of 32 bits.
        """
        # A text is one path, not one for each of its letters.
        if isinstance(images, str) or not isinstance(images, Iterable):
            images = [images]
        refuse_unordered(images, "images")
        remaining = iter(images)
        results: list[dict[str, float]] = []
        while chunk := list(itertools.islice(remaining, batch_size)):
            # Read a batch. Damaged pictures have no view and an empty result.
            views = [self._view(image, report_damaged) for image in chunk]
            shares = iter(self._likeliest([v for v in views if v is not None], top_k))
            results += [{} if view is None else next(shares) for view in views]
        return results

    def attention(
        self, image: "Picture", layer: int = -1, head: int | None = None
    ) -> ImageAttention:
        """Return the attention weights of a layer for one picture.

        Args:
            image: a file or an image of Pillow.
            layer: from 0, or -1 for the last one.
            head: from 0, by default all heads.

        Raises:
            ConfigError: no such layer or head, or attention between channels or inside windows.
            DataError: the file is missing or no image.
        """
        view = self._view(image, None)
        assert view is not None, "errors are raised"
        images = torch.from_numpy(view)[None].to(self.device)
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
            weights, grid, layer = image_weights(self.model, images, layer)
        if head is not None:
            if not 0 <= head < len(weights):
                heads = f"its heads are 0 to {len(weights) - 1}"
                raise ConfigError(f"attention layer {layer}, head {head}: {heads}")
            weights = weights[head]
        return ImageAttention(layer, head, weights.cpu().numpy(), grid, self.transform.pixels(view))

    def _view(
        self, image: "Picture", report_damaged: Callable[[DataError], object] | None
    ) -> np.ndarray | None:
        """Return the pixels of a picture. None if ``report_damaged`` was called with its error."""
        try:
            if isinstance(image, str | os.PathLike):
                return self.transform.evaluation(read_image(image))
            if not hasattr(image, "convert"):
                raise ConfigError(f"image {image!r}: expected a path, or an image of Pillow")
            return self.transform.evaluation(to_rgb(image, "image"))
        except DataError as error:
            if report_damaged is None:
                raise
            report_damaged(error)
            return None

    def _likeliest(self, views: Sequence[np.ndarray], top_k: int | None) -> list[dict[str, float]]:
        if not views:
            return []
        # Probabilities [B, C], of which the best are kept.
        logits = self.outputs(torch.from_numpy(np.stack(views))).logits
        shares = logits.softmax(1) if self.criterion == CROSS_ENTROPY else logits.sigmoid()
        best = shares.topk(min(top_k or len(self.classes), len(self.classes)))
        results = []
        for numbers, values in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            names = [self.classes[number] for number in numbers]
            results.append(dict(zip(names, values, strict=True)))
        return results

    @torch.inference_mode()
    def outputs(self, images: Tensor, blocks: Collection[int] = ()) -> base.VisionOutput:
        """Return the model's output for normalized images [B, 3, Y, X], as its ``forward``."""
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
            return self.model(images.to(self.device, non_blocking=True), blocks)
