"""Top-1 and top-5 accuracy of an image classifier on sets of images, at one or more sizes."""

import dataclasses
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from relu_nmt.config import to_dict
from relu_nmt.errors import DataError
from relu_nmt.io.progress_bar import hidden_progress
from relu_nmt.io.text_lines import read_lines
from relu_nmt.recipes.image_settings import EvaluateImagesSettings as Settings
from relu_nmt.recipes.image_settings import EvaluationOptions
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
    """How often a classifier is right on a set of images.

    Args:
        set: name of the set.
        data: folder or file of its images.
        image_size: height and width that the model read, in pixels.
        images: number of images.
        top1: percent whose class has the highest score.
        top5: percent whose class is among the five with the highest scores; None if there are no
            more than five.
        seconds: time that it took.
        damaged: images that could not be decoded and are not counted.
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
    """All that was found.

    Args:
        accuracies: of each set, at each size.
        absent: classes of ``--classes`` that the model does not have.
    """

    accuracies: tuple[Accuracy, ...]
    absent: tuple[str, ...]


@dataclass(frozen=True)
class Candidates:
    """The classes to choose among.

    Args:
        names: of all that are asked for.
        outputs: int64 [K], the model's outputs for those that it has.
        absent: those that it does not have.
        origin: who names them, for messages.
    """

    names: tuple[str, ...]
    outputs: torch.Tensor
    absent: tuple[str, ...]
    origin: str

    @classmethod
    def among(
        cls, classes: Sequence[str], checkpoint: str, file: str | None, known: Collection[str]
    ) -> "Candidates":
        """Return the classes that a file names, or all.

        Args:
            classes: the model's.
            checkpoint: its path.
            file: a class a line; what follows a space is a remark, unless the model or the images
                have a class of the whole name.
            known: the classes of the images.

        Raises:
            DataError: the file cannot be read, or names none of the model's classes.
        """
        number = {composed(name): index for index, name in enumerate(classes)}
        if file is None:
            return cls(tuple(classes), torch.arange(len(classes)), (), checkpoint)
        lines = [composed(line.strip()) for line in read_lines(file)]
        whole = {*number, *known}
        found = [line if line in whole else line.split()[0] for line in lines if line]
        # Those that the model has come first, in the order of its outputs that are read.
        present = [name for name in dict.fromkeys(found) if name in number]
        absent = [name for name in dict.fromkeys(found) if name not in number]
        if not present:
            raise DataError(f"--classes {file}: none of its lines is a class of {checkpoint}")
        outputs = torch.tensor([number[name] for name in present])
        return cls((*present, *absent), outputs, tuple(absent), f"--classes {file}")


def run(settings: Settings, *, progress: bool = True) -> EvaluationResult:
    """Evaluate a classifier.

    Args:
        settings: the checkpoint, the images and how to evaluate.
        progress: print the results on standard output, and progress bars on standard error.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or cannot work at an image size.
        ConfigError: settings that do not fit the model or the device.
        DataError: images are missing, damaged or of other classes; a file cannot be read or
            written.
    """
    options = settings.options
    check_writable("--results", options.results)
    sets = evaluation_sets(options.data)
    known = {name for images in sets.values() for name in images.classes}
    found: list[Accuracy] = []
    if progress:
        say_left_out(sets.values())
    with hidden_progress(not progress):
        for size in options.image_sides:
            classifier = load_classifier(settings.path, settings.model, size)
            candidates = Candidates.among(classifier.classes, settings.path, options.classes, known)
            if progress and not found:
                _say_absent(candidates.absent)
            for name, images in sets.items():
                images = with_classes_of(images, candidates.names, candidates.origin)
                found.append(accuracy(name, images, classifier, candidates.outputs, options))
                if progress:
                    print(found[-1], flush=True)
    result = EvaluationResult(tuple(found), candidates.absent)
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
    """Return how often the classifier is right on one set.

    Args:
        name: of the set.
        images: whose labels count the ``outputs``; another label is never right.
        classifier: the model.
        outputs: int64 [K], which of its outputs to choose among.
        options: how to read the images.

    Raises:
        DataError: an image is damaged and not to be left out, or all of them are.
    """
    started = time.monotonic()
    transform = classifier.transform.with_eval_ratio(options.eval_crop_ratio)
    damaged = damaged_images(options.skip_damaged_images)
    batches = ImageBatches(images, transform, options.batch_size, damaged=damaged)
    count = min(TOP, len(outputs))
    right = np.zeros(count, dtype=np.int64)  # by the place of the right class, from the best
    for batch in loaded(batches, name, options.num_workers):
        logits = classifier.outputs(batch.images).logits.cpu()
        best = logits[:, outputs].topk(count).indices
        right += (best == batch.labels[:, None]).sum(0).numpy()
    whole = len(images) - (len(damaged) if damaged is not None else 0)
    if not whole:
        raise DataError(f"{images.store.origin}: {name}: all of its images are damaged")
    percent = 100 * right.cumsum() / whole
    return Accuracy(
        name,
        str(images.store.origin),
        transform.sides,
        whole,
        float(percent[0]),
        float(percent[-1]) if len(outputs) > TOP else None,
        time.monotonic() - started,
        len(images) - whole,
    )


def _say_absent(absent: Sequence[str]) -> None:
    if absent:
        print(
            f"the model does not have {len(absent):,} of the classes, whose images count as "
            f"wrong: {some_of(absent)}"
        )
