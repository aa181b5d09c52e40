"""Top-1 and top-5 accuracy of an image classifier on sets of images, at one or more sizes."""

import dataclasses
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from relu_nmt.cli.vision_evaluate import EvaluateImagesSettings as Settings
from relu_nmt.cli.vision_evaluate import EvaluationOptions
from relu_nmt.config import to_dict
from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import read_lines
from relu_nmt.io.work import hidden_progress
from relu_nmt.recipes.images import (
    damaged_images,
    evaluation_sets,
    load_classifier,
    loaded,
    say_left_out,
    write_results,
)
from relu_nmt.recipes.output_files import check_writable
from relu_nmt.vision.batches import ImageBatches
from relu_nmt.vision.config import shown_sides
from relu_nmt.vision.image_files import composed
from relu_nmt.vision.images import ImageSet, some_of, with_classes_of
from relu_nmt.vision.loading import ImageClassifier

TOP = 5


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of a classifier on a set of images.

    Args:
        set: name of the set.
        data: folder or file of its images.
        image_size: height and width of the model's input, in pixels.
        images: number of images.
        top1: percent of images whose class has the highest score.
        top5: percent whose class has one of the five highest scores; None with five classes or
            fewer.
        seconds: time of the evaluation.
        damaged: number of images that could not be decoded and are not counted.
    """

    set: str
    data: str
    image_size: tuple[int, int]
    images: int
    top1: float
    top5: float | None
    seconds: float
    damaged: int = 0

    def __str__(self) -> str:
        top5 = "" if self.top5 is None else f", top-5 {self.top5:.2f}"
        size = shown_sides(self.image_size)
        lost = f" ({self.damaged:,} damaged ones left out)" if self.damaged else ""
        return f"{self.set}: {self.images:,} images at {size}: top-1 {self.top1:.2f}{top5}{lost}"


@dataclass(frozen=True)
class EvaluationResult:
    """The accuracies of each set at each size.

    Args:
        accuracies: in the order of the evaluation.
        absent: classes of ``--classes`` that the model does not have.
    """

    accuracies: tuple[Accuracy, ...]
    absent: tuple[str, ...]


def candidates(
    classes: Sequence[str], checkpoint: str, file: str | None, known: Collection[str]
) -> tuple[tuple[str, ...], torch.Tensor]:
    """Return the classes to choose among: those in a file, or all classes of the model.

    Args:
        classes: of the model.
        checkpoint: path of the model.
        file: a class a line; text after a space is a remark, unless the whole line is a class of
            the model or the images.
        known: the classes of the images.

    Returns:
        the names, those that the model has first; and int64 [K], the indices of its outputs for
        the first K names.

    Raises:
        DataError: the file cannot be read, or has none of the model's classes.
    """
    number = {composed(name): index for index, name in enumerate(classes)}
    if file is None:
        return tuple(classes), torch.arange(len(classes))
    # Read the file, and cut off remarks.
    lines = [composed(line.strip()) for line in read_lines(file)]
    whole = {*number, *known}
    found = dict.fromkeys(line if line in whole else line.split()[0] for line in lines if line)
    # Put the classes of the model first, in the order of its outputs that are returned.
    present = [name for name in found if name in number]
    if not present:
        raise DataError(f"--classes {file}: none of its lines is a class of {checkpoint}")
    outputs = torch.tensor([number[name] for name in present])
    return (*present, *(name for name in found if name not in number)), outputs


def run(settings: Settings, *, progress: bool = True) -> EvaluationResult:
    """Evaluate a classifier.

    Args:
        settings: the checkpoint, the images and the evaluation.
        progress: print the results on standard output, and progress bars on standard error.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or cannot work at an image size.
        ConfigError: settings that do not fit the model or the device.
        DataError: images are missing, damaged or of other classes; a file cannot be read or
            written.
    """
    # Open the images.
    options = settings.options
    check_writable("--results", options.results)
    sets = evaluation_sets(options.data)
    known = {name for images in sets.values() for name in images.classes}
    origin = settings.path if options.classes is None else f"--classes {options.classes}"
    found: list[Accuracy] = []
    if progress:
        say_left_out(sets.values())
    # Evaluate at each size, on each set.
    with hidden_progress(not progress):
        for size in options.image_sides:
            classifier = load_classifier(settings.path, settings.model, size)
            names, outputs = candidates(classifier.classes, settings.path, options.classes, known)
            absent = names[len(outputs) :]
            # Report absent classes once, before the first result.
            if progress and not found and absent:
                print(
                    f"the model does not have {len(absent):,} of the classes, whose images count "
                    f"as wrong: {some_of(absent)}"
                )
            for name, images in sets.items():
                # Number the labels like the candidates; labels of absent classes come last.
                images = with_classes_of(images, names, origin)
                found.append(accuracy(name, images, classifier, outputs, options))
                if progress:
                    print(found[-1], flush=True)
    # Write the results.
    result = EvaluationResult(tuple(found), absent)
    if options.results is not None:
        values = {"settings": to_dict(settings, stored_only=True), **dataclasses.asdict(result)}
        write_results(options.results, values)
    return result


@torch.inference_mode()
def accuracy(
    name: str,
    images: ImageSet,
    classifier: ImageClassifier,
    outputs: torch.Tensor,
    options: EvaluationOptions,
) -> Accuracy:
    """Return the accuracy of the classifier on one set.

    Args:
        name: of the set.
        images: with labels that are indices into ``outputs``; a label from K on is never right.
        classifier: the model.
        outputs: int64 [K], indices of the outputs to choose among.
        options: batch size, workers and crop.

    Raises:
        DataError: all images are damaged, or one is and damaged images are not skipped.
    """
    # Count the ranks of the right classes over all images.
    started = time.monotonic()
    transform = classifier.transform.with_eval_ratio(options.eval_crop_ratio)
    damaged = damaged_images(options.skip_damaged_images)
    batches = ImageBatches(images, transform, options.batch_size, damaged=damaged)
    count = min(TOP, len(outputs))
    right = np.zeros(count, dtype=np.int64)  # number of images whose class has rank 1, 2, ...
    for batch in loaded(batches, name, options.num_workers):
        logits = classifier.outputs(batch.images).logits.cpu()
        best = logits[:, outputs].topk(count).indices  # [B, count]
        right += (best == batch.labels[:, None]).sum(0).numpy()
    # Damaged images do not count.
    whole = len(images) - (len(damaged) if damaged is not None else 0)
    if not whole:
        raise DataError(f"{images.origin}: {name}: all of its images are damaged")
    # Add up the ranks: top-k counts all ranks up to k.
    percent = 100 * right.cumsum() / whole
    return Accuracy(
        name,
        str(images.origin),
        transform.sides,
        whole,
        float(percent[0]),
        float(percent[-1]) if len(outputs) > TOP else None,
        time.monotonic() - started,
        len(images) - whole,
    )
