"""Transformers whose blocks come in stages: Swin and CvT.

Swin's attention stays inside windows of patches, which are shifted in every second block. Patches
are merged between stages. CvT has convolutions instead, before the projections of attention and
between stages.
"""

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention import attentions
from relu_nmt.attention.dropout import Dropout
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.score_bias import ScoreBias
from relu_nmt.errors import ConfigError
from relu_nmt.modules import norms
from relu_nmt.modules.multihead import MultiheadAttention, SelfAttention
from relu_nmt.modules.recompute import run_layer
from relu_nmt.vision import base, vision_models
from relu_nmt.vision.base import Block, Convolutions, Grid, VisionModel
from relu_nmt.vision.config import VisionTransformerConfig, shown_sides
from relu_nmt.vision.vision_transformer import PatchEmbedding

STAGE_NORM_EPS = 1e-5
FIRST_EMBEDDING = (7, 4, 2)
"""Width, stride and padding of the convolution before the first stage, in pixels."""
NEXT_EMBEDDING = (3, 2, 1)
SMALLEST_IMAGE = 3  # pixels a side that the first convolution needs
KEY_STRIDE = 2


class Windows:
    """The windows of a map: rows of tokens that any attention can read.

    Shifted windows begin half a window, rounded down, above and left of the map. Windows that reach
    beyond the map hold padding, which is no key. Their other tokens are the regions that the
    paper's masks separate after its cyclic shift. A map no larger than a window, ``size`` patches a
    side, is one window and is not shifted.

    Example:
        >>> windows = Windows(Grid(1, 3), 2, True, torch.zeros(1, 3, 1))
        >>> rows = windows.take(torch.tensor([[[5], [6], [7]]]))
        >>> rows[..., 0].tolist(), windows.visibility.counts.flatten().tolist()
        ([[0, 5], [6, 7]], [1.0, 2.0])
        >>> windows.put(rows)[0, :, 0].tolist()
        [5, 6, 7]

    Reference: Liu et al. 2021, "Swin Transformer", section 3.2.
    """

    def __init__(self, grid: Grid, size: int, shifted: bool, x: Tensor) -> None:
        self.grid = grid
        self.size = size
        self.device = x.device
        self.batch = x.size(0)
        # On each axis the side of a window, and the padding that completes the windows.
        self.sides: list[int] = []
        self.before: list[int] = []
        self.after: list[int] = []
        for length in grid:
            side = min(size, length)
            before = 0
            if shifted and length > side:
                before = side - side // 2
            self.sides.append(side)
            self.before.append(before % side)
            self.after.append(-(length + before) % side)

    def take(self, x: Tensor) -> Tensor:
        """Return the windows [B W, N', C] of a map [B, N, C], with zeros for padding."""
        top, left = self.before
        bottom, right = self.after
        x = F.pad(x.unflatten(1, self.grid), (0, 0, left, right, top, bottom))
        # Cut it: [B, rows of windows, window height, columns of windows, window width, C].
        x = x.unflatten(2, (-1, self.sides[1])).unflatten(1, (-1, self.sides[0]))
        return x.transpose(2, 3).flatten(3, 4).flatten(0, 2)  # [B W, N', C]

    def put(self, rows: Tensor) -> Tensor:
        """Return the map [B, N, C] of windows [B W, N', C]."""
        top, left = self.before
        height, width = self.grid
        across = (left + width + self.after[1]) // self.sides[1]
        # [B, rows of windows, window height, columns of windows, window width, C]
        x = rows.unflatten(1, self.sides).unflatten(0, (self.batch, -1, across)).transpose(2, 3)
        x = x.flatten(3, 4).flatten(1, 2)  # [B, padded height, padded width, C]
        return x[:, top : top + height, left : left + width].flatten(1, 2)  # without padding

    @cached_property
    def visibility(self) -> Visibility:
        """The visible keys of each window: its tokens without the padding."""
        # The mask [B W, N'] is True at tokens of the map. Without padding none is needed.
        height, width = self.sides
        length = height * width
        mask = None
        if any((*self.before, *self.after)):
            # Take the windows of a map of True, whose padding is False: [B W, N'].
            shape = 1, self.grid.num_patches, 1
            is_patch = torch.ones(shape, dtype=torch.bool, device=self.device)
            mask = self.take(is_patch)[..., 0].repeat(self.batch, 1)
        return Visibility(
            length, length, key_mask=mask, query_mask=mask, device=self.device, grid=(height, width)
        )

    def bias(self, table: Tensor) -> ScoreBias:
        """Return the bias of the scores in each window, by offset in a table [H, (2 w - 1)^2]."""
        # Codes of the tokens: the difference of two codes is the index of their offset.
        height, width = (torch.arange(side, device=self.device) for side in self.sides)
        codes = (height[:, None] * (2 * self.size - 1) + width).flatten()[None]  # [1, N']
        return ScoreBias(table, codes, codes, zero=2 * self.size * (self.size - 1))


