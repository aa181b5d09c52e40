"""What translation training minimises: cross-entropy plus the attention regulariser."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from relu_nmt.attention import attentions
from relu_nmt.attention.base import Need
from relu_nmt.attention.regularizer_config import AttentionRegularizerConfig
from relu_nmt.attention.regularizers import RegularizerTerms, regularizer_terms
from relu_nmt.attention.spec import AttentionSpec
from relu_nmt.errors import ConfigError
from relu_nmt.models.encoder_decoder import EncoderDecoder
from relu_nmt.models.records import AttentionRecord
from relu_nmt.models.telemetry import attention_telemetry
from relu_nmt.modules.cross_entropy import projected_cross_entropy
from relu_nmt.objective import LossOutput, Metric

if TYPE_CHECKING:
    from relu_nmt.data.batch import TranslationBatch

SLOTS = ("encoder", "decoder", "cross")


class TranslationObjective(nn.Module):
    """Label-smoothed cross-entropy per target token plus the attention regulariser.

    total = NLL + norm_weight * mean |log S| + entropy_weight * mean max(H - C, 0), the means over
    samples, heads, real query rows and then over all attention modules; training only.

    Args:
        model: the model.
        label_smoothing: probability mass taken from the right symbol.
        regularizer: weights of the two terms.

    Raises:
        ConfigError: the regulariser is on and an attention has signed weights.
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
        self.regularizer = regularizer
        names = {AttentionSpec.parse(model.config.attention_of(s)).name for s in SLOTS}
        self.non_negative = all(attentions.get(n).capabilities.non_negative for n in names)
        if regularizer.active and not self.non_negative:
            raise ConfigError(
                f"--attention-norm-weight and --attention-entropy-weight need weights that are "
                f"never negative, which {', '.join(sorted(names))} does not give; set them to 0"
            )

    def forward(self, batch: "TranslationBatch", telemetry: bool = False) -> LossOutput:
        """Return the loss of a batch, summed over its target tokens.

        Args:
            batch: source and target tokens.
            telemetry: also return the attention statistics of every layer and head.
        """
        regularize = self.regularizer.active and self.training
        statistics = regularize or (telemetry and self.non_negative)
        output = self.model(batch.src_tokens, batch.prev_output_tokens, Need(statistics=statistics))
        loss, nll = self._cross_entropy(output.features, batch.tgt_tokens)
        count = float(batch.num_tokens)
        # The log compares cross-entropies, so the regulariser has lines of its own.
        metrics = {"loss": Metric(loss.detach(), count), "nll_loss": Metric(nll, count)}
        if regularize:
            terms = self._regularizer_terms(output.records)
            for name, value in (("norm", terms.normalisation), ("entropy", terms.entropy)):
                metrics[f"attention_{name}"] = Metric(value.detach() * count, count)
            penalty = (
                self.regularizer.attention_norm_weight * terms.normalisation
                + self.regularizer.attention_entropy_weight * terms.entropy
            )
            loss = loss + penalty * count
        scalars = attention_telemetry(output.records) if telemetry and statistics else {}
        return LossOutput(loss, batch.num_tokens, metrics, scalars)

    def _cross_entropy(self, features: Tensor, tgt_tokens: Tensor) -> tuple[Tensor, Tensor]:
        real = (tgt_tokens != self.model.decoder.pad_index).flatten().nonzero().squeeze(1)
        return projected_cross_entropy(
            features.flatten(0, 1).index_select(0, real),
            self.model.output_projection.weight,
            tgt_tokens.flatten().index_select(0, real),
            self.label_smoothing,
        )

    def _regularizer_terms(self, records: list[AttentionRecord]) -> RegularizerTerms:
        margin = self.regularizer.attention_entropy_margin
        terms = [regularizer_terms(r.output.rows, r.visibility, margin) for r in records]
        return RegularizerTerms(
            torch.stack([t.normalisation for t in terms]).mean(),
            torch.stack([t.entropy for t in terms]).mean(),
        )
