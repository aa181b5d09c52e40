"""The regularisation loss on attention weights: normalisation and entropy margin."""

from dataclasses import dataclass

import torch
from torch import Tensor

from relu_nmt.attention.base import RowStatistics
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.stats import NULL_SUM
from relu_nmt.config import option
from relu_nmt.errors import ConfigError


@dataclass(frozen=True)
class AttentionRegularizerConfig:
    """Weights of the two terms that are added to the loss per target token."""

    attention_norm_weight: float = option(
        0.0, "weight of the mean |log(row sum)| of the attention weights"
    )
    attention_entropy_weight: float = option(
        0.0, "weight of the mean excess of the attention entropy over its margin"
    )
    attention_entropy_margin: float = option(
        0.7, "the margin is this times log(number of visible keys), in nats"
    )

    def __post_init__(self) -> None:
        for name in ("attention_norm_weight", "attention_entropy_weight"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"--{name.replace('_', '-')} {getattr(self, name)}: expected 0 or more"
                )

    @property
    def active(self) -> bool:
        """Whether any term has a weight."""
        return self.attention_norm_weight > 0 or self.attention_entropy_weight > 0


@dataclass
class RegularizerTerms:
    """Both terms of one attention module, scalars: means over samples, heads and real rows."""

    normalisation: Tensor
    entropy: Tensor


def regularizer_terms(
    rows: RowStatistics, visibility: Visibility, margin: float
) -> RegularizerTerms:
    """Return the means of |log S| and max(H - margin log n, 0) over the real query rows.

    Null rows (S <= 1e-6) contribute nothing but stay in the denominator: |log 0| is infinite
    and has no gradient.

    Args:
        rows: row statistics [B, H, Nq].
        visibility: the slot's visibility; its padded query rows are left out.
        margin: coefficient of log n.

    Reference: ReLUFormer, Eq. 7, read with the bars that its text explains.
    """
    batch, heads, _ = rows.total.shape
    real = visibility.real_rows(batch)  # [B, 1, Nq]
    num_rows = (real.sum() * heads).clamp_min(1)
    is_null = rows.total <= NULL_SUM
    log_total = torch.where(is_null, 1.0, rows.total).log().abs()
    excess = (rows.entropy - margin * visibility.counts.clamp_min(1).log()).clamp_min(0)
    excess = excess.masked_fill(is_null, 0.0)
    return RegularizerTerms((log_total * real).sum() / num_rows, (excess * real).sum() / num_rows)
