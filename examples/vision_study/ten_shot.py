r"""Prepare the eight data sets of 10-shot transfer from their unpacked archives.

    python examples/vision_study/ten_shot.py archives --out ten-shot
    relu-nmt-vision-probe CKPT --method ridge --shots 10 \
        --train ten-shot/*/train.zip --test ten-shot/*/test.zip

README.md says what archives/NAME has to hold. Sets that are missing there are named and left out.
The numbers of classes and images are checked. A set that is already in ten-shot stays as it is.

Reference: Wortsman et al. 2023, "Replacing softmax with ReLU in vision transformers", Figure 1.
"""

import io
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.config import REQUIRED, add_settings, option, read_settings, settings
from relu_nmt.errors import DataError
from relu_nmt.io.safe_write import safe_writer

TRAIN = "train"
TEST = "test"
PARTS = (TRAIN, TEST)
CIFAR_SIDE = 32
SEED = 0
"""Seed of the division of sets that come undivided."""

Images = Iterator[tuple[str, str, Path | np.ndarray]]
"""Part, class/name, and the image: a file, or pixels [height, width, 3]."""


@settings
class TenShotSettings:
    """The folders of the archives and of the sets."""

    archives: str = option(
        REQUIRED, "folder with an unpacked archive a set", positional=True, metavar="DIR"
    )
    out: str = option("ten-shot", "folder to write", metavar="DIR")


def birds(folder: Path) -> Images:
    """Yield Caltech-UCSD Birds 2010 as its lists divide it."""
    for part in PARTS:
        for name in lines_of(folder / "lists" / f"{part}.txt"):
            yield part, name, folder / "images" / name


def caltech101(folder: Path) -> Images:
    """Yield Caltech-101: 30 images of each class to learn from, drawn at random."""
    for class_folder in sorted((folder / "101_ObjectCategories").iterdir()):
        yield from divided(sorted(class_folder.glob("*.jpg")), 30)


def cars(folder: Path) -> Images:
    """Yield Stanford Cars, whose classes are in files of Matlab.

    Raises:
        DataError: SciPy, which reads them, is missing.
    """
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise DataError(f"{folder}: its labels need SciPy: pip install scipy") from error
    labels = {TRAIN: "devkit/cars_train_annos.mat", TEST: "cars_test_annos_withlabels.mat"}
    for part, path in labels.items():
        for row in loadmat(folder / path, simplify_cells=True)["annotations"]:
            name = row["fname"]
            yield part, f"{row['class']:03}/{name}", folder / f"cars_{part}" / name


def cifar100(folder: Path) -> Images:
    """Yield CIFAR-100 from its binary form: coarse class, class, and 3,072 pixels an image."""
    folder = folder / "cifar-100-binary"
    names = lines_of(folder / "fine_label_names.txt")
    for part in PARTS:
        rows = np.fromfile(folder / f"{part}.bin", np.uint8).reshape(-1, 2 + 3 * CIFAR_SIDE**2)
        for number, row in enumerate(rows):
            pixels = row[2:].reshape(3, CIFAR_SIDE, CIFAR_SIDE).transpose(1, 2, 0)
            yield part, f"{names[row[1]]}/{number:05}.png", pixels


def dtd(folder: Path) -> Images:
    """Yield the Describable Textures by the first of their ten divisions."""
    for part in PARTS:
        for name in lines_of(folder / "labels" / f"{part}1.txt"):
            yield part, name, folder / "images" / name


def histology(folder: Path) -> Images:
    """Yield the tiles of colorectal histology: 2,000 to learn from, drawn at random."""
    root = folder / "Kather_texture_2016_image_tiles_5000"
    yield from divided(sorted(root.glob("*/*.tif")), 2000)


def pets(folder: Path) -> Images:
    """Yield Oxford-IIIT Pets. The breed is the name of a file up to its number."""
    for part, path in ((TRAIN, "trainval.txt"), (TEST, "test.txt")):
        for line in lines_of(folder / "annotations" / path):
            name = line.split()[0]
            image = f"{name}.jpg"
            yield part, f"{name.rpartition('_')[0]}/{image}", folder / "images" / image


