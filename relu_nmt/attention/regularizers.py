"""The regularisation loss on attention weights: normalisation and entropy margin."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from relu_nmt.attention.base import Attention, RowStatistics
from relu_nmt.attention.config import AttentionRegularizerConfig
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.records import AttentionRecord
from relu_nmt.attention.stats import NULL_SUM
from relu_nmt.errors import ConfigError
from relu_nmt.objective import LossOutput, Metric


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
    assert rows.entropy is not None, "signed weights have no entropy"
    batch, heads, _ = rows.total.shape
    real = visibility.real_rows(batch)  # [B, 1, Nq]
    num_rows = (real.sum() * heads).clamp_min(1)
    is_null = rows.total <= NULL_SUM
    log_total = torch.where(is_null, 1.0, rows.total).log().abs()
    excess = (rows.entropy - margin * visibility.positive_counts.log()).clamp_min(0)
    excess = excess.masked_fill(is_null, 0.0)
    return RegularizerTerms((log_total * real).sum() / num_rows, (excess * real).sum() / num_rows)


class AttentionRegularizer:
    """norm_weight * mean |log S| + entropy_weight * mean max(H - margin log n, 0).

    The means are over samples, heads and real query rows, and then over all attention modules.

    Args:
        config: the weights of the terms and the margin.
        model: has the attentions.

    Raises:
        ConfigError: it is on and an attention has no weights, or signed ones.

    Reference: ReLUFormer, Eq. 7; the weights of the terms are ours, the paper prints none.
    """

    def __init__(self, config: AttentionRegularizerConfig, model: nn.Module) -> None:
        self.config = config
        if not config.active:
            return
        for module in model.modules():
            if isinstance(module, Attention) and not module.capabilities.non_negative:
                raise ConfigError(
                    "--attention-norm-weight and --attention-entropy-weight need weights that "
                    f"are never negative, which {type(module).__name__} does not give; set them "
                    "to 0"
                )

    @property
    def active(self) -> bool:
        """Whether any term has a weight."""
        return self.config.active

    def terms(self, records: list[AttentionRecord]) -> RegularizerTerms:
        """Return the means of both terms over all modules."""
        margin = self.config.attention_entropy_margin
        terms = [regularizer_terms(r.rows, r.visibility, margin) for r in records if r.rows]
        return RegularizerTerms(
            torch.stack([t.normalisation for t in terms]).mean(),
            torch.stack([t.entropy for t in terms]).mean(),
        )

    def penalty(self, terms: RegularizerTerms) -> Tensor:
        """Return the weighted sum of both terms, to be added to the loss per unit."""
        config = self.config
        return (
            config.attention_norm_weight * terms.normalisation
            + config.attention_entropy_weight * terms.entropy
        )

    def regularize(self, output: LossOutput, records: list[AttentionRecord]) -> None:
        """Add the penalty, once for each unit, and metrics of both terms to a summed loss.

        Args:
            output: the loss of a batch; it is changed.
            records: row statistics of all modules.
        """
        terms, count = self.terms(records), output.sample_size
        for name, value in (("norm", terms.normalisation), ("entropy", terms.entropy)):
            output.metrics[f"attention_{name}"] = Metric(value.detach() * count, count)
        output.loss = output.loss + self.penalty(terms) * count
