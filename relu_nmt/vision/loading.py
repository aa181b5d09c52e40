"""What a checkpoint tells about an image classifier, and the classifier made from it."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from relu_nmt.config import from_dict, to_dict
from relu_nmt.errors import CheckpointError, ConfigError
from relu_nmt.training.checkpoint import load_checkpoint, load_weights
from relu_nmt.vision.base import VisionModel, build_vision_model
from relu_nmt.vision.batches import ImageTransform
from relu_nmt.vision.config import PreprocessingConfig, VisionTransformerConfig

if TYPE_CHECKING:
    from PIL.Image import Image

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


class ImageClassifier:
    """A trained model, ready to classify pictures of any size.

    Args:
        model: the model; it is put into evaluation mode.
        classes: names of its C classes.
        transform: makes what the model reads of a picture.

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
        self, model: VisionModel, classes: Sequence[str], transform: ImageTransform
    ) -> None:
        self.model = model.eval()
        self.classes = tuple(classes)
        self.transform = transform

    @classmethod
    def from_checkpoint(cls, path: str | os.PathLike[str]) -> "ImageClassifier":
        """Return the classifier of a checkpoint, on the CPU.

        Raises:
            CheckpointError: the file is missing or damaged, or its weights do not fit its settings.
        """
        checkpoint = load_checkpoint(path)
        classes = classes_of(checkpoint.metadata, path)
        task = checkpoint.metadata["task"]
        try:
            config = from_dict(VisionTransformerConfig, checkpoint.metadata["model_config"])
            preprocessing = from_dict(PreprocessingConfig, task["preprocessing"])
            model = build_vision_model(config, len(classes))
        except ConfigError as error:  # such as an attention that a file of the user's registers
            raise CheckpointError(f"{path}: {error}") from error
        load_weights(model, checkpoint.model_tensors, path)
        return cls(model, classes, ImageTransform(preprocessing, config.image_size))

    @torch.inference_mode()
    def classify(self, images: Sequence["Image"]) -> list[dict[str, float]]:
        """Return the probability of each class for each picture, the likeliest class first.

        Args:
            images: 8-bit red, green and blue.
        """
        pixels = np.stack([self.transform.evaluation(image) for image in images])
        device = self.model.head.weight.device
        logits = self.model(torch.from_numpy(pixels).to(device)).logits
        results = []
        for row in logits.softmax(1).tolist():
            named = zip(self.classes, row, strict=True)
            results.append(dict(sorted(named, key=lambda pair: -pair[1])))
        return results