def ucmerced(folder: Path) -> Images:
    """Yield UC Merced Land Use: 1,000 images to learn from, drawn at random."""
    root = folder / "UCMerced_LandUse" / "Images"
    yield from divided(sorted(root.glob("*/*.tif")), 1000)


def lines_of(path: Path) -> list[str]:
    """Return the lines of a list that are not empty."""
    text = path.read_text("utf-8") if path.exists() else ""
    return [line for line in text.split("\n") if line]


def divided(paths: Sequence[Path], train: int) -> Images:
    """Yield images in folders of classes, so many at random to learn from."""
    order = np.random.default_rng(SEED).permutation(len(paths))
    for rank, number in enumerate(order):
        path = paths[number]
        part = TRAIN if rank < train else TEST
        yield part, f"{path.parent.name}/{path.name}", path


@dataclass(frozen=True)
class ImageSet:
    """A data set.

    Args:
        read: function that yields its images from the folder of its archive.
        classes: number of classes.
        train: number of images to learn from.
        test: number of images to test on.
    """

    read: Callable[[Path], Images]
    classes: int
    train: int
    test: int


SETS = {
    "birds": ImageSet(birds, 200, 3_000, 3_033),
    "caltech101": ImageSet(caltech101, 102, 3_060, 6_084),
    "cars": ImageSet(cars, 196, 8_144, 8_041),
    "cifar100": ImageSet(cifar100, 100, 50_000, 10_000),
    "dtd": ImageSet(dtd, 47, 1_880, 1_880),
    "histology": ImageSet(histology, 8, 2_000, 3_000),
    "pets": ImageSet(pets, 37, 3_680, 3_669),
    "ucmerced": ImageSet(ucmerced, 21, 1_000, 1_100),
}


def prepare(name: str, archive: Path, out: Path) -> None:
    """Write train.zip and test.zip of a set.

    Raises:
        DataError: the archive is not whole, or a file cannot be read or written.
    """
    image_set = SETS[name]
    try:
        all_images = list(image_set.read(archive))
        for part, expected in ((TRAIN, image_set.train), (TEST, image_set.test)):
            images = []
            classes = set()
            for image_part, file, image in all_images:
                if image_part == part:
                    images.append((file, image))
                    classes.add(file.partition("/")[0])
            if len(images) != expected or len(classes) != image_set.classes:
                raise DataError(
                    f"{archive}: {len(images):,} images of {len(classes)} classes for {part}; "
                    f"expected {expected:,} of {image_set.classes}; unpack the archive there "
                    "again, see README.md"
                )
            write_zip(out / f"{part}.zip", images)
    except OSError as error:
        raise DataError(f"{error.filename or out}: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{archive}: damaged ({error}); unpack the archive there again") from error
    print(
        f"{out}: {image_set.classes} classes, {image_set.train:,} + {image_set.test:,} images",
        flush=True,
    )


def write_zip(path: Path, images: Sequence[tuple[str, Any]]) -> None:
    """Write images in folders of classes, as they are or, from pixels, as PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with safe_writer(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, image in images:
            if isinstance(image, Path):
                archive.writestr(name, image.read_bytes())
                continue
            encoded = io.BytesIO()
            Image.fromarray(image).save(encoded, "PNG")
            archive.writestr(name, encoded.getvalue())


def run(settings: TenShotSettings) -> None:
    """Prepare the sets that are there.

    Raises:
        DataError: none is there, or as :func:`prepare`.
    """
    archives = Path(settings.archives)
    out = Path(settings.out)
    present = []
    missing = []
    for name in SETS:
        if (archives / name).is_dir():
            present.append(name)
        else:
            missing.append(name)
    if not present:
        raise DataError(f"{archives}: expected a folder of {', '.join(SETS)}; see README.md")
    for name in present:
        if all((out / name / f"{part}.zip").exists() for part in PARTS):
            print(f"{out / name}: is there")
        else:
            prepare(name, archives / name, out / name)
    if missing:
        print(f"left out: {', '.join(missing)}; no such folder in {archives}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Return its exit code."""
    parser = make_parser("ten_shot", __doc__)
    add_settings(parser, TenShotSettings)
    return run_command(parser, lambda words: run(read_settings(TenShotSettings, words)), argv)


if __name__ == "__main__":
    sys.exit(main())
