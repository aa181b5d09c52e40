"""Probes of frozen features: nearest neighbors, few-shot ridge regression, joined features."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from relu_nmt.vision.base import NORM_EPS, VisionOutput

TOP = 5
QUERIES_AT_ONCE = 1024
STD_MARGIN = 1e-5
CONSTANT_FEATURE = 100.0


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


def neighbor_scores(
    train: Tensor,
    labels: Tensor,
    test: Tensor,
    num_classes: int,
    neighbors: int = 20,
    temperature: float = 0.07,
) -> Tensor:
    """Return scores [M, C]: each nearest neighbor votes exp(cosine / temperature) for its class.

    Votes are divided by the nearest neighbor's vote, so no temperature is too small. The features
    are ``train`` [N, D], of the classes ``labels`` [N] int64, and ``test`` [M, D].

    Reference: Wu et al. 2018, "Unsupervised feature learning via non-parametric instance
    discrimination", section 3.4. Caron et al. 2021 (DINO), appendix F.1.
    """
    # Normalize the rows, so that dot products are cosines.
    train = F.normalize(train.float())
    test = F.normalize(test.float())
    count = min(neighbors, len(train))
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


def choose_shots(labels: np.ndarray, num_classes: int, shots: int, seed: int) -> np.ndarray:
    """Draw ``shots`` images of each class, or all of a smaller class. Return their indices."""
    generator = np.random.default_rng(seed)
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
    gram.diagonal().add_(l2)
    # Solve for the weights [D + 1, C], and apply them to the test features.
    return whitened(test) @ torch.linalg.solve(gram, x.T @ y)


def percent_right(scores: Tensor, labels: Tensor) -> list[float]:
    """Return top-1 and top-5 accuracy in percent, from scores [M, C] and labels [M]."""
    best = scores.topk(min(TOP, scores.size(1))).indices
    right = (best == labels[:, None]).double().mean(0).cumsum(0).mul(100).tolist()
    return [right[0], right[-1]]
