"""Token embeddings with positions: what enters the encoder and the decoder."""

import math

from torch import Tensor, nn

from relu_nmt.dropout import Dropout


def token_embedding(vocab_size: int, embed_dim: int, pad_index: int) -> nn.Embedding:
    """Return a table [V, D] drawn from N(0, 1/D), zero at the padding symbol."""
    table = nn.Embedding(vocab_size, embed_dim, padding_idx=pad_index)
    nn.init.normal_(table.weight, std=embed_dim**-0.5)
    nn.init.zeros_(table.weight[pad_index])
    return table


class InputEmbedding(nn.Module):
    """Token vectors times sqrt(D), plus positions, optional LayerNorm, dropout.

    Args:
        tokens: the table [V, D], possibly shared with other parts of the model.
        positions: maps (number, start) to [N, D].
        scale: multiply the token vectors by sqrt(D).
        norm: apply LayerNorm to the sum.
        dropout: probability after the sum.
    """

    def __init__(
        self, tokens: nn.Embedding, positions: nn.Module, scale: bool, norm: bool, dropout: float
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = positions
        self.scale = math.sqrt(tokens.embedding_dim) if scale else 1.0
        self.norm = nn.LayerNorm(tokens.embedding_dim) if norm else nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Tensor, start: int = 0) -> Tensor:
        """Return [B, N, D] of token ids [B, N] whose first stands at position ``start``."""
        x = self.tokens(tokens) * self.scale + self.positions(tokens.size(1), start)
        return self.dropout(self.norm(x))
