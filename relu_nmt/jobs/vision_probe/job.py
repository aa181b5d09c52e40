"""Probe the frozen features of an image model: k-NN, few-shot ridge regression, linear probe."""

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
from relu_nmt.vision.base import NORM_EPS, VisionOutput
from relu_nmt.vision.images import ImageBatches, ImageSet, open_images, with_classes_of
from relu_nmt.vision.loading import ImageClassifier
from relu_nmt.vision.transforms import ImageTransform

TOP = 5
QUERIES_AT_ONCE = 1024
STD_MARGIN = 1e-5
CONSTANT_FEATURE = 100.0
LINEAR_BATCH = 1024
MOMENTUM = 0.9
LINEAR_STD = 0.01


def run(settings: Settings, *, progress: bool = True) -> list[dict[str, Any]]:
    """Probe the features of a checkpoint on each data set. Return the results as in the file.

    Accuracies are in percent. ``top1`` is a mean over the seeds of ridge regression. ``by_seed``
    has the accuracy of each seed. ``top5`` is None with five classes or fewer.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
        ConfigError: settings that do not fit the model or the device.
        DataError: images are missing, damaged or of other classes. The results cannot be written.
        TrainingError: the linear classifier diverges.
    """
    # Open the images.
    check_writable("--results", settings.results)
    sets = [_data_set(*paths) for paths in zip(settings.train, settings.test, strict=True)]
    if progress:
        say_left_out(images for pair in sets for images in pair)
    # Probe one data set after the other.
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
                    "top5": top5 if len(train.classes) > TOP else None,
                    "by_seed": [top for top, _ in accuracies] if settings.method == "ridge" else [],
                }
            )
            if progress:
                _say_few(train, settings)
                print(_line(results[-1]), flush=True)
    # Average the accuracies, and write the results.
    mean = float(np.mean([result["top1"] for result in results]))
    if progress and len(results) > 1:
        print(f"mean of {len(results)} data sets: top-1 {mean:.2f}")
    if settings.results is not None:
        about = to_dict(settings, stored_only=True)
        write_results(settings.results, {"settings": about, "top1": mean, "results": results})
    return results


def _line(result: Mapping[str, Any]) -> str:
    """Return a result as a line of the output."""
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
    return joined_features(classifier.outputs(images, last))


def joined_features(output: VisionOutput) -> Tensor:
    """Return the features of all requested blocks side by side, [B, blocks * D].

    The features of a block are its class token, or the mean of the patches if it has none. Each
    token is first normalized to mean 0 and variance 1 over its channels.

    Reference: Koohpayegani and Pirsiavash 2024, "SimA", section 4.3: XCiT's last four blocks, two
    of them class attention. Caron et al. 2021 (DINO): ViT's last four. Deviation: the papers'
    final norm has gains, which the probe's weights can learn.
    """
    means = []
    for index in sorted(output.intermediate.keys() | output.class_tokens.keys()):
        token = output.class_tokens.get(index)
        # Take the class token or all patches: [B, 1, D] or [B, N, D].
        tokens = output.intermediate[index].flatten(2).mT if token is None else token[:, None]
        # Normalize each token, then average over tokens: [B, D].
        means.append(F.layer_norm(tokens.float(), tokens.shape[-1:], eps=NORM_EPS).mean(1))
    return torch.cat(means, 1)


def features_of(
    classifier: ImageClassifier,
    images: ImageSet,
    transform: ImageTransform,
    label: str,
    options: Settings,
) -> tuple[Tensor, Tensor, list[int]]:
    """Return features [N, D], float32, and classes [N] of images, on the classifier's device.

    Also return the indices of these N images, which exclude damaged ones.
    """
    size = options.batch_size or (LINEAR_BATCH if options.method == "linear" else EVALUATION_BATCH)
    damaged = damaged_images(options.skip_damaged_images)
    features, labels, ids = [], [], list[int]()
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
    """Return the accuracies of nearest neighbours."""
    transform = classifier.transform.with_eval_ratio(options.eval_crop_ratio)
    # Compute the features of both sets with the crop of evaluation.
    (neighbors, labels, _), (queries, right, _) = (
        features_of(classifier, images, transform, name, options)
        for name, images in (("train", train), ("test", test))
    )
    scores = neighbor_scores(
        neighbors, labels, queries, len(train.classes), options.neighbours, options.temperature
    )
    return [percent_right(scores, right)]


def neighbor_scores(
    train: Tensor,
    labels: Tensor,
    test: Tensor,
    num_classes: int,
    neighbours: int = 20,
    temperature: float = 0.07,
) -> Tensor:
    """Return scores [M, C]: each nearest neighbor votes exp(cosine / temperature) for its class.

    Votes are divided by the nearest neighbor's vote, so no temperature is too small. The features
    are ``train`` [N, D], of the classes ``labels`` [N] int64, and ``test`` [M, D].

    Reference: Wu et al. 2018, "Unsupervised feature learning via non-parametric instance
    discrimination", section 3.4. Caron et al. 2021 (DINO), appendix F.1.

    Example:
        >>> known, test = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[5.0, 0.0]])
        >>> scores = neighbor_scores(known, torch.tensor([2, 0]), test, 3, temperature=1.0)
        >>> [[round(score, 3) for score in row] for row in scores.tolist()]
        [[0.368, 0.0, 1.0]]
    """
    # Normalize the rows, so that dot products are cosines.
    train, test = F.normalize(train.float()), F.normalize(test.float())
    count = min(neighbours, len(train))
    blocks = []
    # Compare some queries at a time, to bound the memory.
    for queries in test.split(QUERIES_AT_ONCE):
        best = (queries @ train.T).topk(count)  # cosines, [queries, count]
        scores = torch.zeros(len(queries), num_classes, device=test.device)
        # Subtract the best cosine, so that no exponent is above 0: [queries, count].
        votes = ((best.values - best.values[:, :1]) / temperature).exp()
        # Add each vote to the class of its neighbor: [queries, C].
        blocks.append(scores.scatter_add_(1, labels[best.indices], votes))
    return torch.cat(blocks)