class WindowAttention(SelfAttention):
    """Self-attention inside windows. Scores, if there are any, get a bias by relative position.

    Reference: Liu et al. 2021, "Swin Transformer", Eq. 4.
    """

    def __init__(self, config: VisionTransformerConfig, stage: int, layer: int) -> None:
        attention = base.mechanism(config, layer, config.stage_heads[stage], config.stage_head_dim)
        super().__init__(config.stage_dims[stage], attention)
        self.position_bias = None
        if self.attention.capabilities.scores:
            differences = (2 * config.window_size - 1) ** 2
            self.position_bias = nn.Parameter(torch.empty(differences, self.num_heads))
            base.initialize(self.position_bias)

    def forward(self, x: Tensor, windows: Windows) -> Tensor:  # type: ignore[override]
        """Map [B, N, D] to [B, N, D]."""
        q, k, v = self.heads(windows.take(self.qkv(x)))  # [B W, H, N', d]
        bias = None if self.position_bias is None else windows.bias(self.position_bias.T)
        values = self.attend(q, k, v, windows.visibility, bias)  # [B W, N', D]
        return self.finish(windows.put(values), x)


def build_stages(
    config: VisionTransformerConfig,
    make_attention: Callable[[VisionTransformerConfig, int, int], MultiheadAttention],
    drop_paths: Sequence[float],
) -> Sequence[Sequence[Block]]:
    """Return the blocks of each stage, as a module (Liu et al. 2021, "Swin Transformer", Eq. 3)."""
    stages = nn.ModuleList()
    rates = enumerate(drop_paths)
    for stage, count in enumerate(config.stage_layers):
        blocks = nn.ModuleList()
        for layer, rate in itertools.islice(rates, count):
            attention = make_attention(config, stage, layer)
            placement = base.pre_norm(config, attention.embed_dim, rate, STAGE_NORM_EPS)
            feed_forward = base.new_feed_forward(config, placement)
            # Only direct children of the attention: a mechanism draws its own weights.
            base.initialize_linears((*attention.children(), *feed_forward.modules()))
            blocks.append(Block(placement, attention, feed_forward))
        stages.append(blocks)
    return cast(Sequence[Sequence[Block]], stages)


def stage_norm(config: VisionTransformerConfig, dim: int) -> nn.Module:
    """Return a new normalization of vectors of this width."""
    return norms.get(config.norm)(dim, STAGE_NORM_EPS)


def patch_merging(config: VisionTransformerConfig, stage: int) -> nn.Sequential:
    """Return the norm and the linear map of joined patches [B, N, 4 D] behind a stage."""
    dim, next_dim = config.stage_dims[stage : stage + 2]
    reduction = nn.Linear(4 * dim, next_dim, bias=False)
    base.initialize(reduction.weight)
    return nn.Sequential(OrderedDict(norm=stage_norm(config, 4 * dim), reduction=reduction))


def joined_patches(x: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
    """Join 2 x 2 patches, zeros beyond odd sides: [B, N, D] to [B, about N / 4, 4 D] and its grid.

    Reference: Liu et al. 2021, "Swin Transformer", section 3.1.
    """
    height, width = grid
    x = F.pad(x.unflatten(1, grid), (0, 0, 0, width % 2, 0, height % 2))  # [B, Y, X, D]
    x = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2))  # [B, Y/2, 2, X/2, 2, D]
    # Join four patches, column by column as in the public weights: [B, Y/2, X/2, 4 D].
    x = x.permute(0, 1, 3, 4, 2, 5).flatten(3)
    return x.flatten(1, 2), Grid(x.size(1), x.size(2))


