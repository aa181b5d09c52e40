"""What translation training minimises: cross-entropy plus the attention regulariser."""

from typing import TYPE_CHECKING

from torch import Tensor, nn

from relu_nmt.attention.base import Need
from relu_nmt.attention.regularizer_config import AttentionRegularizerConfig
from relu_nmt.attention.regularizers import AttentionRegularizer
from relu_nmt.attention.telemetry import attention_telemetry
from relu_nmt.models.encoder_decoder import EncoderDecoder
from relu_nmt.modules.cross_entropy import projected_cross_entropy
from relu_nmt.objective import LossOutput, Metric

if TYPE_CHECKING:
    from relu_nmt.data.batches import TranslationBatch


class TranslationObjective(nn.Module):
    """Label-smoothed cross-entropy per target token plus the attention regulariser.

    total = NLL + norm_weight * mean |log S| + entropy_weight * mean max(H - C, 0), the means over
    samples, heads, real query rows and then over all attention modules; training only.

    Args:
        model: the model.
        label_smoothing: probability mass taken from the right symbol.
        regularizer: weights of the two terms.

    Raises:
        ConfigError: the regulariser is on and an attention has no weights, or signed ones.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        label_smoothing: float,
        regularizer: AttentionRegularizerConfig,
    ) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.regularizer = AttentionRegularizer(regularizer, model)

    def forward(self, batch: "TranslationBatch", telemetry: bool = False) -> LossOutput:
        """Return the loss of a batch, summed over its target tokens.

        Args:
            batch: source and target tokens.
            telemetry: also return the attention statistics of every layer and head.
        """
        regularize = self.regularizer.active and self.training
        need = Need(statistics=regularize, telemetry=telemetry)
        output = self.model(batch.src_tokens, batch.prev_output_tokens, need)
        loss, nll = self._cross_entropy(output.features, batch.tgt_tokens)
        count = float(batch.num_tokens)
        # The log compares cross-entropies, so the regulariser has lines of its own.
        metrics = {"loss": Metric(loss.detach(), count), "nll_loss": Metric(nll, count)}
        scalars = attention_telemetry(output.records) if telemetry else {}
        result = LossOutput(loss, batch.num_tokens, metrics, scalars)
        if regularize:
            self.regularizer.regularize(result, output.records)
        return result

    def _cross_entropy(self, features: Tensor, tgt_tokens: Tensor) -> tuple[Tensor, Tensor]:
        real = (tgt_tokens != self.model.decoder.pad_index).flatten().nonzero().squeeze(1)
        return projected_cross_entropy(
            features.flatten(0, 1).index_select(0, real),
            self.model.output_projection.weight,
            tgt_tokens.flatten().index_select(0, real),
            self.label_smoothing,
        )
