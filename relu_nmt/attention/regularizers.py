"""The regularisation loss on attention weights: normalisation and entropy margin."""

import torch
from torch import Tensor, nn

from relu_nmt.attention.base import NULL_SUM, Attention, RowStatistics
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.records import AttentionRecord
from relu_nmt.attention.spec import AttentionRegularizerConfig
from relu_nmt.errors import ConfigError
from relu_nmt.objective import LossOutput, Metric


def regularizer_terms(
    rows: RowStatistics, visibility: Visibility, margin: float
) -> tuple[Tensor, Tensor]:
    """Return the means of |log S| and max(H - margin log n, 0) over samples, heads and real rows.

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
    return (log_total * real).sum() / num_rows, (excess * real).sum() / num_rows


class AttentionRegularizer:
    """norm_weight * mean |log S| + entropy_weight * mean max(H - margin log n, 0).

    The means are over samples, heads and real query rows, and then over all attention modules.

    Args:
        config: the weights of the terms and the margin.
        model: has the attentions.

    Attributes:
        active: whether any term has a weight.

    Raises:
        ConfigError: it is on and an attention has no weights, or signed ones.

    Reference: ReLUFormer, Eq. 7; the weights of the terms are ours, the paper prints none.
    """

    def __init__(self, config: AttentionRegularizerConfig, model: nn.Module) -> None:
        self.config = config
        self.active = config.active
        for module in model.modules() if self.active else ():
            if isinstance(module, Attention) and not module.capabilities.non_negative:
                raise ConfigError(
                    "--attention-norm-weight and --attention-entropy-weight need weights that "
                    f"are never negative, which {type(module).__name__} does not give; set them "
                    "to 0"
                )

    def regularize(self, output: LossOutput, records: list[AttentionRecord]) -> None:
        """Add the penalty, once for each unit, and metrics of both terms to a summed loss.

        Args:
            output: the loss of a batch; it is changed.
            records: row statistics of all modules.
        """
        config, count = self.config, output.sample_size
        margin = config.attention_entropy_margin
        terms = [regularizer_terms(r.rows, r.visibility, margin) for r in records if r.rows]
        norm, entropy = (torch.stack(each).mean() for each in zip(*terms, strict=True))
        for name, value in (("norm", norm), ("entropy", entropy)):
            output.metrics[f"attention_{name}"] = Metric(value.detach() * count, count)
        penalty = config.attention_norm_weight * norm + config.attention_entropy_weight * entropy
        output.loss = output.loss + penalty * count
