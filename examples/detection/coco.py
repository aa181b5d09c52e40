"""Images with boxes and masks from a folder in COCO's format, and batches of them."""

import contextlib
import io
import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from relu_nmt.config import REQUIRED, option
from relu_nmt.errors import DataError, MissingExtraError
from relu_nmt.vision.config import IMAGES
from relu_nmt.vision.image_files import read_image
from relu_nmt.vision.images import PlannedBatches, SampleBatch
from relu_nmt.vision.transforms import sample_generator

if TYPE_CHECKING:
    from pycocotools.coco import COCO

EXTRA = "pip install 'relu-nmt[detection]'"
FLIP = 0.5
LEAST_SIDE = 1.0
"""Least side of a box, in pixels. Thinner boxes are left out in training."""
# The same option in training and evaluation.
data_option = partial(
    option,
    REQUIRED,
    "folder with annotations and images",
    positional=True,
    metavar="DATA",
    files=replace(IMAGES, names=rf"annotations/.*\.json|{IMAGES.names}"),
)


def quiet_coco(path: Path) -> "COCO":
    """Return the annotations in a file, read by pycocotools without its printed lines.

    Raises:
        DataError: the file is missing or has another format.
        MissingExtraError: pycocotools is not installed.
    """
    try:
        from pycocotools.coco import COCO
    except ImportError as error:
        raise MissingExtraError(f"pycocotools is needed to read {path}: {EXTRA}") from error
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return COCO(str(path))
    except (OSError, json.JSONDecodeError, KeyError, TypeError, AssertionError) as error:
        raise DataError(f"{path}: no annotations in COCO's format ({error})") from error


class CocoSet:
    """A set of images with boxes and masks.

    Args:
        folder: has ``annotations/instances_NAME.json``, and the images in ``NAME``.
        name: of the set, such as ``train2017``.

    Attributes:
        numbers: ids of the images.
        categories: ids of the categories in the file. Label i of a model is category i - 1.
        names: names of the categories.

    Raises:
        DataError: the annotations are missing or damaged, or name no images.
        MissingExtraError: pycocotools is not installed.
    """

    def __init__(self, folder: str, name: str) -> None:
        self.images = Path(folder, name)
        self.annotations = quiet_coco(Path(folder, "annotations", f"instances_{name}.json"))
        self.numbers = sorted(self.annotations.getImgIds())
        self.categories = sorted(self.annotations.getCatIds())
        entries = self.annotations.loadCats(self.categories)
        self.names = [entry["name"] for entry in entries]
        if not self.numbers or not self.categories:
            raise DataError(f"{folder}: {name} has no images, or no categories")

    def read(self, number: int) -> Tensor:
        """Return the image [3, Y, X] from 0 to 1, in the pixels of the boxes and masks.

        Raises:
            DataError: the file is missing or no image, or has another size than its annotation.
        """
        [entry] = self.annotations.loadImgs([number])
        file = self.images / entry["file_name"]
        annotated = (entry["width"], entry["height"])
        image = read_image(file, upright=False)
        if image.size != annotated:
            width, height = image.size
            raise DataError(
                f"{file}: has {width} x {height} pixels as stored, without turning by EXIF, but is "
                f"annotated as {entry['width']} x {entry['height']}; boxes and masks must be those "
                "of the stored pixels"
            )
        pixels = np.asarray(image, dtype=np.float32)
        return torch.from_numpy(pixels / 255).permute(2, 0, 1)

    def target(self, number: int) -> dict[str, Tensor]:
        """Return the objects of an image, without crowds and boxes thinner than a pixel.

        Returns:
            ``boxes`` float32 [N, 4], left, top, right and bottom in pixels. ``labels`` int64 [N],
            from 1. ``masks`` uint8 [N, Y, X].
        """
        [entry] = self.annotations.loadImgs([number])
        ids = self.annotations.getAnnIds([number], iscrowd=False)
        boxes = []
        labels = []
        masks = []
        for annotation in self.annotations.loadAnns(ids):
            x, y, wide, high = annotation["bbox"]
            left = max(0.0, x)
            top = max(0.0, y)
            right = min(entry["width"], x + wide)
            bottom = min(entry["height"], y + high)
            if right - left >= LEAST_SIDE and bottom - top >= LEAST_SIDE:
                boxes.append((left, top, right, bottom))
                labels.append(self.categories.index(annotation["category_id"]) + 1)
                masks.append(self.annotations.annToMask(annotation))
        shape = (0, entry["height"], entry["width"])
        return {
            "boxes": torch.tensor(boxes, dtype=torch.float32).view(-1, 4),
            "labels": torch.tensor(labels, dtype=torch.int64),
            "masks": torch.from_numpy(np.stack(masks) if masks else np.zeros(shape, np.uint8)),
        }


@dataclass(frozen=True)
class DetectionBatch(SampleBatch):
    """Images of any sizes and their objects.

    Args:
        images: images [3, Y, X], from 0 to 1.
        targets: see :meth:`CocoSet.target`.
    """

    images: list[Tensor]
    targets: list[dict[str, Tensor]]


class DetectionBatches(PlannedBatches):
    """The batches of the images that have objects. Half of the images are mirrored.

    Args:
        data: the images.
        batch_size: images of a batch.
        seed: seed of order and mirrors, which change with each epoch.

    Raises:
        DataError: no image has an object.
    """

    def __init__(self, data: CocoSet, batch_size: int, seed: int) -> None:
        self._data = data
        self.numbers = [n for n in data.numbers if data.annotations.getAnnIds([n], iscrowd=False)]
        if not self.numbers:
            raise DataError(f"{data.images}: no image has a box")
        super().__init__(len(self.numbers), batch_size, seed)

    def load(self, index: int) -> DetectionBatch:
        """Read batch ``index`` of the planned epoch.

        Raises:
            DataError: an image is missing or damaged.
        """
        numbers = [self.numbers[position] for position in self._plan[index]]
        images = []
        targets = []
        for number in numbers:
            image = self._data.read(number)
            target = self._data.target(number)
            if sample_generator(self._seed, self._epoch, number).random() < FLIP:
                image, target = mirrored(image, target)
            images.append(image)
            targets.append(target)
        return DetectionBatch(torch.tensor(numbers), images, targets)


def mirrored(image: Tensor, target: dict[str, Tensor]) -> tuple[Tensor, dict[str, Any]]:
    """Return an image [3, Y, X] and its objects with left and right exchanged."""
    left, top, right, bottom = target["boxes"].unbind(1)
    width = image.size(2)
    boxes = torch.stack([width - right, top, width - left, bottom], 1)
    return image.flip(2), {**target, "boxes": boxes, "masks": target["masks"].flip(2)}
