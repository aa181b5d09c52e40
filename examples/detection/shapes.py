r"""Make a small data set for detection in COCO's format: discs, squares and triangles.

    python examples/detection/shapes.py shapes --train 400 --val 100

It writes shapes/annotations/instances_train.json and shapes/train/*.png, and the same of val.
"""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from relu_nmt.cli.command import Command
from relu_nmt.config import REQUIRED, option, settings
from relu_nmt.errors import reporting
from relu_nmt.io.safe_write import write_text

KINDS = {"disc": 24, "square": 4, "triangle": 3}
"""Number of corners of each shape. A disc is a polygon too, so that its mask is exact."""
MOST_SHAPES = 4
TRIALS = 20


@settings
class ShapeSettings:
    """Number and size of the images."""

    folder: str = option(REQUIRED, "folder to write", positional=True, metavar="DATA")
    train: int = option(400, "images to train on", least=1)
    val: int = option(100, "images to evaluate on", least=1)
    size: int = option(128, "pixels a side", least=32)
    seed: int = option(1, "of the images", least=0)


def corners(kind: str, center: Sequence[float], radius: float, angle_offset: float) -> list[float]:
    """Return x and y of all corners of a shape, one after the other, in pixels."""
    count = KINDS[kind]
    angles = [angle_offset + 2 * math.pi * i / count for i in range(count)]
    x, y = center
    points = []
    for angle in angles:
        points += [x + radius * math.cos(angle), y + radius * math.sin(angle)]
    return points


def place_shapes(size: int, generator: np.random.Generator) -> list[tuple[str, list[float]]]:
    """Return one to four shapes, as kind and corners, whose boxes do not overlap."""
    shapes: list[tuple[str, list[float]]] = []
    circles: list[tuple[float, float, float]] = []
    for _ in range(int(generator.integers(1, MOST_SHAPES + 1))):
        for _ in range(TRIALS):
            radius = size * generator.uniform(0.08, 0.22)
            x, y = generator.uniform(radius + 1, size - radius - 1, size=2)
            if all(max(abs(x - a), abs(y - b)) > radius + r for a, b, r in circles):
                circles.append((x, y, radius))
                kind = str(generator.choice(list(KINDS)))
                angle_offset = generator.uniform(0, 2 * math.pi)
                shapes.append((kind, corners(kind, (x, y), radius, angle_offset)))
                break
    return shapes


def make_set(folder: Path, name: str, count: int, size: int, seed: int) -> None:
    """Write the images of a set and their annotations.

    Args:
        folder: folder of the data.
        name: ``train`` or ``val``.
        count: number of images.
        size: side of an image in pixels.
        seed: seed of the images.
    """
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "annotations").mkdir(exist_ok=True)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number in range(1, count + 1):
        generator = np.random.default_rng((seed, len(name), number))
        pixels = generator.integers(0, 80, (size, size, 3), dtype=np.uint8)
        image = Image.fromarray(pixels)
        draw = ImageDraw.Draw(image)
        for kind, outline in place_shapes(size, generator):
            draw.polygon(outline, fill=tuple(generator.integers(100, 256, size=3).tolist()))
            xs = outline[::2]
            ys = outline[1::2]
            box = [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
            following = [*zip(xs[1:] + xs[:1], ys[1:] + ys[:1], strict=True)]
            twice_area = 0.0
            for x, y, (next_x, next_y) in zip(xs, ys, following, strict=True):
                twice_area += x * next_y - y * next_x
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": list(KINDS).index(kind) + 1,
                    "bbox": box,
                    "area": abs(twice_area) / 2,
                    "iscrowd": 0,
                    "segmentation": [outline],
                }
            )
        image.save(folder / name / f"{number:06}.png")
        images.append(
            {"id": number, "file_name": f"{number:06}.png", "width": size, "height": size}
        )
    categories = [{"id": i, "name": kind} for i, kind in enumerate(KINDS, 1)]
    values = {"images": images, "annotations": annotations, "categories": categories}
    write_text(folder / "annotations" / f"instances_{name}.json", json.dumps(values))


def run(settings: ShapeSettings) -> None:
    """Write both sets.

    Raises:
        DataError: they cannot be written.
    """
    folder = Path(settings.folder)
    with reporting(f"{folder}: cannot be written"):
        for name, count in (("train", settings.train), ("val", settings.val)):
            make_set(folder, name, count, settings.size, settings.seed)
    print(f"{folder}: {settings.train:,} images to train on, {settings.val:,} to evaluate on")


main = Command("shapes", __doc__, ShapeSettings, run, user_modules=False)

if __name__ == "__main__":
    sys.exit(main())
