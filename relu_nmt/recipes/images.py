"""Functions that the recipes of image classifiers share: models, sets, batches, results."""

import functools
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from relu_nmt.cli.vision_classify import ClassifierOptions
from relu_nmt.errors import CheckpointError, DataError
from relu_nmt.io.work import progress_bar
from relu_nmt.recipes.output_files import write_file
from relu_nmt.training.batches import load_ahead
from relu_nmt.training.update import autocast_dtype
from relu_nmt.vision.batches import ImageBatch, ImageBatches
from relu_nmt.vision.images import DamagedImages, ImageSet, add_set, open_images
from relu_nmt.vision.loading import ImageClassifier

EPOCH = 1
CHECK_SECONDS = 10.0


def load_classifier(
    path: str, options: ClassifierOptions, image_size: Sequence[int] | None = None
) -> ImageClassifier:
    """Return the classifier that the options describe.

    Raises:
        ReluNmtError: the checkpoint cannot be read, or a flag does not fit it or the device.
    """
    # Choose device and dtype.
    device = "cuda" if torch.cuda.is_available() and not options.cpu else "cpu"
    dtype = autocast_dtype(options, torch.device(device))
    backend = options.attention_backend
    try:
        return ImageClassifier.from_checkpoint(path, device, dtype, backend, image_size)
    except CheckpointError as error:
        # Without --path, a picture may have been taken for the checkpoint.
        if Path(path).suffix == ".safetensors":
            raise
        hint = "the first word is the checkpoint, unless --path CKPT names it"
        raise CheckpointError(f"{error}; {hint}") from error


def evaluation_sets(paths: tuple[str, ...]) -> dict[str, ImageSet]:
    """Return the sets of images to evaluate on, by name.

    Raises:
        DataError: a path is missing, or holds no images in class folders.
    """
    sets: dict[str, ImageSet] = {}
    for path in paths:
        # A path has one set, or train and then others.
        train, *others = open_images(path).values()
        for images in others or [train]:
            sets = add_set(sets, images)
    return sets


def say_left_out(sets: Iterable[ImageSet]) -> None:
    """Print on standard error the files and folders that are not part of the sets."""
    for text in dict.fromkeys(text for images in sets for text in images.left_out()):
        print(text, file=sys.stderr)


def damaged_images(skip: bool) -> DamagedImages | None:
    """Return a collector of damaged images that names each on standard error, if ``skip``."""
    return DamagedImages(functools.partial(print, file=sys.stderr)) if skip else None


def check_images(
    sets: Iterable[ImageSet], num_workers: int, seconds: float = CHECK_SECONDS
) -> list[DataError]:
    """Decode as many images of sets as the time allows, and return their errors.

    Args:
        sets: the sets; arrays of pixels need no decoding and are left out.
        num_workers: threads that decode.
        seconds: time limit.
    """
    # Decode in several threads until the time is over.
    files = [images for images in sets if images.encoded]
    end, found = time.monotonic() + seconds, list[DataError]()

    def problem(images: ImageSet, number: int) -> DataError | None:
        try:
            images.read(number)
        except DataError as error:
            return error
        return None

    with progress_bar("check", sum(map(len, files)), "images", only_if_slow=True) as advance:
        for images in files:
            read = functools.partial(problem, images)
            for error in load_ahead(read, range(len(images)), num_workers, pin_memory=False):
                found += [error] if error is not None else []
                advance(1)
                if time.monotonic() > end:
                    return found
    return found


def loaded(
    batches: ImageBatches, label: str, num_workers: int, epoch: int = EPOCH
) -> Iterator[ImageBatch]:
    """Yield the batches of an epoch, loaded ahead, with a progress bar.

    Args:
        batches: the batches; an empty one, all of whose images are damaged, is skipped.
        label: of the bar.
        num_workers: threads that load.
        epoch: counted from 1.
    """
    numbers = range(batches.begin_epoch(epoch))
    with progress_bar(label, len(batches.images), "images") as advance:
        # Load ahead, into pinned memory if there is a GPU.
        for batch in load_ahead(batches.load, numbers, num_workers, torch.cuda.is_available()):
            if batch.num_sentences:
                yield batch
            advance(batch.num_sentences)


def write_results(path: str, values: Mapping[str, Any]) -> None:
    """Write results as a JSON file, completely or not at all.

    Raises:
        DataError: the file cannot be written.
    """
    write_file("--results", path, json.dumps(values, indent=1, ensure_ascii=False) + "\n")