@vision_models.register("swin")
class SwinTransformer(VisionModel):
    """Stages of blocks with attention inside windows. Between stages, patches are merged.

    Images of any size are padded to whole patches with zeros, the mean color. The count n of a
    query is the number of patches in its window, without padding.

    Reference: Liu et al. 2021, "Swin Transformer: Hierarchical vision transformer using shifted
    windows". Deviation: padded patches of maps that are no multiple of the window are no keys.
    """

    def __init__(self, config: VisionTransformerConfig, num_classes: int) -> None:
        super().__init__(config)
        dims = config.stage_dims
        self.num_tokens = base.grid_of(config.image_sides, config.patch_sides).num_patches
        self.patches = PatchEmbedding(config.patch_sides, dims[0])
        self.patches_norm = stage_norm(config, dims[0])
        self.dropout = Dropout(config.dropout)
        self.mergings = nn.ModuleList(patch_merging(config, i) for i in range(len(dims) - 1))
        count = sum(config.stage_layers)
        rates = [base.growing(config.drop_path, layer, count) for layer in range(count)]
        self.stages = build_stages(config, WindowAttention, rates)
        self.norm = stage_norm(config, dims[-1])
        self.head = nn.Linear(dims[-1], num_classes)
        base.initialize(self.head.weight)
        nn.init.zeros_(self.head.bias)
        attentions_here = [m for m in self.modules() if isinstance(m, WindowAttention)]
        base.exempt_from_decay(self, *(module.position_bias for module in attentions_here))

    def encode(self, images: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        config = self.config
        x, grid = self.patches(images)  # [B, N, D]
        x = self.dropout(self.patches_norm(x))
        for number, stage in enumerate(self.stages):
            # Between stages: a quarter of the tokens, [B, N / 4, 2 D].
            if number:
                x, grid = joined_patches(x, grid)
                x = self.mergings[number - 1](x)
            # Alternate between regular and shifted windows.
            windows = [Windows(grid, config.window_size, shifted, x) for shifted in (False, True)]
            for index, block in enumerate(stage):
                x = run_layer(block, (x, windows[index % 2]), config.checkpoint_activations)
                yield x, grid

    def features(self, tokens: Tensor) -> Tensor:
        return self.norm(tokens).mean(1)  # [B, D]


def fit_position_biases(weights: dict[str, Tensor], initial: Mapping[str, Tensor]) -> list[str]:
    """Interpolate, in place, biases [(2 M - 1)^2, H] of windows of another size M. Return notes."""
    notes: dict[str, None] = {}
    for name, tensor in weights.items():
        is_bias = name.endswith(".position_bias") and name in initial
        if is_bias and len(tensor) != len(initial[name]):
            side = math.isqrt(len(tensor))
            model_side = math.isqrt(len(initial[name]))
            model_grid = Grid(model_side, model_side)
            weights[name] = base.resize_positions(tensor, Grid(side, side), model_grid)
            # Derive the side M of a window from 2 M - 1.
            size = side // 2 + 1
            notes[f"its position biases of windows of {size} patches are interpolated"] = None
    return list(notes)


class ConvolutionalAttention(MultiheadAttention):
    """Self-attention with separate convolutions for queries, keys and values.

    Each convolution is depth-wise, 3 x 3, with batch normalization, and precedes a linear map. Keys
    and values use stride 2, so they are a quarter of the queries. Class tokens, in front, go
    straight to the linear maps. Scores are divided by sqrt(D), not by the root of a head's width.

    Reference: Wu et al. 2021, "CvT: Introducing convolutions to vision transformers", section 3.2.
    The public code has this divisor of the scores.
    """

    def __init__(self, config: VisionTransformerConfig, stage: int, layer: int) -> None:
        dim = config.stage_dims[stage]
        head_dim = config.stage_head_dim
        attention = base.mechanism(config, layer, config.stage_heads[stage], head_dim)
        able = attention.capabilities
        if not (able.cross or able.fewer_keys):
            fitting = []
            for name in attentions.names():
                kind = attentions.get(name).capabilities
                if kind.cross or kind.fewer_keys:
                    fitting.append(name)
            raise ConfigError(
                f"--attention {config.attention}: it needs as many keys as queries, but in CvT "
                f"they are a quarter; choose one of {', '.join(fitting)}"
            )
        super().__init__(dim, attention)
        self.q_convolution = depth_wise(dim, 1)
        self.k_convolution = depth_wise(dim, KEY_STRIDE)
        self.v_convolution = depth_wise(dim, KEY_STRIDE)
        self.q, self.k, self.v = self.draw_projections(1, 1, 1)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Map [B, N, D] to [B, N, D]. The last height * width of the N are the patches."""
        first = x[:, : x.size(1) - grid.num_patches]
        image = base.map_of(x, grid)

        def heads(convolution: nn.Module, linear: nn.Module) -> Tensor:
            tokens = convolution(image).flatten(2).transpose(1, 2)  # [B, N or N / 4, D]
            return self.split(linear(torch.cat([first, tokens], dim=1)))  # [B, H, N', d]

        q = self.attention.map_queries(heads(self.q_convolution, self.q))
        k = self.attention.map_keys(heads(self.k_convolution, self.k))
        v = heads(self.v_convolution, self.v)
        # The mechanism divides by the root of D / H. Divide by the root of H, too.
        q = q * self.num_heads**-0.5
        visibility = Visibility(q.size(2), k.size(2), device=x.device)
        return self.finish(self.attend(q, k, v, visibility), x)


def depth_wise(dim: int, stride: int) -> Convolutions:
    """Return a new depth-wise 3 x 3 convolution with batch normalization."""
    return Convolutions(
        nn.Conv2d(dim, dim, 3, stride, padding=1, groups=dim, bias=False), nn.BatchNorm2d(dim)
    )


def convolutional_embedding(config: VisionTransformerConfig, stage: int) -> nn.ModuleDict:
    """Return a strided convolution and a norm, before a stage (Wu et al. 2021, section 3.1)."""
    channels = 3
    width, stride, padding = FIRST_EMBEDDING
    if stage > 0:
        channels = config.stage_dims[stage - 1]
        width, stride, padding = NEXT_EMBEDDING
    dim = config.stage_dims[stage]
    convolution = nn.Conv2d(channels, dim, width, stride, padding)
    norm = stage_norm(config, dim)
    return nn.ModuleDict({"convolution": convolution, "norm": norm})


@vision_models.register("cvt")
class ConvolutionalTransformer(VisionModel):
    """Stages of blocks with convolutional projections, without positions.

    The last stage has a class token in front of its patches. Stochastic depth acts only there, at
    a rate that grows with the block. The convolutions pad the image, so it may have any size of 3
    pixels or more.

    Reference: Wu et al. 2021, "CvT: Introducing convolutions to vision transformers", Table 2.
    """

    def __init__(self, config: VisionTransformerConfig, num_classes: int) -> None:
        super().__init__(config)
        _check_size(config.image_size)
        width, stride, padding = FIRST_EMBEDDING
        height, breadth = ((n + 2 * padding - width) // stride + 1 for n in config.image_sides)
        self.num_tokens = height * breadth
        # Before each stage, embed the image or the map of the stage before.
        layers = config.stage_layers
        dim = config.stage_dims[-1]
        embeddings = [convolutional_embedding(config, stage) for stage in range(len(layers))]
        self.embeddings = cast(Sequence[nn.ModuleDict], nn.ModuleList(embeddings))
        self.dropout = Dropout(config.dropout)
        # Drop branches in the last stage only, at growing rates.
        rates = [base.growing(config.drop_path, index, layers[-1]) for index in range(layers[-1])]
        rates = [0.0] * sum(layers[:-1]) + rates
        self.stages = build_stages(config, ConvolutionalAttention, rates)
        self.class_token = nn.Parameter(torch.empty(1, 1, dim))
        self.norm = stage_norm(config, dim)
        self.head = nn.Linear(dim, num_classes)
        base.initialize(self.class_token, self.head.weight)
        nn.init.zeros_(self.head.bias)
        base.exempt_from_decay(self, self.class_token)

    def encode(self, images: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        """See :meth:`VisionModel.encode`. Raise a ConfigError if the images are too small."""
        # Each stage embeds the map [B, C, height, width] of the stage before.
        _check_size(images.shape[2:])
        for embedding, stage in zip(self.embeddings, self.stages, strict=True):
            images = base.convolved(embedding["convolution"], images)  # [B, D, height, width]
            grid = Grid(images.size(2), images.size(3))
            x = embedding["norm"](images.flatten(2).transpose(1, 2))  # [B, N, D]
            if stage is self.stages[-1]:
                first = self.class_token.expand(x.size(0), -1, -1)
                x = torch.cat([first, x], dim=1)  # [B, 1 + N, D]
            x = self.dropout(x)
            for block in stage:
                x = run_layer(block, (x, grid), self.config.checkpoint_activations)
                yield x, grid
            images = base.map_of(x, grid)

    def features(self, tokens: Tensor) -> Tensor:
        return self.norm(tokens[:, 0])  # [B, D]


def _check_size(sides: Sequence[int]) -> None:
    """Raise a ConfigError if images with these sides, in pixels, are too small."""
    if min(sides) < SMALLEST_IMAGE:
        raise ConfigError(f"--image-size {shown_sides(sides)}: CvT needs {SMALLEST_IMAGE} or more")
