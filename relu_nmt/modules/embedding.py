"""Token embeddings with positions: what enters the encoder and the decoder."""

import math

from torch import Tensor, nn

from relu_nmt.dropout import Dropout
from relu_nmt.modules.positions import PositionScheme


def token_embedding(vocab_size: int, embed_dim: int, pad_index: int) -> nn.Embedding:
    """Return a table [V, D] drawn from N(0, 1/D), zero at the padding symbol."""
    table = nn.Embedding(vocab_size, embed_dim, padding_idx=pad_index)
    nn.init.normal_(table.weight, std=embed_dim**-0.5)
    nn.init.zeros_(table.weight[pad_index])
    return table


class InputEmbedding(nn.Module):
    """Token vectors times sqrt(D), plus what the positions add, optional norm, dropout.

    Args:
        tokens: the table [V, D], possibly shared with other parts of the model.
        positions: the scheme; what it does in attention is left to the layers.
        scale: multiply the token vectors by sqrt(D).
        norm: of the sum; None for none.
        dropout: probability after the sum.
    """

    def __init__(
        self,
        tokens: nn.Embedding,
        positions: PositionScheme,
        scale: bool,
        norm: nn.Module | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = positions
        self.scale = math.sqrt(tokens.embedding_dim) if scale else 1.0
        self.norm = nn.Identity() if norm is None else norm
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Tensor, start: int = 0) -> Tensor:
        """Return [B, N, D] of token ids [B, N] whose first stands at position ``start``."""
        x = self.tokens(tokens) * self.scale
        added = self.positions.embed(tokens.size(1), start)
        return self.dropout(self.norm(x if added is None else x + added))
