"""Attention inside sentences and to the whole document, joined by a learned gate."""

import torch
from torch import Tensor, nn

from relu_nmt.modules.positions import sinusoids

START_BIAS = 2.0
"""Sigmoid(2) = 0.88: a model starts as one of sentences, which learns fast and from which a trained
one may be taken, and the gradient of the gate is still half of its largest."""


class DocumentGate(nn.Module):
    """g * local + (1 - g) * whole, g = sigmoid(W [local; whole] + b), and the sentences' numbers.

    ``local`` is what a token attends to in its own sentence, ``whole`` in the whole document, both
    with the same projections. In a document of one sentence they are equal, and the gate without
    effect. W starts at 0, b at 2: at first the local part counts 0.88.

    The attention to the whole document knows sentences by their number k: to the states that its
    queries and keys are made of it adds (sinusoid(k) - sinusoid(0)) times a learned gain, which is
    0 for the first sentence.

    Args:
        embed_dim: D.

    Reference: Bao et al. 2021, "G-Transformer", section 3 (combined attention; there both parts
    have projections of their own, and sentences no numbers).

    Example:
        >>> gate, x = DocumentGate(2), torch.tensor([[[1.0, 3.0]]])
        >>> gate(x, x).tolist(), gate.numbers(torch.tensor([0])).tolist()
        ([[[1.0, 3.0]]], [[0.0, 0.0]])
    """

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(embed_dim, 2 * embed_dim))
        self.bias = nn.Parameter(torch.full((embed_dim,), START_BIAS))
        self.number_gain = nn.Parameter(torch.ones(embed_dim))

    def forward(self, local: Tensor, whole: Tensor) -> Tensor:
        """Join two [B, N, D]."""
        both = torch.cat([local, whole], -1)
        gate = nn.functional.linear(both, self.weight, self.bias).sigmoid()
        return whole + gate * (local - whole)  # exact where both are equal

    def numbers(self, numbers: Tensor) -> Tensor:
        """Return the vectors [R, D] of sentences with these numbers [R]."""
        waves = sinusoids(torch.cat([numbers, numbers.new_zeros(1)]), len(self.number_gain))
        return (waves[:-1] - waves[-1:]).to(self.number_gain.dtype) * self.number_gain
