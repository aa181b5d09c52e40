"""What attentions have in common whose rows of weights sum to 1, such as softmax."""

import math

from torch import Tensor

from relu_nmt.attention.base import NOTHING, Attention, AttentionOutput, Capabilities, Need
from relu_nmt.attention.bias import ScoreBias, biased
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.stats import row_statistics, row_sums
from relu_nmt.dropout import dropout


class NormalizedAttention(Attention):
    """out = f(q k^T / sqrt(d)) v, with a map f of rows of scores to rows that sum to 1.

    A subclass defines :meth:`normalize`. A query that sees no key gets output 0.
    """

    capabilities = Capabilities(scores=True)

    def normalize(self, scores: Tensor) -> Tensor:
        """Map scores to weights over the last dimension.

        Args:
            scores: [B, H, Nq, Nk] in the dtype of the queries or wider; -inf where a key is masked,
                at least one finite score in every row.

        Returns:
            weights of the same shape, float32 or wider.
        """
        raise TypeError(f"{type(self).__name__} must define normalize")

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visibility: Visibility,
        *,
        bias: ScoreBias | None = None,
        need: Need = NOTHING,
    ) -> AttentionOutput:
        """See :meth:`Attention.forward`."""
        scores = biased((q / math.sqrt(self.head_dim)) @ k.transpose(-1, -2), bias)
        if visibility.normalizable_mask is not None:
            scores = scores.masked_fill(~visibility.normalizable_mask, -math.inf)
        weights = self.normalize(scores)
        if visibility.empty_rows is not None:
            weights = weights.masked_fill(visibility.empty_rows, 0.0)
        rows = row_statistics(row_sums(weights, need), visibility) if need.rows else None
        values = dropout(weights, self.active_dropout).to(v.dtype) @ v
        return AttentionOutput(values, weights if need.weights else None, rows)
