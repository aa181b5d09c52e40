"""Entmax attention: between softmax and sparsemax."""

from torch import Tensor

from relu_nmt.attention import attentions
from relu_nmt.attention.base import AttentionConfig
from relu_nmt.attention.normalized import NormalizedAttention
from relu_nmt.attention.sparse_maps import entmax, entmax15
from relu_nmt.config import option, settings
from relu_nmt.errors import ConfigError


@attentions.register("entmax15")
class Entmax15Attention(NormalizedAttention):
    """p = [z / 2 - t]_+^2 with z = q k^T / sqrt(d) and t such that sum p = 1; output p v.

    It has no options; t is exact, by sorting.

    Reference: Peters, Niculae and Martins 2019, "Sparse sequence-to-sequence models",
    algorithm 2.

    Example:
        >>> import torch
        >>> from relu_nmt.attention.base import AttentionConfig
        >>> from relu_nmt.attention.masks import Visibility
        >>> attend = Entmax15Attention(AttentionConfig(), num_heads=1, head_dim=1, dropout=0.0)
        >>> q, k = torch.ones(1, 1, 1, 1), torch.tensor([[[[3.0], [1.0]]]])
        >>> attend(q, k, torch.tensor([[[[4.0], [8.0]]]]), Visibility(1, 2)).values.item()
        4.0
    """

    def normalize(self, scores: Tensor) -> Tensor:
        """Return 1.5-entmax of each row."""
        return entmax15(scores)


@settings(flags=False)
class EntmaxConfig(AttentionConfig):
    """Settings of :class:`EntmaxAttention`."""

    alpha: float = option(1.5, "2 is sparsemax, towards 1 it approaches softmax")

    def check(self) -> None:
        """Exclude softmax, which is another attention, and what is not defined."""
        if not 1 < self.alpha <= 2:
            hint = " (alpha=1 is the attention 'softmax')" if self.alpha == 1 else ""
            raise ConfigError(f"alpha={self.alpha:g}: expected a number above 1, at most 2{hint}")


@attentions.register("entmax")
class EntmaxAttention(NormalizedAttention):
    """p = [(alpha - 1) z - t]_+^(1 / (alpha - 1)), z = q k^T / sqrt(d), sum p = 1; output p v.

    Except for alpha 1.5 and 2, t is found by bisection, which takes about 30 passes over the
    scores.

    Reference: Peters, Niculae and Martins 2019, "Sparse sequence-to-sequence models",
    definition 1 and algorithm 1.

    Example:
        >>> import torch
        >>> from relu_nmt.attention.masks import Visibility
        >>> attend = EntmaxAttention(EntmaxConfig(1.3), num_heads=1, head_dim=1, dropout=0.0)
        >>> q, k = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 2, 1)
        >>> attend(q, k, torch.tensor([[[[4.0], [8.0]]]]), Visibility(1, 2)).values.item()
        6.0
    """

    Config = EntmaxConfig

    def normalize(self, scores: Tensor) -> Tensor:
        """Return alpha-entmax of each row."""
        return entmax(scores, self.config.alpha)
