"""The position-wise feed-forward network."""

import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.dropout import Dropout

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


class FeedForward(nn.Module):
    """W2 act(W1 x + b1) + b2.

    Args:
        embed_dim: D.
        ffn_dim: inner width.
        activation: one of ``ACTIVATIONS``.
        dropout: probability after the activation.
    """

    def __init__(self, embed_dim: int, ffn_dim: int, activation: str, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Linear(embed_dim, ffn_dim)
        self.outer = nn.Linear(ffn_dim, embed_dim)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., D] to [..., D]."""
        return self.outer(self.dropout(self.activation(self.inner(x))))
