"""The vision transformer (ViT, DeiT), and the loss of all families."""

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.masks import Visibility
from relu_nmt.dropout import Dropout
from relu_nmt.modules import norms
from relu_nmt.modules.objective import RegularizedObjective
from relu_nmt.modules.transformer_layer import run_layer
from relu_nmt.objective import LossOutput, Metric
from relu_nmt.vision import vision_blocks, vision_models
from relu_nmt.vision.base import (
    NORM_EPS,
    Grid,
    VisionModel,
    VisionOutput,
    exempt_from_decay,
    grid_of,
    initialize,
    resized,
)
from relu_nmt.vision.blocks import PatchEmbedding
from relu_nmt.vision.config import VisionTransformerConfig

if TYPE_CHECKING:
    from relu_nmt.vision.batches import ImageBatch


@vision_models.register("vit")
class VisionTransformer(VisionModel):
    """Patches with learned positions through pre-norm blocks to a linear classifier.

    The positions of a grid of another size lie between the learned ones.

    Args:
        config: shape and attention.
        num_classes: C.

    Raises:
        ConfigError: the attention cannot work with these settings.

    Example:
        >>> config = VisionTransformerConfig(image_size=32, patch_size=4, layers=1)
        >>> tuple(VisionTransformer(config, 10)(torch.zeros(2, 3, 32, 32)).logits.shape)
        (2, 10)

    Reference: Dosovitskiy et al. 2021, "An image is worth 16x16 words", Eq. 1-4; Touvron et al.
    2021, "Training data-efficient image transformers" (DeiT), without the distillation token.
    """

    def __init__(self, config: VisionTransformerConfig, num_classes: int) -> None:
        super().__init__(config)
        dim = config.embed_dim
        self.patches = PatchEmbedding(config.patch_sides, dim)
        self.grid = grid_of((config.image_size, config.image_size), config.patch_sides)
        self.class_token = (
            nn.Parameter(torch.empty(1, 1, dim)) if config.pooling == "class" else None
        )
        self.num_tokens = self.grid.height * self.grid.width + (self.class_token is not None)
        self.positions = nn.Parameter(torch.empty(self.num_tokens, dim))
        self.dropout = Dropout(config.dropout)
        make_block = vision_blocks.get(config.block)
        self.blocks = nn.ModuleList(make_block(config, i) for i in range(config.layers))
        self.norm = norms.get(config.norm)(dim, NORM_EPS)
        self.head = nn.Linear(dim, num_classes)
        initialize(self.positions, self.head.weight)
        nn.init.zeros_(self.head.bias)
        if self.class_token is not None:
            initialize(self.class_token)
        exempt_from_decay(self, self.class_token, self.positions)

    def forward(self, images: Tensor, blocks: Collection[int] = ()) -> VisionOutput:
        """See :meth:`VisionModel.forward`."""
        x, grid = self.patches(images)
        if self.class_token is not None:
            x = torch.cat([self.class_token.expand(x.size(0), -1, -1), x], dim=1)
        x = self.dropout(x + self.positions_of(grid))
        visibility = Visibility(x.size(1), x.size(1), device=x.device, grid=grid)
        intermediate = {}
        for index, block in enumerate(self.blocks):
            x = run_layer(block, (x, visibility, grid), self.config.checkpoint_activations)
            if index in blocks:
                patches = x[:, -grid.height * grid.width :]
                intermediate[index] = patches.transpose(1, 2).unflatten(2, grid)
        x = self.norm(x)
        features = x.mean(1) if self.class_token is None else x[:, 0]
        return VisionOutput(self.head(features).float(), features, intermediate)

    def positions_of(self, grid: Grid) -> Tensor:
        """Return the positions [N, D] of the tokens of an image with this grid."""
        if grid == self.grid:
            return self.positions
        own, patches = self.positions.tensor_split([-self.grid.height * self.grid.width])
        return torch.cat([own, resized(patches, self.grid, grid)])


class ImageObjective(RegularizedObjective):
    """Cross-entropy per image plus the attention regulariser, both as in translation.

    Label smoothing gives 1 - smoothing + smoothing / C to the right one of C classes and
    smoothing / C to each other; the validation loss is without it.
    """

    model: VisionModel

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
