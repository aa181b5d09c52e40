"""The vision transformer (ViT, DeiT), and the loss of all families."""

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.dropout import Dropout
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.spec import AttentionRegularizerConfig
from relu_nmt.modules import norms
from relu_nmt.modules.feed_forward import FeedForward
from relu_nmt.modules.multihead import SelfAttention
from relu_nmt.modules.objective import LossOutput, Metric, RegularizedObjective
from relu_nmt.modules.transformer_layer import run_layer
from relu_nmt.vision import vision_blocks, vision_models
from relu_nmt.vision.base import (
    NORM_EPS,
    EncodedImages,
    Grid,
    VisionModel,
    VisionOutput,
    exempt_from_decay,
    grid_of,
    initialize,
    map_of,
    resized,
)
from relu_nmt.vision.blocks import GatedAttentionUnit, PatchEmbedding
from relu_nmt.vision.config import CROSS_ENTROPY, VisionTransformerConfig

if TYPE_CHECKING:
    from relu_nmt.vision.mixing import ImageBatch


CUT_NORMAL_STD = 0.87962566103423978
"""Standard deviation of a normal distribution that is cut off at twice its own."""


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
    2021, "Training data-efficient image transformers" (DeiT), without the distillation token. With
    ``big_vision`` the form of the code of Wortsman et al. 2023, "Replacing softmax with ReLU in
    vision transformers", which is Beyer et al. 2022, "Big Vision".
    """

    def __init__(self, config: VisionTransformerConfig, num_classes: int) -> None:
        super().__init__(config)
        dim = config.embed_dim
        self.patches = PatchEmbedding(config.patch_sides, dim)
        self.grid = grid_of(config.image_sides, config.patch_sides)
        self.class_token = (
            nn.Parameter(torch.empty(1, 1, dim)) if config.pooling == "class" else None
        )
        self.num_tokens = self.grid.num_patches + (self.class_token is not None)
        placed = self.grid.num_patches if config.vit.big_vision else self.num_tokens
        self.positions = nn.Parameter(torch.empty(placed, dim))
        self.dropout = Dropout(config.dropout)
        make_block = vision_blocks.get(config.block)
        self.blocks = nn.ModuleList(make_block(config, i) for i in range(config.layers))
        self.norm = norms.get(config.norm)(dim, NORM_EPS)
        self.tanh_layer = nn.Linear(dim, dim) if config.vit.tanh_layer else None
        self.head = nn.Linear(dim, num_classes)
        initialize(self.positions, self.head.weight)
        nn.init.constant_(self.head.bias, config.vit.head_bias)
        if self.class_token is not None:
            initialize(self.class_token)
        if self.tanh_layer is not None:
            initialize(self.tanh_layer.weight)
            nn.init.zeros_(self.tanh_layer.bias)
        if config.vit.big_vision:
            self._draw_as_big_vision()
        exempt_from_decay(self, self.class_token, self.positions)

    classifier = ("norm", "tanh_layer", "head")

    def forward(self, images: Tensor, blocks: Collection[int] = ()) -> VisionOutput:
        """See :meth:`VisionModel.forward`."""
        encoded = self.encode(images, blocks)
        x = self.norm(encoded.tokens)
        features = x.mean(1) if self.class_token is None else x[:, 0]
        if self.tanh_layer is not None:
            features = self.tanh_layer(features).tanh()
        logits = self.head(features).float()
        return VisionOutput(logits, features, encoded.intermediate, encoded.class_tokens)

    def encode(self, images: Tensor, blocks: Collection[int] = ()) -> EncodedImages:
        """See :meth:`VisionModel.encode`."""
        x, grid = self.patches(images)
        positions = self.positions_of(grid)
        if self.class_token is not None:
            token = self.class_token.expand(x.size(0), -1, -1)
            if self.config.vit.big_vision:
                positions = F.pad(positions, (0, 0, 1, 0))  # zero for the class token
            x = torch.cat([token, x], dim=1)
        x = self.dropout(x + positions)
        visibility = Visibility(x.size(1), x.size(1), device=x.device, grid=grid)
        intermediate, class_tokens = {}, {}
        for index, block in enumerate(self.blocks):
            x = run_layer(block, (x, visibility, grid), self.config.checkpoint_activations)
            if index in blocks:
                intermediate[index] = map_of(x, grid)
                if self.class_token is not None:
                    class_tokens[index] = x[:, 0]
        return EncodedImages(x, grid, intermediate, class_tokens)

    def _draw_as_big_vision(self) -> None:
        """Draw the initial weights of Big Vision, those of Flax where it says nothing else."""
        nn.init.normal_(self.positions, std=self.config.embed_dim**-0.5)
        nn.init.zeros_(self.head.weight)
        if self.class_token is not None:
            nn.init.zeros_(self.class_token)
        for linear in (self.patches.projection, self.tanh_layer):
            if linear is not None:
                std = linear.in_features**-0.5 / CUT_NORMAL_STD
                nn.init.trunc_normal_(linear.weight, std=std, a=-2 * std, b=2 * std)
        for module in self.blocks.modules():
            if isinstance(module, SelfAttention):
                for weight in (*module.qkv.weight.chunk(module.parts), module.out_proj.weight):
                    nn.init.xavier_uniform_(weight)
            elif isinstance(module, FeedForward):
                for weight in (*module.inner.weight.chunk(1 + module.gated), module.outer.weight):
                    nn.init.xavier_uniform_(weight)
                for linear in (module.inner, module.outer):
                    if linear.bias is not None:
                        nn.init.normal_(linear.bias, std=1e-6)
            elif isinstance(module, GatedAttentionUnit):
                module.draw_by_xavier()

    def positions_of(self, grid: Grid) -> Tensor:
        """Return the positions [N, D] of the tokens of an image with this grid."""
        if grid == self.grid:
            return self.positions
        own, patches = self.positions.tensor_split([-self.grid.num_patches])
        return torch.cat([own, resized(patches, self.grid, grid)])


class ImageObjective(RegularizedObjective):
    """Cross-entropy per image plus the attention regulariser, both as in translation.

    Label smoothing gives 1 - smoothing + smoothing / C to the right one of C classes and
    smoothing / C to each other; of an image that is mixed with another, each has its share of
    this. The validation loss is without it.

    Args:
        model: the model.
        label_smoothing: probability mass taken from the right class.
        regularizer: of the attention.
        criterion: ``cross_entropy`` of one distribution over the classes, or
            ``sigmoid_cross_entropy``, the sum of those of C independent ones.
    """

    model: VisionModel

    def __init__(
        self,
        model: nn.Module,
        label_smoothing: float,
        regularizer: AttentionRegularizerConfig,
        criterion: str = CROSS_ENTROPY,
    ) -> None:
        super().__init__(model, label_smoothing, regularizer)
        self._of_class = cross_entropy if criterion == CROSS_ENTROPY else sigmoid_cross_entropy

    def loss(self, batch: "ImageBatch") -> LossOutput:
        """Return the cross-entropy of a batch, summed over its images."""
        logits = self.model(batch.images).logits
        smoothing = self.label_smoothing if self.training else 0.0
        with torch.no_grad():
            guesses = logits.argmax(1)
        # Both losses are linear in the probabilities that they are to match.
        loss = self._of_class(logits, batch.labels, smoothing)
        correct = (guesses == batch.labels).sum()
        if batch.other_labels is not None:
            rest = self._of_class(logits, batch.other_labels, smoothing)
            loss = batch.share * loss + (1 - batch.share) * rest
            others = (guesses == batch.other_labels).sum()
            correct = batch.share * correct + (1 - batch.share) * others
        count = batch.num_sentences
        metrics = {
            "loss": Metric(loss.detach(), count),
            "accuracy": Metric(100 * correct, count),  # top-1, percent
        }
        return LossOutput(loss, count, metrics)


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return the sum over the images of -sum_c t_c log softmax(z)_c.

    Args:
        logits: z, [B, C].
        labels: [B] int64.
        smoothing: t is 1 - smoothing + smoothing / C at the label and smoothing / C elsewhere.
    """
    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)


def sigmoid_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return the sum over images and classes of log(1 + exp(z)) - t z, as :func:`cross_entropy`.

    Reference: Beyer et al. 2020, "Are we done with ImageNet?", section 4: -t log p - (1 - t)
    log(1 - p) with p = 1 / (1 + exp(-z)).
    """
    own = logits.gather(1, labels[:, None]).sum()
    target = (1 - smoothing) * own + smoothing * logits.mean(1).sum()
    return F.softplus(logits).sum() - target
