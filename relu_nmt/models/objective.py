"""What translation training minimises: cross-entropy plus the attention regulariser."""

from typing import TYPE_CHECKING

from relu_nmt.models.encoder_decoder import EncoderDecoder
from relu_nmt.modules.cross_entropy import projected_cross_entropy
from relu_nmt.modules.objective import RegularizedObjective
from relu_nmt.objective import LossOutput, Metric

if TYPE_CHECKING:
    from relu_nmt.data.batches import TranslationBatch


class TranslationObjective(RegularizedObjective):
    """Label-smoothed cross-entropy per target token plus the attention regulariser."""

    model: EncoderDecoder

    def loss(self, batch: "TranslationBatch") -> LossOutput:
        """Return the cross-entropy of a batch, summed over its target tokens."""
        features, targets = self.model(batch.src_tokens, batch.prev_output_tokens), batch.tgt_tokens
        assert targets is not None, "batches to train on have targets"
        real = (targets != self.model.decoder.pad_index).flatten().nonzero().squeeze(1)
        # As the output projection's module would, but without holding all the logits.
        loss, nll = projected_cross_entropy(
            features.flatten(0, 1).index_select(0, real),
            self.model.output_projection.weight,
            targets.flatten().index_select(0, real),
            self.label_smoothing,
        )
        count = float(batch.num_tokens)
        metrics = {"loss": Metric(loss.detach(), count), "nll_loss": Metric(nll, count)}
        return LossOutput(loss, batch.num_tokens, metrics)
