"""Probe the frozen features of an image model: k-NN, few-shot ridge regression, linear probe."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.config import to_dict
from relu_nmt.errors import DataError, TrainingError, counted
from relu_nmt.io.progress import hidden_progress
from relu_nmt.io.safe_write import check_writable, json_text, write_output
from relu_nmt.jobs.vision_evaluate.job import (
    damaged_images,
    load_classifier,
    loaded,
    say_left_out,
)
from relu_nmt.jobs.vision_evaluate.settings import EVALUATION_BATCH
from relu_nmt.jobs.vision_probe.settings import JOINED_BLOCKS
from relu_nmt.jobs.vision_probe.settings import ProbeImagesSettings as Settings
from relu_nmt.vision import probes
from relu_nmt.vision.images import (
    ImageBatches,
    ImageSet,
    open_images,
    sets_besides_train,
    with_classes_of,
)
from relu_nmt.vision.loading import ImageClassifier
from relu_nmt.vision.transforms import ImageTransform

LINEAR_BATCH = 1024
MOMENTUM = 0.9
LINEAR_STD = 0.01


def run(settings: Settings, *, progress: bool = True) -> list[dict[str, Any]]:
    """Probe the features of a checkpoint on each data set. Return accuracies in percent.

    ``top1`` of ridge regression is the mean of ``by_seed``. ``top5`` is None for five classes or
    fewer.
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
        methods = {"knn": Probe.knn, "ridge": Probe.ridge, "linear": Probe.linear}
        for path, (train, test) in zip(settings.test, sets, strict=True):
            accuracies = methods[settings.method](Probe(classifier, train, test, settings))
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
        values = {"settings": to_dict(settings, stored_only=True), "top1": mean}
        text = json_text({**values, "results": results})
        write_output("--results", settings.results, text)
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
    """Return the training set, and the test set: the only set of its path besides train."""
    train, *_ = open_images(train_path).values()
    test, *further = sets_besides_train(test_path)
    if further:
        names = ", ".join(open_images(test_path))
        raise DataError(f"--test {test_path}: holds {names}; give the path of one")
    return train, with_classes_of(test, train.classes, train_path)


@dataclass
class Probe:
    """The methods of a probe, each of which returns top-1 and top-5 accuracies in percent."""

    classifier: ImageClassifier
    train: ImageSet
    test: ImageSet
    options: Settings

    def knn(self) -> list[list[float]]:
        """Let the nearest neighbors vote."""
        options = self.options
        transform = self.transform()
        neighbors, labels, _ = self._features(self.train, transform, "train")
        queries, right, _ = self._features(self.test, transform, "test")
        num_classes = len(self.train.classes)
        scores = probes.neighbor_scores(
            neighbors, labels, queries, num_classes, options.neighbors, options.temperature
        )
        return [probes.percent_right(scores, right)]

    def ridge(self) -> list[list[float]]:
        """Fit a linear classifier to a few images of each class, in closed form, for each seed."""
        options = self.options
        num_classes = len(self.train.classes)
        chosen = []
        for seed in options.seeds:
            chosen.append(probes.choose_shots(self.train.labels, num_classes, options.shots, seed))
        used = np.unique(np.concatenate(chosen))
        transform = self.transform(squeeze=True)
        shots = self.train.subset(used, "train")
        features, labels, ids = self._features(shots, transform, "train")
        queries, right, _ = self._features(self.test, transform, "test")
        row_of = {int(used[number]): row for row, number in enumerate(ids)}
        accuracies = []
        for numbers in chosen:
            undamaged = [row_of[number] for number in numbers.tolist() if number in row_of]
            rows = torch.tensor(undamaged, device=features.device)
            scores = probes.ridge_scores(
                features[rows], labels[rows], queries, num_classes, options.l2
            )
            accuracies.append(probes.percent_right(scores, right))
        return accuracies

    def linear(self) -> list[list[float]]:
        """Train a linear classifier on random crops, mirrored or not.

        Reference: Caron et al. 2021 (DINO), section 4.1: SGD with momentum .9 and without decay.
        """
        options = self.options
        transform = self.transform()
        batches = self._batches(self.train, transform, options.seed)
        # Make the classifier. A blank image gives the width of the features.
        torch.manual_seed(options.seed)
        blank = torch.zeros(1, 3, *transform.sides)
        head = nn.Linear(self._features_of_batch(blank).size(1), len(self.train.classes))
        nn.init.normal_(head.weight, std=LINEAR_STD)
        nn.init.zeros_(head.bias)
        head.to(self.classifier.device)
        optimizer = torch.optim.SGD(head.parameters(), options.lr, momentum=MOMENTUM)
        num_updates = 0
        total = options.epochs * batches.num_batches
        for epoch in range(1, options.epochs + 1):
            label = f"epoch {epoch} of {options.epochs}"
            for batch in loaded(batches, label, options.num_workers, epoch):
                for group in optimizer.param_groups:
                    group["lr"] = options.lr * 0.5 * (1 + math.cos(math.pi * num_updates / total))
                # Copy the features: tensors of inference mode cannot enter a graph.
                features = self._features_of_batch(batch.images).clone()
                loss = F.cross_entropy(head(features), batch.labels.to(self.classifier.device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                num_updates += 1
        queries, right, _ = self._features(self.test, transform, "test")
        with torch.no_grad():
            scores = head(queries.clone())
        if not scores.isfinite().all():
            raise TrainingError(f"--lr {options.lr:g}: scores are not finite; lower it")
        return [probes.percent_right(scores, right)]

    def transform(self, squeeze: bool = False) -> ImageTransform:
        """Return the map from pictures to pixels, with the crop of the options."""
        return self.classifier.transform.with_eval_ratio(self.options.eval_crop_ratio, squeeze)

    def _batches(
        self, images: ImageSet, transform: ImageTransform, seed: int | None = None
    ) -> ImageBatches:
        default = LINEAR_BATCH if self.options.method == "linear" else EVALUATION_BATCH
        damaged = damaged_images(self.options.skip_damaged_images)
        size = self.options.batch_size or default
        return ImageBatches(images, transform, size, seed, report_damaged=damaged)

    def _features_of_batch(self, images: Tensor) -> Tensor:
        """Return float32 features [B, D] of images [B, 3, Y, X], as ``--features`` says."""
        if self.options.features == "last":
            return self.classifier.outputs(images).features.float()
        # Request the last blocks, or all of a smaller model.
        count = self.classifier.model.config.num_blocks
        last = range(max(0, count - JOINED_BLOCKS), count)
        return probes.joined_features(self.classifier.outputs(images, last))

    def _features(
        self, images: ImageSet, transform: ImageTransform, label: str
    ) -> tuple[Tensor, Tensor, list[int]]:
        """Return features [N, D] and classes [N] of undamaged images, and their indices."""
        features: list[Tensor] = []
        labels: list[Tensor] = []
        ids: list[int] = []
        # Keep the features on the device, [B, D] for each batch.
        for batch in loaded(self._batches(images, transform), label, self.options.num_workers):
            features.append(self._features_of_batch(batch.images))
            labels.append(batch.labels.to(self.classifier.device))
            # Remember which images were read, since damaged ones are missing.
            ids += batch.ids.tolist()
        return torch.cat(features), torch.cat(labels), ids
