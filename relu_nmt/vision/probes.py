"""Probes of frozen features: nearest neighbours, and ridge regression from a few examples."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from relu_nmt.vision.base import NORM_EPS, VisionOutput

STD_MARGIN = 1e-5
CONSTANT_FEATURE = 100.0
QUERIES_AT_ONCE = 1024


def neighbour_scores(
    train: Tensor,
    labels: Tensor,
    test: Tensor,
    num_classes: int,
    neighbours: int = 20,
    temperature: float = 0.07,
) -> Tensor:
    """Return scores [M, C]: each nearest neighbour votes exp(cosine / temperature) for its class.

    Votes are divided by that of the nearest neighbour, so no temperature is too small.

    Args:
        train: features [N, D].
        labels: classes [N] int64 of ``train``.
        test: features [M, D].
        num_classes: C.
        neighbours: number of voters; at most N.
        temperature: of the votes.

    Reference: Wu et al. 2018, "Unsupervised feature learning via non-parametric instance
    discrimination", section 3.4; Caron et al. 2021 (DINO), appendix F.1.

    Example:
        >>> known, test = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[5.0, 0.0]])
        >>> scores = neighbour_scores(known, torch.tensor([2, 0]), test, 3, temperature=1.0)
        >>> [[round(score, 3) for score in row] for row in scores.tolist()]
        [[0.368, 0.0, 1.0]]
    """
    train, test = F.normalize(train.float()), F.normalize(test.float())
    count = min(neighbours, len(train))
    found = []
    for queries in test.split(QUERIES_AT_ONCE):
        best = (queries @ train.T).topk(count)  # cosines, [queries, count]
        scores = torch.zeros(len(queries), num_classes, device=test.device)
        votes = ((best.values - best.values[:, :1]) / temperature).exp()
        found.append(scores.scatter_add_(1, labels[best.indices], votes))
    return torch.cat(found)


def joined_features(output: VisionOutput) -> Tensor:
    """Return the features of all requested blocks side by side, [B, blocks * D].

    The features of a block are its class token, or the mean of the patches if it has none. Each
    token is first normalised to mean 0 and variance 1 over its channels.

    Reference: Koohpayegani and Pirsiavash 2024, "SimA", section 4.4: XCiT's last four blocks, two
    of them class attention; Caron et al. 2021 (DINO): ViT's last four. Deviation: the papers'
    final norm has gains, which the probe's weights can learn.
    """
    found = []
    for index in sorted(output.intermediate.keys() | output.class_tokens.keys()):
        token = output.class_tokens.get(index)
        tokens = output.intermediate[index].flatten(2).mT if token is None else token[:, None]
        found.append(F.layer_norm(tokens.float(), tokens.shape[-1:], eps=NORM_EPS).mean(1))
    return torch.cat(found, 1)


def choose_shots(labels: np.ndarray, num_classes: int, shots: int, seed: int) -> np.ndarray:
    """Draw ``shots`` images of each class, or all of a smaller class; return their indices.

    Args:
        labels: [N] int64.
        num_classes: C.
        shots: images of a class.
        seed: of the choice.
    """
    generator = np.random.default_rng(seed)
    return np.concatenate(
        [generator.permutation(np.flatnonzero(labels == c))[:shots] for c in range(num_classes)]
    )


def ridge_scores(
    shots: Tensor, labels: Tensor, test: Tensor, num_classes: int, l2: float = 1024.0
) -> Tensor:
    """Return scores [M, C] of a linear classifier, (X^T X + l2 I)^-1 X^T Y in closed form.

    X holds the shots' features minus their mean, divided by their standard deviation (+ 1e-5),
    and a last column of 100; Y is 1 at the class and -1 elsewhere. It computes in float64.

    Args:
        shots: features [N, D].
        labels: classes [N] int64 of ``shots``.
        test: features [M, D].
        num_classes: C.
        l2: weight of the squared norm, which includes the weights of the last column.

    Reference: Dosovitskiy et al. 2021, "An image is worth 16x16 words", section 4.1 (few-shot
    accuracies); constants as in Big Vision's public few-shot evaluation.
    """
    shots, test = shots.double(), test.double()
    mean, std = shots.mean(0), shots.std(0, correction=0) + STD_MARGIN

    def whitened(features: Tensor) -> Tensor:
        return F.pad((features - mean) / std, (0, 1), value=CONSTANT_FEATURE)

    x, y = whitened(shots), 2 * F.one_hot(labels, num_classes).double() - 1
    gram = x.T @ x
    gram.diagonal().add_(l2)
    return whitened(test) @ torch.linalg.solve(gram, x.T @ y)


def percent_right(scores: Tensor, labels: Tensor, tops: Sequence[int]) -> list[float]:
    """Return the top-k accuracy in percent for each k of ``tops``, at most C.

    Args:
        scores: [M, C].
        labels: [M] int64.
        tops: numbers of best classes to consider.
    """
    best = scores.topk(min(max(tops), scores.size(1))).indices
    right = (best == labels[:, None]).double().mean(0).cumsum(0).mul(100).tolist()
    return [right[min(top, len(right)) - 1] for top in tops]
