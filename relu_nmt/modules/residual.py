"""The residual connection with its normalisation before or after the sublayer."""

from collections.abc import Callable

from torch import Tensor, nn

from relu_nmt.dropout import Dropout


class Residual(nn.Module):
    """x + dropout(f(norm(x))) (pre-norm) or norm(x + dropout(f(x))) (post-norm).

    Args:
        embed_dim: D.
        normalize_before: pre-norm if true.
        dropout: probability on the sublayer's output.
    """

    def __init__(self, embed_dim: int, normalize_before: bool, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(embed_dim)
        self.normalize_before = normalize_before
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply ``sublayer``, which maps [B, N, D] to [B, N, D]."""
        if self.normalize_before:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))
