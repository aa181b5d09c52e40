"""Judge the frozen features of an image model: k-NN, few-shot ridge regression, linear probe."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.config import to_dict
from relu_nmt.errors import DataError, TrainingError
from relu_nmt.io.progress_bar import hidden_progress
from relu_nmt.recipes.image_settings import EVALUATION_BATCH, JOINED_BLOCKS, ProbeOptions
from relu_nmt.recipes.image_settings import ProbeImagesSettings as Settings
from relu_nmt.recipes.images import (
    damaged_images,
    load_classifier,
    loaded,
    say_left_out,
    write_results,
)
from relu_nmt.recipes.output_files import check_writable
from relu_nmt.vision.batches import ImageBatches, ImageTransform, SqueezingTransform
from relu_nmt.vision.images import ImageSet, open_images, with_classes_of
from relu_nmt.vision.loading import ImageClassifier
from relu_nmt.vision.probes import (
    choose_shots,
    joined_features,
    neighbour_scores,
    percent_right,
    ridge_scores,
)

LINEAR_BATCH = 1024
MOMENTUM = 0.9
LINEAR_STD = 0.01
TOP = 5


@dataclass(frozen=True)
class ProbeResult:
    """How well frozen features tell the classes of a data set apart.

    Args:
        test: the path of the images that are judged.
        method: ``knn``, ``ridge`` or ``linear``.
        classes: number of classes.
        train_images: images of ``--train``, of which ridge regression uses a few.
        test_images: images of ``--test``.
        top1: percent of the test images whose class has the highest score; a mean over the seeds.
        top5: percent whose class is among the five with the highest scores, likewise; None if
            there are no more than five.
        by_seed: top-1 of each seed of ridge regression.
    """

    test: str
    method: str
    classes: int
    train_images: int
    test_images: int
    top1: float
    top5: float | None
    by_seed: tuple[float, ...] = ()

    def __str__(self) -> str:
        seeds = ", ".join(f"{value:.2f}" for value in self.by_seed)
        seeds = f" ({seeds})" if len(self.by_seed) > 1 else ""
        top5 = "" if self.top5 is None else f", top-5 {self.top5:.2f}"
        images = f"{self.test_images:,} images of {self.classes:,} classes"
        return f"{self.test}: {self.method}: {images}: top-1 {self.top1:.2f}{seeds}{top5}"


def run(settings: Settings, *, progress: bool = True) -> list[ProbeResult]:
    """Judge the features of a checkpoint on each data set.

    Args:
        settings: the checkpoint, the images and the method.
        progress: print the result on standard output, and progress bars on standard error.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
        ConfigError: settings that do not fit the model or the device.
        DataError: images are missing, damaged or of other classes; the results cannot be written.
        TrainingError: the linear classifier diverges.
    """
    options = settings.options
    check_writable("--results", options.results)
    sets = [_data_set(*paths) for paths in zip(options.train, options.test, strict=True)]
    if progress:
        say_left_out(images for pair in sets for images in pair)
    with hidden_progress(not progress):
        classifier = load_classifier(settings.path, settings.model, options.image_size)
        results = []
        for path, (train, test) in zip(options.test, sets, strict=True):
            results.append(_judged(path, classifier, train, test, options))
            if progress:
                _say_few(train, options)
                print(results[-1], flush=True)
    mean = float(np.mean([result.top1 for result in results]))
    if progress and len(results) > 1:
        print(f"mean of {len(results)} data sets: top-1 {mean:.2f}")
    if options.results is not None:
        values = {"settings": to_dict(settings, stored_only=True), "top1": mean}
        values["results"] = [dataclasses.asdict(result) for result in results]
        write_results(options.results, values)
    return results


def _say_few(train: ImageSet, options: ProbeOptions) -> None:
    """Print how many classes have fewer images than ``--shots`` asks for."""
    few = int((np.bincount(train.labels, minlength=len(train.classes)) < options.shots).sum())
    if options.method == "ridge" and few:
        print(
            f"{train.store.origin}: {few:,} of {len(train.classes):,} classes have fewer than "
            f"--shots {options.shots} images; all of theirs are taken"
        )


def _data_set(train_path: str, test_path: str) -> tuple[ImageSet, ImageSet]:
    train, *_ = open_images(train_path).values()
    return train, with_classes_of(_test_set(test_path), train.classes, train_path)


def _judged(
    path: str, classifier: ImageClassifier, train: ImageSet, test: ImageSet, options: ProbeOptions
) -> ProbeResult:
    method = {"knn": _knn, "ridge": _ridge, "linear": _linear}[options.method]
    accuracies = method(classifier, train, test, options)
    top1, top5 = np.mean(accuracies, axis=0).tolist()
    by_seed = tuple(own[0] for own in accuracies) if options.method == "ridge" else ()
    counts = len(train.classes), len(train), len(test)
    top5 = top5 if len(train.classes) > TOP else None
    return ProbeResult(path, options.method, *counts, top1, top5, by_seed)


def _test_set(path: str) -> ImageSet:
    """Return the set of a path, or the one beside train.

    Raises:
        DataError: there are several.
    """
    first, *others = open_images(path).values()
    if len(others) > 1:
        names = ", ".join(images.name for images in (first, *others))
        raise DataError(f"--test {path}: holds {names}; give the path of one")
    return others[0] if others else first


def features_of_batch(classifier: ImageClassifier, images: Tensor, kind: str) -> Tensor:
    """Return features [B, D], float32, on the classifier's device.

    Args:
        classifier: has the model.
        images: [B, 3, Y, X], normalised.
        kind: ``last`` or ``joined``, see :class:`ProbeOptions`.
    """
    if kind == "last":
        return classifier.outputs(images).features.float()
    count = classifier.model.config.num_blocks
    last = range(max(0, count - JOINED_BLOCKS), count)
    return joined_features(classifier.outputs(images, last))


def features_of(
    classifier: ImageClassifier,
    images: ImageSet,
    transform: ImageTransform,
    label: str,
    options: ProbeOptions,
) -> tuple[Tensor, Tensor, list[int]]:
    """Return features [N, D], float32, and classes [N] of images, on the classifier's device.

    Args:
        classifier: has the model.
        images: the images.
        transform: brings them to the model's size.
        label: what to call them in the progress bar.
        options: how to read them, and which features.

    Returns:
        also the ids of the N images, which may lack damaged ones.

    Raises:
        DataError: an image is damaged and not to be left out, or all of them are.
    """
    size = options.batch_size or (LINEAR_BATCH if options.method == "linear" else EVALUATION_BATCH)
    damaged = damaged_images(options.skip_damaged_images)
    features, labels, ids = [], [], list[int]()
    batches = ImageBatches(images, transform, size, damaged=damaged)
    for batch in loaded(batches, label, options.num_workers):
        features.append(features_of_batch(classifier, batch.images, options.features))
        labels.append(batch.labels.to(classifier.device))
        ids += batch.ids.tolist()
    if not ids:
        raise DataError(f"{images.store.origin}: {label}: all of its images are damaged")
    return torch.cat(features), torch.cat(labels), ids


def _knn(
    classifier: ImageClassifier, train: ImageSet, test: ImageSet, options: ProbeOptions
) -> list[list[float]]:
    transform = classifier.transform.with_eval_ratio(options.eval_crop_ratio)
    (known, labels, _), (queries, right, _) = (
        features_of(classifier, images, transform, name, options)
        for name, images in (("train", train), ("test", test))
    )
    scores = neighbour_scores(
        known, labels, queries, len(train.classes), options.neighbours, options.temperature
    )
    return [percent_right(scores, right, (1, TOP))]


def _ridge(
    classifier: ImageClassifier, train: ImageSet, test: ImageSet, options: ProbeOptions
) -> list[list[float]]:
    """Return the accuracies of each seed; of the training images only those chosen are read."""
    num_classes = len(train.classes)
    chosen = [
        choose_shots(train.labels, num_classes, options.shots, seed) for seed in options.seeds
    ]
    used = np.unique(np.concatenate(chosen))
    transform = SqueezingTransform(
        classifier.transform.with_eval_ratio(options.eval_crop_ratio).config,
        classifier.transform.sides,
    )
    (known, labels, ids), (queries, right, _) = (
        features_of(classifier, images, transform, name, options)
        for name, images in (("train", train.subset(used, "train")), ("test", test))
    )
    row_of = {int(used[number]): row for row, number in enumerate(ids)}
    found = []
    for numbers in chosen:
        places = [row_of.get(number, -1) for number in numbers.tolist()]
        rows = torch.tensor([row for row in places if row >= 0], device=known.device)
        scores = ridge_scores(known[rows], labels[rows], queries, num_classes, options.l2)
        found.append(percent_right(scores, right, (1, TOP)))
    return found


def _linear(
    classifier: ImageClassifier, train: ImageSet, test: ImageSet, options: ProbeOptions
) -> list[list[float]]:
    """Train a linear classifier on random crops, mirrored or not; return its accuracies.

    Raises:
        TrainingError: it diverges.

    Reference: Caron et al. 2021 (DINO), section 4.1: SGD with momentum .9 and without decay.
    """
    size = options.batch_size or LINEAR_BATCH
    transform = classifier.transform.with_eval_ratio(options.eval_crop_ratio)
    damaged = damaged_images(options.skip_damaged_images)
    batches = ImageBatches(train, transform, size, options.seed, damaged=damaged)
    torch.manual_seed(options.seed)
    blank = torch.zeros(1, 3, *transform.sides)
    width = features_of_batch(classifier, blank, options.features).size(1)
    head = nn.Linear(width, len(train.classes))
    nn.init.normal_(head.weight, std=LINEAR_STD)
    nn.init.zeros_(head.bias)
    head.to(classifier.device)
    optimizer = torch.optim.SGD(head.parameters(), options.lr, momentum=MOMENTUM)
    done, total = 0, options.epochs * batches.num_batches
    for epoch in range(1, options.epochs + 1):
        label = f"epoch {epoch} of {options.epochs}"
        for batch in loaded(batches, label, options.num_workers, epoch):
            for group in optimizer.param_groups:
                group["lr"] = options.lr * 0.5 * (1 + math.cos(math.pi * done / total))
            # A copy, for what was computed without gradients cannot enter a graph.
            features = features_of_batch(classifier, batch.images, options.features).clone()
            loss = F.cross_entropy(head(features), batch.labels.to(classifier.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
    queries, right, _ = features_of(classifier, test, transform, "test", options)
    with torch.no_grad():
        scores = head(queries.clone())
    if not scores.isfinite().all():
        raise TrainingError(f"--lr {options.lr:g}: scores are not finite; lower it")
    return [percent_right(scores, right, (1, TOP))]