def _ridge(
    classifier: ImageClassifier, train: ImageSet, test: ImageSet, options: Settings
) -> list[list[float]]:
    """Return the accuracies of ridge regression for each seed."""
    num_classes = len(train.classes)
    # Choose the images of each seed, and compute the features of these only.
    chosen = [
        choose_shots(train.labels, num_classes, options.shots, seed) for seed in options.seeds
    ]
    used = np.unique(np.concatenate(chosen))
    transform = classifier.transform.with_eval_ratio(options.eval_crop_ratio, squeeze=True)
    (features, labels, ids), (queries, right, _) = (
        features_of(classifier, images, transform, name, options)
        for name, images in (("train", train.subset(used, "train")), ("test", test))
    )
    # Solve for each seed, without its damaged images.
    row_of = {int(used[number]): row for row, number in enumerate(ids)}
    accuracies = []
    for numbers in chosen:
        undamaged = [row_of[number] for number in numbers.tolist() if number in row_of]
        rows = torch.tensor(undamaged, device=features.device)
        scores = ridge_scores(features[rows], labels[rows], queries, num_classes, options.l2)
        accuracies.append(percent_right(scores, right))
    return accuracies


def choose_shots(labels: np.ndarray, num_classes: int, shots: int, seed: int) -> np.ndarray:
    """Draw ``shots`` images of each class, or all of a smaller class. Return their indices."""
    generator = np.random.default_rng(seed)
    # Shuffle the images of each class, and keep the first ones.
    return np.concatenate(
        [generator.permutation(np.flatnonzero(labels == c))[:shots] for c in range(num_classes)]
    )


def ridge_scores(
    shots: Tensor, labels: Tensor, test: Tensor, num_classes: int, l2: float = 1024.0
) -> Tensor:
    """Return scores [M, C] of a linear classifier, (X^T X + l2 I)^-1 X^T Y in closed form.

    X holds the features ``shots`` [N, D] minus their mean, divided by their standard deviation (+
    1e-5), and a last column of 100. Y is 1 at the class in ``labels`` [N] int64 and -1 elsewhere.
    The features ``test`` [M, D] are mapped alike. It computes in float64.

    Reference: Dosovitskiy et al. 2021, "An image is worth 16x16 words", section 4.1 (few-shot
    accuracies), with the constants of Big Vision's public few-shot evaluation.
    """
    shots, test = shots.double(), test.double()
    # Measure mean and deviation on the shots alone, [D] each.
    mean, std = shots.mean(0), shots.std(0, correction=0) + STD_MARGIN

    def whitened(features: Tensor) -> Tensor:
        return F.pad((features - mean) / std, (0, 1), value=CONSTANT_FEATURE)

    # Append the constant to the features, [N, D + 1], and encode classes, [N, C].
    x, y = whitened(shots), 2 * F.one_hot(labels, num_classes).double() - 1
    gram = x.T @ x
    # Add the penalty to the diagonal of [D + 1, D + 1].
    gram.diagonal().add_(l2)
    # Solve for the weights [D + 1, C], and apply them to the test features.
    return whitened(test) @ torch.linalg.solve(gram, x.T @ y)


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
    # Train it with a learning rate that falls to 0 as a cosine.
    done, total = 0, options.epochs * batches.num_batches
    for epoch in range(1, options.epochs + 1):
        label = f"epoch {epoch} of {options.epochs}"
        for batch in loaded(batches, label, options.num_workers, epoch):
            for group in optimizer.param_groups:
                group["lr"] = options.lr * 0.5 * (1 + math.cos(math.pi * done / total))
            # Copy the features: tensors of inference mode cannot enter a graph.
            features = features_of_batch(classifier, batch.images, options.features).clone()
            loss = F.cross_entropy(head(features), batch.labels.to(classifier.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
    # Test it.
    queries, right, _ = features_of(classifier, test, transform, "test", options)
    with torch.no_grad():
        scores = head(queries.clone())
    if not scores.isfinite().all():
        raise TrainingError(f"--lr {options.lr:g}: scores are not finite; lower it")
    return [percent_right(scores, right)]


def percent_right(scores: Tensor, labels: Tensor) -> list[float]:
    """Return top-1 and top-5 accuracy in percent, from scores [M, C] and labels [M]."""
    best = scores.topk(min(TOP, scores.size(1))).indices
    right = (best == labels[:, None]).double().mean(0).cumsum(0).mul(100).tolist()
    return [right[0], right[-1]]
