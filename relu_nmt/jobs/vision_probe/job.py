"""Probe the frozen features of an image model: k-NN, few-shot ridge regression, linear probe."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.config import to_dict
from relu_nmt.errors import DataError, TrainingError, counted
from relu_nmt.io.safe_write import check_writable
from relu_nmt.io.work import hidden_progress
from relu_nmt.jobs.vision_evaluate.job import (
    damaged_images,
    load_classifier,
    loaded,
    say_left_out,
    write_results,
)
from relu_nmt.jobs.vision_evaluate.settings import EVALUATION_BATCH
from relu_nmt.jobs.vision_probe.settings import JOINED_BLOCKS
from relu_nmt.jobs.vision_probe.settings import ProbeImagesSettings as Settings
from relu_nmt.vision import probes
from relu_nmt.vision.images import ImageBatches, ImageSet, open_images, with_classes_of
from relu_nmt.vision.loading import ImageClassifier
from relu_nmt.vision.transforms import ImageTransform

LINEAR_BATCH = 1024
MOMENTUM = 0.9
LINEAR_STD = 0.01


def run(settings: Settings, *, progress: bool = True) -> list[dict[str, Any]]:
    """Probe the features of a checkpoint on each data set. Return accuracies in percent.

    ``top1`` of ridge regression is the mean of ``by_seed``. ``top5`` is None up to five classes.
    """
    check_writable("--results", settings.results)
    sets = []
    for train_path, test_path in zip(settings.train, settings.test, strict=True):
        sets.append(_data_set(train_path, test_path))
    if progress:
        say_left_out(itertools.chain.from_iterable(sets))
    with hidden_progress(not progress):
        classifier = load_classifier(settings.path, settings.model, settings.image_size)
        results: list[dict[str, Any]] = []
        method = {"knn": _knn, "ridge": _ridge, "linear": _linear}[settings.method]
        for path, (train, test) in zip(settings.test, sets, strict=True):
            accuracies = method(classifier, train, test, settings)
            top1, top5 = np.mean(accuracies, axis=0).tolist()
            results.append(
                {
                    "test": path,
                    "method": settings.method,
                    "classes": len(train.classes),
                    "train_images": len(train),
                    "test_images": len(test),
                    "top1": top1,
                    "top5": top5 if len(train.classes) > probes.TOP else None,
                    "by_seed": [top for top, _ in accuracies] if settings.method == "ridge" else [],
                }
            )
            if progress:
                _say_few(train, settings)
                print(_line(results[-1]), flush=True)
    mean = float(np.mean([result["top1"] for result in results]))
    if progress and len(results) > 1:
        print(f"mean of {len(results)} data sets: top-1 {mean:.2f}")
    if settings.results is not None:
        about = to_dict(settings, stored_only=True)
        write_results(settings.results, {"settings": about, "top1": mean, "results": results})
    return results


def _line(result: Mapping[str, Any]) -> str:
    by_seed = ", ".join(f"{value:.2f}" for value in result["by_seed"])
    seeds = f" ({by_seed})" if len(result["by_seed"]) > 1 else ""
    last = "" if result["top5"] is None else f", top-5 {result['top5']:.2f}"
    return (
        f"{result['test']}: {result['method']}: {counted(result['test_images'], 'image')} of "
        f"{counted(result['classes'], 'class')}: top-1 {result['top1']:.2f}{seeds}{last}"
    )


def _say_few(train: ImageSet, options: Settings) -> None:
    """Print the number of classes with fewer images than ``--shots``."""
    few = int((np.bincount(train.labels, minlength=len(train.classes)) < options.shots).sum())
    if options.method == "ridge" and few:
        print(
            f"{train.origin}: {few:,} of {len(train.classes):,} classes have fewer than "
            f"--shots {options.shots} images; all of theirs are taken"
        )


def _data_set(train_path: str, test_path: str) -> tuple[ImageSet, ImageSet]:
    """Return the training set, and the test set: the only one of its path besides train."""
    train, *_ = open_images(train_path).values()
    first, *further = open_images(test_path).values()
    if len(further) > 1:
        names = ", ".join(images.name for images in (first, *further))
        raise DataError(f"--test {test_path}: holds {names}; give the path of one")
    test = further[0] if further else first
    # Number the test classes like the classes of the training set.
    return train, with_classes_of(test, train.classes, train_path)


def features_of_batch(classifier: ImageClassifier, images: Tensor, kind: str) -> Tensor:
    """Return float32 features [B, D] of normalized images [B, 3, Y, X], as ``--features``."""
    if kind == "last":
        return classifier.outputs(images).features.float()
    # Request the last blocks, or all of a smaller model.
    count = classifier.model.config.num_blocks
    last = range(max(0, count - JOINED_BLOCKS), count)
    return probes.joined_features(classifier.outputs(images, last))


def features_of(
    classifier: ImageClassifier,
    images: ImageSet,
    transform: ImageTransform,
    label: str,
    options: Settings,
) -> tuple[Tensor, Tensor, list[int]]:
    """Return features [N, D], float32, and classes [N] of undamaged images, and their indices."""
    size = options.batch_size or (LINEAR_BATCH if options.method == "linear" else EVALUATION_BATCH)
    damaged = damaged_images(options.skip_damaged_images)
    features: list[Tensor] = []
    labels: list[Tensor] = []
    ids: list[int] = []
    batches = ImageBatches(images, transform, size, damaged=damaged)
    # Keep the features on the device, [B, D] for each batch.
    for batch in loaded(batches, label, options.num_workers):
        features.append(features_of_batch(classifier, batch.images, options.features))
        labels.append(batch.labels.to(classifier.device))
        # Note the images that were read, since damaged ones are missing.
        ids += batch.ids.tolist()
    return torch.cat(features), torch.cat(labels), ids


def _knn(
    classifier: ImageClassifier, train: ImageSet, test: ImageSet, options: Settings
) -> list[list[float]]:
    transform = classifier.transform.with_eval_ratio(options.eval_crop_ratio)
    neighbors, labels, _ = features_of(classifier, train, transform, "train", options)
    queries, right, _ = features_of(classifier, test, transform, "test", options)
    scores = probes.neighbor_scores(
        neighbors, labels, queries, len(train.classes), options.neighbours, options.temperature
    )
    return [probes.percent_right(scores, right)]


def _ridge(
    classifier: ImageClassifier, train: ImageSet, test: ImageSet, options: Settings
) -> list[list[float]]:
    num_classes = len(train.classes)
    chosen = []
    for seed in options.seeds:
        chosen.append(probes.choose_shots(train.labels, num_classes, options.shots, seed))
    used = np.unique(np.concatenate(chosen))
    transform = classifier.transform.with_eval_ratio(options.eval_crop_ratio, squeeze=True)
    shots = train.subset(used, "train")
    features, labels, ids = features_of(classifier, shots, transform, "train", options)
    queries, right, _ = features_of(classifier, test, transform, "test", options)
    row_of = {int(used[number]): row for row, number in enumerate(ids)}
    accuracies = []
    for numbers in chosen:
        undamaged = [row_of[number] for number in numbers.tolist() if number in row_of]
        rows = torch.tensor(undamaged, device=features.device)
        scores = probes.ridge_scores(features[rows], labels[rows], queries, num_classes, options.l2)
        accuracies.append(probes.percent_right(scores, right))
    return accuracies


def _linear(
    classifier: ImageClassifier, train: ImageSet, test: ImageSet, options: Settings
) -> list[list[float]]:
    """Train a linear classifier on random crops, mirrored or not. Return its accuracies.

    Reference: Caron et al. 2021 (DINO), section 4.1: SGD with momentum .9 and without decay.
    """
    size = options.batch_size or LINEAR_BATCH
    transform = classifier.transform.with_eval_ratio(options.eval_crop_ratio)
    damaged = damaged_images(options.skip_damaged_images)
    batches = ImageBatches(train, transform, size, options.seed, damaged=damaged)
    # Make the classifier. A blank image gives the width of the features.
    torch.manual_seed(options.seed)
    blank = torch.zeros(1, 3, *transform.sides)
    width = features_of_batch(classifier, blank, options.features).size(1)
    head = nn.Linear(width, len(train.classes))
    nn.init.normal_(head.weight, std=LINEAR_STD)
    nn.init.zeros_(head.bias)
    head.to(classifier.device)
    optimizer = torch.optim.SGD(head.parameters(), options.lr, momentum=MOMENTUM)
    num_updates = 0
    total = options.epochs * batches.num_batches
    for epoch in range(1, options.epochs + 1):
        label = f"epoch {epoch} of {options.epochs}"
        for batch in loaded(batches, label, options.num_workers, epoch):
            for group in optimizer.param_groups:
                group["lr"] = options.lr * 0.5 * (1 + math.cos(math.pi * num_updates / total))
            # Copy the features: tensors of inference mode cannot enter a graph.
            features = features_of_batch(classifier, batch.images, options.features).clone()
            loss = F.cross_entropy(head(features), batch.labels.to(classifier.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            num_updates += 1
    queries, right, _ = features_of(classifier, test, transform, "test", options)
    with torch.no_grad():
        scores = head(queries.clone())
    if not scores.isfinite().all():
        raise TrainingError(f"--lr {options.lr:g}: scores are not finite; lower it")
    return [probes.percent_right(scores, right)]
