"""Evaluate an image classifier on sets of images, or classify single pictures."""

import dataclasses
import functools
import itertools
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relu_nmt.config import to_dict
from relu_nmt.config.shared import PrecisionOptions
from relu_nmt.errors import CheckpointError, DataError, counted, printable, some_of
from relu_nmt.io.progress import hidden_progress, progress_bar
from relu_nmt.io.safe_write import check_writable, json_text, write_output
from relu_nmt.io.text_lines import read_lines
from relu_nmt.jobs.vision_evaluate.settings import ClassifyImagesSettings, map_name
from relu_nmt.jobs.vision_evaluate.settings import EvaluateImagesSettings as Settings
from relu_nmt.training.batches import load_ahead
from relu_nmt.training.precision import autocast_dtype
from relu_nmt.vision.config import shown_sides
from relu_nmt.vision.image_files import composed
from relu_nmt.vision.images import (
    ImageBatch,
    ImageBatches,
    ImageSet,
    add_set,
    reporter_of_damaged,
    sets_besides_train,
    with_classes_of,
)
from relu_nmt.vision.loading import BATCH_SIZE, ImageClassifier
from relu_nmt.vision.probes import TOP


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of a classifier on a set of images."""

    set: str  # name of the set
    data: str  # folder or file of its images
    image_size: tuple[int, int]  # height and width of the model's input, in pixels
    images: int  # number of images, without damaged ones
    top1: float  # percent of images whose class has the highest score
    top5: float | None  # percent among the five best, None with five classes or fewer
    seconds: float
    damaged: int = 0  # number of images that could not be decoded

    def __str__(self) -> str:
        top5 = "" if self.top5 is None else f", top-5 {self.top5:.2f}"
        size = shown_sides(self.image_size)
        lost = f" ({self.damaged:,} damaged ones left out)" if self.damaged else ""
        images = counted(self.images, "image")
        return f"{self.set}: {images} at {size}: top-1 {self.top1:.2f}{top5}{lost}"


def candidates(
    classes: Sequence[str], checkpoint: str, file: str | None, image_classes: Collection[str]
) -> tuple[tuple[str, ...], torch.Tensor]:
    """Return the classes to choose among: the lines of a file, or all classes of the model.

    Return their names and int64 [K], the model's outputs for the first K names. Classes of the
    model come first. A line of ``file`` is a class. Text after a space is a remark, unless the
    whole line is a class of the model or of the images (``image_classes``).
    """
    number = {composed(name): index for index, name in enumerate(classes)}
    if file is None:
        return tuple(classes), torch.arange(len(classes))
    lines = [composed(line.strip()) for line in read_lines(file)]
    exact = {*number, *image_classes}
    names = dict.fromkeys(line if line in exact else line.split()[0] for line in lines if line)
    # Put the classes of the model first, in the order of the returned outputs.
    present = [name for name in names if name in number]
    if not present:
        raise DataError(f"--classes {file}: none of its lines is a class of {checkpoint}")
    outputs = torch.tensor([number[name] for name in present])
    return (*present, *(name for name in names if name not in number)), outputs


def run(settings: Settings, *, progress: bool = True) -> list[Accuracy]:
    """Evaluate a classifier on each set at each size."""
    check_writable("--results", settings.results)
    sets = evaluation_sets(settings.data)
    labels = set(itertools.chain.from_iterable(images.classes for images in sets.values()))
    origin = settings.path if settings.classes is None else f"--classes {settings.classes}"
    accuracies: list[Accuracy] = []
    if progress:
        say_left_out(sets.values())
    with hidden_progress(not progress):
        for size in settings.image_sides:
            classifier = load_classifier(settings.path, settings.model, size)
            names, outputs = candidates(classifier.classes, settings.path, settings.classes, labels)
            absent = names[len(outputs) :]
            # Report absent classes once, before the first result.
            if progress and not accuracies and absent:
                print(
                    f"the model does not have {len(absent):,} of the classes, whose images count "
                    f"as wrong: {printable(some_of(absent))}"
                )
            for name, images in sets.items():
                # Number the labels like the candidates. Classes that the model lacks come last.
                images = with_classes_of(images, names, origin)
                accuracies.append(accuracy(name, images, classifier, outputs, settings))
                if progress:
                    print(printable(str(accuracies[-1])), flush=True)
    if settings.results is not None:
        values: dict[str, Any] = {"settings": to_dict(settings, stored_only=True)}
        values |= {"accuracies": list(map(dataclasses.asdict, accuracies)), "absent": absent}
        write_output("--results", settings.results, json_text(values))
    return accuracies


@torch.inference_mode()
def accuracy(
    name: str,
    images: ImageSet,
    classifier: ImageClassifier,
    outputs: torch.Tensor,
    options: Settings,
) -> Accuracy:
    """Return the accuracy on a set whose labels are indices into ``outputs``, int64 [K]."""
    started = time.monotonic()
    num_images = 0
    transform = classifier.transform.with_eval_ratio(options.eval_crop_ratio)
    damaged = damaged_images(options.skip_damaged_images)
    batches = ImageBatches(images, transform, options.batch_size, report_damaged=damaged)
    count = min(TOP, len(outputs))
    right = np.zeros(count, dtype=np.int64)  # number of images whose class has rank 1, 2, ...
    for batch in loaded(batches, name, options.num_workers):
        logits = classifier.outputs(batch.images).logits.cpu()
        best = logits[:, outputs].topk(count).indices  # [B, count]
        right += (best == batch.labels[:, None]).sum(0).numpy()
        num_images += batch.num_sentences
    # Add up the ranks: top-k counts all ranks up to k.
    percent = 100 * right.cumsum() / num_images
    return Accuracy(
        name,
        str(images.origin),
        transform.sides,
        num_images,
        float(percent[0]),
        float(percent[-1]) if len(outputs) > TOP else None,
        time.monotonic() - started,
        len(images) - num_images,
    )


class Classified(list[dict[str, float]]):
    """The probabilities of classes for each picture, {} for a damaged one (exit code 2)."""

    exit_code = 0


def classify(settings: ClassifyImagesSettings, *, progress: bool = True) -> Classified:
    """Classify pictures, report damaged ones, and return the likeliest classes of each."""
    classifier = load_classifier(settings.path, settings, settings.image_size)
    maps = settings.attention_maps
    if maps is not None:
        for image in settings.images:
            check_writable("--attention-maps", str(Path(maps, map_name(image))))
    classified = Classified()
    values: list[dict[str, Any]] = []
    remaining = iter(settings.images)
    # Classify batch by batch, and print each result at once.
    while chunk := list(itertools.islice(remaining, BATCH_SIZE)):
        errors: list[DataError] = []
        results = classifier.classify(chunk, settings.top_k, report_damaged=errors.append)
        # Errors come in the order of the pictures without classes.
        reasons = map(str, errors)
        for image, classes in zip(chunk, results, strict=True):
            values.append({"image": image, "classes": classes})
            if not classes:
                values[-1]["error"] = next(reasons)
                classified.exit_code = 2
                continue
            if maps is not None:
                attention = classifier.attention(image, settings.attention_layer)
                attention.save(Path(maps, map_name(image)))
            if progress and not settings.json:
                shares = (f"{name} {share:.1%}" for name, share in classes.items())
                print(printable("\t".join([image, *shares])), flush=True)
        classified += results
        if progress and errors:
            print("\n".join(map(str, errors)), file=sys.stderr)
    if progress and settings.json:
        print(json_text(values), end="")
    lost = len(classified) - sum(map(bool, classified))
    if progress and len(settings.images) > 1 and lost:
        print(f"{lost:,} of {len(classified):,} pictures cannot be read", file=sys.stderr)
    return classified


def load_classifier(
    path: str, options: PrecisionOptions, image_size: Sequence[int] | None = None
) -> ImageClassifier:
    """Return the classifier of a checkpoint. A ReluNmtError names the flag that does not fit."""
    device = "cuda" if torch.cuda.is_available() and not options.cpu else "cpu"
    dtype = autocast_dtype(options, torch.device(device))
    backend = options.attention_backend
    try:
        return ImageClassifier.from_checkpoint(path, device, dtype, backend, image_size)
    except CheckpointError as error:
        # Without --path the first word is the checkpoint, and may be a picture by mistake.
        if Path(path).suffix == ".safetensors":
            raise
        hint = "the first word is the checkpoint, unless --path CKPT names it"
        raise CheckpointError(f"{error}; {hint}") from error


def evaluation_sets(paths: tuple[str, ...]) -> dict[str, ImageSet]:
    """Return the sets of images to evaluate on, by name."""
    sets: dict[str, ImageSet] = {}
    for path in paths:
        for images in sets_besides_train(path, least_classes=1):
            sets = add_set(sets, images)
    return sets


def say_left_out(sets: Iterable[ImageSet]) -> None:
    """Print on standard error the files and folders that are not part of the sets."""
    texts = itertools.chain.from_iterable(images.left_out() for images in sets)
    for text in dict.fromkeys(texts):
        print(printable(text), file=sys.stderr)


def damaged_images(skip: bool) -> Callable[[DataError], None] | None:
    """Return a function that names damaged images on standard error, if ``skip``."""
    return reporter_of_damaged(functools.partial(print, file=sys.stderr)) if skip else None


def loaded(
    batches: ImageBatches, label: str, num_workers: int, epoch: int = 1
) -> Iterator[ImageBatch]:
    """Yield the batches of an epoch, loaded ahead, with a progress bar."""
    numbers = range(batches.begin_epoch(epoch))
    is_empty = True
    with progress_bar(label, len(batches.images), "images") as advance:
        for batch in load_ahead(batches.load, numbers, num_workers, torch.cuda.is_available()):
            if batch.num_sentences:
                is_empty = False
                yield batch
            advance(batch.num_sentences)
    if is_empty:
        raise DataError(
            f"{batches.images.origin}: {label}: all of its images are damaged; repair them"
        )
