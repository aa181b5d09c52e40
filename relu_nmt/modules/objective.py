"""What every training minimises: the loss of its task plus the attention regulariser."""

from typing import Any

from torch import nn

from relu_nmt.attention.base import Need
from relu_nmt.attention.records import attention_telemetry, record_attention
from relu_nmt.attention.regularizers import AttentionRegularizer
from relu_nmt.attention.spec import AttentionRegularizerConfig
from relu_nmt.objective import LossOutput


class RegularizedObjective(nn.Module):
    """The loss of a batch plus the attention regulariser and the attention's statistics.

    total = loss + norm_weight * mean |log S| + entropy_weight * mean max(H - C, 0), the means over
    samples, heads, real query rows and then over all attention modules; training only. A task
    defines :meth:`loss`.

    Args:
        model: the model.
        label_smoothing: probability mass taken from the right symbol or class.
        regularizer: weights of the two terms.

    Raises:
        ConfigError: the regulariser is on and an attention has no weights, or signed ones.
    """

    def __init__(
        self,
        model: nn.Module,
        label_smoothing: float,
        regularizer: AttentionRegularizerConfig,
    ) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.regularizer = AttentionRegularizer(regularizer, model)

    def loss(self, batch: Any) -> LossOutput:
        """Return the loss of a batch without the regulariser, summed over its units."""
        raise TypeError(f"{type(self).__name__} must define loss")

    def forward(self, batch: Any, telemetry: bool = False) -> LossOutput:
        """Return the loss of a batch, summed over its units.

        Args:
            batch: what ``loss`` reads.
            telemetry: also return the attention statistics of every layer and head.
        """
        regularize = self.regularizer.active and self.training
        need = Need(statistics=regularize, telemetry=telemetry)
        with record_attention(self.model, need) as records:
            output = self.loss(batch)
        if telemetry:
            output.telemetry = attention_telemetry(records)
        if regularize:
            # The log compares losses of the task, so the regulariser has lines of its own.
            self.regularizer.regularize(output, records)
        return output
