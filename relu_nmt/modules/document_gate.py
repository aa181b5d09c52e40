"""Attention inside sentences and to the whole document, joined by a learned gate."""

import torch
from torch import Tensor, nn

from relu_nmt.modules.positions import sinusoids

START_BIAS = 2.0
"""Sigmoid(2) = 0.88: a model starts almost as a sentence model, which learns fast and can continue
from one. The gradient of the gate is still half of its maximum."""


class DocumentGate(nn.Module):
    """g * local + (1 - g) * whole, g = sigmoid(W [local; whole] + b); vectors of sentence numbers.

    ``local`` is the output of attention inside a token's own sentence, ``whole`` that of attention
    to the whole document, both with the same projections. In a document of one sentence they are
    equal, and the gate has no effect. W starts at 0, b at 2: at first the local part counts 0.88.

    Attention to the whole document distinguishes sentences by their number k. Before queries and
    keys are projected, the states get (sinusoid(k) - sinusoid(0)) times a learned gain, which is 0
    for the first sentence.

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
        """Return the gated mean of two [B, N, D]."""
        both = torch.cat([local, whole], -1)
        gate = nn.functional.linear(both, self.weight, self.bias).sigmoid()
        return whole + gate * (local - whole)  # exact where both are equal

    def numbers(self, numbers: Tensor) -> Tensor:
        """Return the vectors [R, D] of sentence numbers [R]."""
        waves = sinusoids(torch.cat([numbers, numbers.new_zeros(1)]), len(self.number_gain))
        return (waves[:-1] - waves[-1:]).to(self.number_gain.dtype) * self.number_gain
