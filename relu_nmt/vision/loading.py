"""What a checkpoint tells about an image classifier, and the classifier made from it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relu_nmt.config import from_dict, to_dict
from relu_nmt.errors import CheckpointError, ConfigError
from relu_nmt.training.checkpoint import load_checkpoint
from relu_nmt.vision.augmentation import ImageTransform
from relu_nmt.vision.config import PreprocessingConfig, VisionTransformerConfig
from relu_nmt.vision.vision_transformer import VisionTransformer

TASK_NAME = "image_classification"


def describe_task(classes: Sequence[str], preprocessing: PreprocessingConfig) -> dict[str, Any]:
    """Return what a checkpoint stores of the data, as JSON can hold it."""
    return {
        "name": TASK_NAME,
        "classes": list(classes),
        "preprocessing": to_dict(preprocessing),
    }


def classes_of(metadata: Mapping[str, Any], path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the classes that a checkpoint tells apart.

    Raises:
        CheckpointError: it is not one of an image classifier.
    """
    task = metadata.get("task")
    if not isinstance(task, dict) or task.get("name") != TASK_NAME:
        raise CheckpointError(f"{path}: not the checkpoint of an image classifier")
    return tuple(task["classes"])


@dataclass
class LoadedClassifier:
    """A model in evaluation mode with what it was trained for.

    Args:
        model: gives logits [B, C] of images [B, 3, size, size].
        classes: names of the C classes.
        transform: its ``evaluation`` makes such an image from a Pillow image.
    """

    model: VisionTransformer
    classes: tuple[str, ...]
    transform: ImageTransform


def load_classifier(path: str | os.PathLike[str]) -> LoadedClassifier:
    """Return the image classifier of a checkpoint, on the CPU.

    Raises:
        CheckpointError: the file is missing or damaged, or its weights do not fit its settings.
    """
    checkpoint = load_checkpoint(path)
    classes = classes_of(checkpoint.metadata, path)
    try:
        config = from_dict(VisionTransformerConfig, checkpoint.metadata["model_config"])
        preprocessing = from_dict(PreprocessingConfig, checkpoint.metadata["task"]["preprocessing"])
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error
    model = VisionTransformer(config, len(classes))
    try:
        model.load_state_dict(checkpoint.model_tensors)
    except RuntimeError as error:
        # PyTorch lists every tensor on a line of its own; the first one tells what is wrong.
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path}: the weights do not fit the settings: {reason}") from error
    return LoadedClassifier(model.eval(), classes, ImageTransform(preprocessing, config.image_size))
