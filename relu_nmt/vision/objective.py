"""What image classification minimises: cross-entropy plus the attention regulariser."""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from relu_nmt.attention.base import Need
from relu_nmt.attention.config import AttentionRegularizerConfig
from relu_nmt.attention.regularizers import AttentionRegularizer
from relu_nmt.attention.telemetry import attention_telemetry
from relu_nmt.objective import LossOutput, Metric
from relu_nmt.vision.vision_transformer import VisionTransformer

if TYPE_CHECKING:
    from relu_nmt.vision.batches import ImageBatch


class ImageObjective(nn.Module):
    """Cross-entropy per image plus the attention regulariser, both as in translation.

    Label smoothing gives 1 - smoothing + smoothing / C to the right one of C classes and
    smoothing / C to each other; the validation loss is without it.

    Args:
        model: the model.
        label_smoothing: probability mass spread over all classes; in training only.
        regularizer: weights of its two terms; in training only.

    Raises:
        ConfigError: the regulariser is on and the attention has no weights, or signed ones.
    """

    def __init__(
        self,
        model: VisionTransformer,
        label_smoothing: float,
        regularizer: AttentionRegularizerConfig,
    ) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.regularizer = AttentionRegularizer(regularizer, model)

    def forward(self, batch: "ImageBatch", telemetry: bool = False) -> LossOutput:
        """Return the loss of a batch, summed over its images.

        Args:
            batch: images and their classes.
            telemetry: also return the attention statistics of every block and head.
        """
        regularize = self.regularizer.active and self.training
        output = self.model(batch.images, Need(statistics=regularize, telemetry=telemetry))
        loss = F.cross_entropy(
            output.logits,
            batch.labels,
            reduction="sum",
            label_smoothing=self.label_smoothing if self.training else 0.0,
        )
        count = batch.num_sentences
        with torch.no_grad():
            correct = (output.logits.argmax(1) == batch.labels).sum()
        metrics = {
            "loss": Metric(loss.detach(), count),
            "accuracy": Metric(100 * correct, count),  # top-1, percent
        }
        scalars = attention_telemetry(output.records) if telemetry else {}
        result = LossOutput(loss, count, metrics, scalars)
        if regularize:
            self.regularizer.regularize(result, output.records)
        return result
