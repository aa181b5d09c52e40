"""What image classification minimises: cross-entropy plus the attention regulariser."""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from relu_nmt.modules.objective import RegularizedObjective
from relu_nmt.objective import LossOutput, Metric
from relu_nmt.vision.vision_transformer import VisionTransformer

if TYPE_CHECKING:
    from relu_nmt.vision.batches import ImageBatch


class ImageObjective(RegularizedObjective):
    """Cross-entropy per image plus the attention regulariser, both as in translation.

    Label smoothing gives 1 - smoothing + smoothing / C to the right one of C classes and
    smoothing / C to each other; the validation loss is without it.
    """

    model: VisionTransformer

    def loss(self, batch: "ImageBatch") -> LossOutput:
        """Return the cross-entropy of a batch, summed over its images."""
        logits = self.model(batch.images).logits
        loss = F.cross_entropy(
            logits,
            batch.labels,
            reduction="sum",
            label_smoothing=self.label_smoothing if self.training else 0.0,
        )
        count = batch.num_sentences
        with torch.no_grad():
            correct = (logits.argmax(1) == batch.labels).sum()
        metrics = {
            "loss": Metric(loss.detach(), count),
            "accuracy": Metric(100 * correct, count),  # top-1, percent
        }
        return LossOutput(loss, count, metrics)
