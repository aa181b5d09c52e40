"""The interface of all vision transformers, the parts that they share, and their loss."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.base import Attention, build_attention
from relu_nmt.attention.dropout import dropout
from relu_nmt.config.fields import flag_of
from relu_nmt.config.registry import Spec
from relu_nmt.modules import norms
from relu_nmt.modules.building import build_in_memory
from relu_nmt.modules.config import AttentionRegularizerConfig
from relu_nmt.modules.feed_forward import build_feed_forward
from relu_nmt.modules.multihead import MultiheadAttention
from relu_nmt.modules.objective import LossOutput, RegularizedObjective
from relu_nmt.modules.recompute import recomputed
from relu_nmt.modules.transformer_layer import LayerConfig, Residual
from relu_nmt.vision import vision_models
from relu_nmt.vision.config import CROSS_ENTROPY, VisionTransformerConfig

if TYPE_CHECKING:
    from relu_nmt.vision.images import ImageBatch

INIT_STD = 0.02
NORM_EPS = 1e-6
STAGE_NORM_EPS = 1e-5  # margin of the norms of models whose blocks come in stages


class Grid(NamedTuple):
    """Rows and columns of the patches of an image."""

    height: int
    width: int

    @property
    def num_patches(self) -> int:
        """The number of patches."""
        return self.height * self.width


@dataclass
class VisionOutput:
    """The output of a model for images. XCiT's blocks of class attention come last."""

    logits: Tensor  # [B, C] scores of the classes, float32
    features: Tensor  # [B, D], the input of the classifier
    # [B, D, height, width] by index of a requested block: its patches before the final norm.
    intermediate: dict[int, Tensor]
    # [B, D] by index of a requested block with a class token.
    class_tokens: dict[int, Tensor] = field(default_factory=dict)


