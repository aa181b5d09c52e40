"""What translation training minimises: cross-entropy plus the attention regulariser."""

from typing import TYPE_CHECKING

from torch import nn

from relu_nmt.models.encoder_decoder import EncoderDecoder
from relu_nmt.modules.cross_entropy import projected_cross_entropy, smoothed_cross_entropy
from relu_nmt.modules.objective import RegularizedObjective
from relu_nmt.objective import LossOutput, Metric

if TYPE_CHECKING:
    from relu_nmt.data.batches import TranslationBatch


class TranslationObjective(RegularizedObjective):
    """Label-smoothed cross-entropy per target token plus the attention regulariser.

    Where the output projection is a plain ``nn.Linear``, its weight is read without holding all the
    logits; any other module that stands there, such as an adapter, is called.
    """

    model: EncoderDecoder

    def loss(self, batch: "TranslationBatch") -> LossOutput:
        """Return the cross-entropy of a batch, summed over its target tokens."""
        features, targets = self.model(batch.src_tokens, batch.prev_output_tokens), batch.tgt_tokens
        assert targets is not None, "batches to train on have targets"
        real = (targets != self.model.decoder.pad_index).flatten().nonzero().squeeze(1)
        features = features.flatten(0, 1).index_select(0, real)
        targets = targets.flatten().index_select(0, real)
        projection = self.model.output_projection
        if type(projection) is nn.Linear and projection.bias is None:
            loss, nll = projected_cross_entropy(
                features, projection.weight, targets, self.label_smoothing
            )
        else:  # such as an adapter, which computes more than the product with its weight
            logits = self.model.logits(features)
            loss, nll = smoothed_cross_entropy(logits, targets, self.label_smoothing)
        count = float(batch.num_tokens)
        metrics = {"loss": Metric(loss.detach(), count), "nll_loss": Metric(nll, count)}
        return LossOutput(loss, batch.num_tokens, metrics)