class VisionModel(nn.Module):
    """An image classifier. Each family is a subclass, registered in ``vision_models``.

    A subclass takes (config, number of classes). It defines ``forward``, or ``encode`` and
    ``features``, which let it be the backbone of another model.
    """

    num_tokens: int  # of an image of ``config.image_size`` in the first block
    head: nn.Linear
    classifier: ClassVar[tuple[str, ...]] = ("norm", "head")  # parts that a backbone lacks

    def __init__(self, config: VisionTransformerConfig) -> None:
        super().__init__()
        self.config = config

    def add_classifier(
        self, norm: nn.Module, embed_dim: int, num_classes: int, class_token: Tensor | None = None
    ) -> None:
        """Add norm and classifier. Draw its weights and the class token, which gets no decay."""
        self.norm = norm
        self.head = nn.Linear(embed_dim, num_classes)
        initialize(class_token, self.head.weight)
        nn.init.zeros_(self.head.bias)
        exempt_from_decay(self, class_token)

    def forward(self, images: Tensor, blocks: Collection[int] = ()) -> VisionOutput:
        """Classify images [B, 3, Y, X], normalized. Also return the output of ``blocks``."""
        intermediate = {}
        class_tokens = {}
        for index, (x, grid) in enumerate(self.encode(images)):
            if index in blocks and grid.num_patches:
                intermediate[index] = map_of(x, grid)
            if index in blocks and x.size(1) > grid.num_patches:
                class_tokens[index] = x[:, 0]
        features = self.features(x)  # [B, D]
        return VisionOutput(self.head(features).float(), features, intermediate, class_tokens)

    def encode(self, images: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        """Yield the tokens [B, N, D] after each block, and the grid of the patches, the last N.

        XCiT's blocks of class attention yield the class token and an empty grid. A backbone asks
        for no more blocks than it needs.
        """
        raise TypeError(f"{type(self).__name__} must define encode to be a backbone")

    def features(self, tokens: Tensor) -> Tensor:
        """Return the input of the classifier, [B, D], for the last tokens of :meth:`encode`."""
        raise TypeError(f"{type(self).__name__} must define forward, or encode and features")

    def with_dropout(self, x: Tensor) -> Tensor:
        """Return embedded patches with dropout in training."""
        return dropout(x, self.config.dropout) if self.training else x

    def run_block(self, block: nn.Module, *inputs: Any) -> Tensor:
        """Return a block's output. With ``--checkpoint-activations`` keep only its inputs."""
        return recomputed(block, inputs) if self.config.checkpoint_activations else block(*inputs)


def build_vision_model(config: VisionTransformerConfig, num_classes: int) -> VisionModel:
    """Return a new model of the configured family.

    Raises:
        ConfigError: the family or the attention cannot work with these settings.
        OutOfMemoryError: the weights need more memory than is free.

    Example:
        >>> config = VisionTransformerConfig(image_size=32, patch_size=4, layers=1)
        >>> tuple(build_vision_model(config, 10)(torch.zeros(2, 3, 32, 32)).logits.shape)
        (2, 10)
    """
    return build_in_memory(lambda: vision_models.get(config.family)(config, num_classes))


def initialize(*weights: Tensor | None) -> None:
    """Draw weights from the normal distribution of standard deviation .02, cut off at 2."""
    for weight in weights:
        if weight is not None:
            nn.init.trunc_normal_(weight, std=INIT_STD)


def initialize_linears(modules: Iterable[nn.Module]) -> None:
    """Draw the weights of the linear maps among the modules, in their order."""
    for module in modules:
        if isinstance(module, nn.Linear):
            initialize(module.weight)


def exempt_from_decay(model: nn.Module, *exempt: Tensor | None) -> None:
    """Exempt vectors, scalars and these further parameters from the weight decay, as in DeiT."""
    for parameter in model.parameters():
        if parameter.dim() < 2 or any(parameter is tensor for tensor in exempt):
            parameter.no_weight_decay = True  # type: ignore[attr-defined]


def grid_of(size: tuple[int, int], sides: tuple[int, int]) -> Grid:
    """Return the grid of patches with these sides in an image of this size, rounded up."""
    return Grid(-(-size[0] // sides[0]), -(-size[1] // sides[1]))


def map_of(tokens: Tensor, grid: Grid) -> Tensor:
    """Return the patches, the last of the tokens [B, N, D], as a map [B, D, height, width]."""
    patches = tokens[:, -grid.num_patches :]  # [B, height * width, D]
    return patches.transpose(1, 2).unflatten(2, grid)


def resize_positions(positions: Tensor, old: Grid, new: Grid) -> Tensor:
    """Interpolate positions [T + patches, D] between grids. The T class tokens keep theirs."""
    if old == new:
        return positions
    tokens, patches = positions.tensor_split([-old.num_patches])
    feature_map = patches.float().T.unflatten(1, old)[None]  # [1, D, height, width]
    feature_map = F.interpolate(feature_map, tuple(new), mode="bicubic", antialias=True)
    patches = feature_map[0].flatten(1).T.to(positions.dtype)  # [new patches, D]
    return torch.cat([tokens, patches])  # [T + new patches, D]


def block_config(
    config: VisionTransformerConfig, embed_dim: int, drop_path: float, norm_eps: float = NORM_EPS
) -> LayerConfig:
    """Return the settings of the sublayers of a pre-norm block of width ``embed_dim``."""
    return LayerConfig(
        config,
        embed_dim,
        round(config.ffn_ratio * embed_dim),
        norm_eps=norm_eps,
        normalize_before=True,
        drop_path=drop_path,
        layer_scale=config.layer_scale,
    )


class Block(nn.Module):
    """Attention and a feed-forward network, each in a residual branch.

    The attention is called with (x, place): the windows of the tokens in Swin, their grid in CvT.
    """

    def __init__(
        self, layer_config: LayerConfig, attention: nn.Module, feed_forward: nn.Module
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_residual = Residual(layer_config)
        self.feed_forward = feed_forward
        self.feed_forward_residual = Residual(layer_config)

    def forward(self, x: Tensor, place: Any) -> Tensor:
        """Map [B, N, D] to [B, N, D]."""
        x = self.attention_residual(x, self.attention, place)
        return self.feed_forward_residual(x, self.feed_forward)


def new_feed_forward(config: VisionTransformerConfig, layer_config: LayerConfig) -> nn.Module:
    """Return a new feed-forward network for blocks of this width."""
    return build_feed_forward(
        config.feed_forward, layer_config.embed_dim, layer_config.ffn_dim, config.activation_dropout
    )


def drop_path_rates(rate: float, count: int) -> list[float]:
    """Return the blocks' rates of stochastic depth: from 0 in the first to ``rate`` in the last."""
    return [rate] if count == 1 else [rate * index / (count - 1) for index in range(count)]


def build_stages(
    config: VisionTransformerConfig,
    make_attention: Callable[[VisionTransformerConfig, int, int], MultiheadAttention],
    rates: Sequence[float],
) -> Sequence[Sequence[Block]]:
    """Return the blocks of each stage, as a module, with these rates of stochastic depth.

    Reference: Liu et al. 2021, "Swin Transformer", Eq. 3.
    """
    stages = nn.ModuleList()
    first = 0
    for stage, count in enumerate(config.stage_layers):
        blocks = nn.ModuleList()
        for layer in range(first, first + count):
            attention = make_attention(config, stage, layer)
            layer_config = block_config(config, attention.embed_dim, rates[layer], STAGE_NORM_EPS)
            feed_forward = new_feed_forward(config, layer_config)
            # Only direct children of the attention: a mechanism draws its own weights.
            initialize_linears((*attention.children(), *feed_forward.modules()))
            blocks.append(Block(layer_config, attention, feed_forward))
        stages.append(blocks)
        first += count
    return cast(Sequence[Sequence[Block]], stages)


def stage_norm(config: VisionTransformerConfig, dim: int) -> nn.Module:
    """Return a new normalization of vectors of this width."""
    return norms.get(config.norm)(dim, STAGE_NORM_EPS)


def mechanism(
    config: VisionTransformerConfig,
    layer: int,
    num_heads: int,
    head_dim: int | None = None,
    name: str = "attention",
) -> Attention:
    """Return the attention of a block, which the option called ``name`` chooses.

    Heads have the width D / ``config.heads`` by default.
    """
    return build_attention(
        Spec.parse(getattr(config, name)),
        slot="encoder",
        layer=layer,
        num_heads=num_heads,
        head_dim=head_dim or config.embed_dim // config.heads,
        dropout=config.attention_dropout,
        flag=flag_of(name),
    )


class ImageObjective(RegularizedObjective):
    """Cross-entropy per image plus the attention regularizer, both as in translation.

    A mixed image has the labels of both images, weighted by their shares. In validation the loss
    has no label smoothing. The ``criterion`` is ``cross_entropy`` of one distribution over the
    classes, or ``sigmoid_cross_entropy``, the sum over C independent distributions.
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
        self._criterion = cross_entropy if criterion == CROSS_ENTROPY else sigmoid_cross_entropy

    def loss(self, batch: "ImageBatch") -> LossOutput:
        """Return the cross-entropy of a batch, summed over its images."""
        logits = self.model(batch.images).logits  # [B, C]
        smoothing = self.label_smoothing if self.training else 0.0
        guesses = logits.argmax(1)
        loss = self._criterion(logits, batch.labels, smoothing)
        correct = (guesses == batch.labels).sum()
        # Both losses are linear in the target, so a mixed target is a weighted sum of two losses.
        if batch.other_labels is not None:
            other_loss = self._criterion(logits, batch.other_labels, smoothing)
            loss = batch.share * loss + (1 - batch.share) * other_loss
            other_correct = (guesses == batch.other_labels).sum()
            correct = batch.share * correct + (1 - batch.share) * other_correct
        count = batch.num_sentences
        return LossOutput(loss, count, {"accuracy": (100 * correct, count)})  # top-1, percent


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return the sum over images of -sum_c t_c log softmax(z)_c, for z [B, C] and labels [B].

    t is 1 - smoothing + smoothing / C at the label and smoothing / C elsewhere.
    """
    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)


def sigmoid_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return the sum of log(1 + exp(z)) - t z over images and classes (:func:`cross_entropy`: t).

    Reference: Beyer et al. 2020, "Are we done with ImageNet?", section 4: -t log p - (1 - t)
    log(1 - p) with p = 1 / (1 + exp(-z)).
    """
    # sum_c t_c z_c = (1 - smoothing) z_label + smoothing mean_c z_c
    label_logits = logits.gather(1, labels[:, None]).sum()
    target = (1 - smoothing) * label_logits + smoothing * logits.mean(1).sum()
    return F.softplus(logits).sum() - target
