"""Swin: attention inside windows of patches, which are merged between the stages of blocks.

The windows of every second block are shifted: W-MSA and SW-MSA alternate.
"""

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.score_bias import ScoreBias
from relu_nmt.modules.multihead import SelfAttention
from relu_nmt.vision import base, vision_models
from relu_nmt.vision.base import Grid, VisionModel
from relu_nmt.vision.config import VisionTransformerConfig
from relu_nmt.vision.vision_transformer import PatchEmbedding


class Axis:
    """The windows along one axis of a map: their side, and the padding that completes them."""

    def __init__(self, length: int, size: int, shifted: bool) -> None:
        self.side = min(size, length)
        self.before = 0
        if shifted and length > self.side:
            self.before = (self.side - self.side // 2) % self.side
        self.after = -(length + self.before) % self.side


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
        self.axes = [Axis(length, size, shifted) for length in grid]

    def take(self, x: Tensor) -> Tensor:
        """Return the windows [B W, N', C] of a map [B, N, C], with zeros for padding."""
        rows, columns = self.axes
        padding = 0, 0, columns.before, columns.after, rows.before, rows.after
        x = F.pad(x.unflatten(1, self.grid), padding)
        # Cut it: [B, rows of windows, window height, columns of windows, window width, C].
        x = x.unflatten(2, (-1, columns.side)).unflatten(1, (-1, rows.side))
        return x.transpose(2, 3).flatten(3, 4).flatten(0, 2)  # [B W, N', C]

    def put(self, windows: Tensor) -> Tensor:
        """Return the map [B, N, C] of windows [B W, N', C]."""
        rows, columns = self.axes
        height, width = self.grid
        across = (columns.before + width + columns.after) // columns.side
        # [B, rows of windows, window height, columns of windows, window width, C]
        x = windows.unflatten(1, (rows.side, columns.side))
        x = x.unflatten(0, (self.batch, -1, across)).transpose(2, 3)
        x = x.flatten(3, 4).flatten(1, 2)  # [B, padded height, padded width, C]
        x = x[:, rows.before : rows.before + height, columns.before : columns.before + width]
        return x.flatten(1, 2)  # without padding

    @cached_property
    def visibility(self) -> Visibility:
        """The visible keys of each window: its tokens without the padding."""
        # The mask [B W, N'] is True at tokens of the map. Without padding none is needed.
        height, width = (axis.side for axis in self.axes)
        length = height * width
        mask = None
        if any(axis.before or axis.after for axis in self.axes):
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
        y, x = (torch.arange(axis.side, device=self.device) for axis in self.axes)
        codes = (y[:, None] * (2 * self.size - 1) + x).flatten()[None]  # [1, N']
        return ScoreBias(table, codes, codes, zero=2 * self.size * (self.size - 1))


class WindowAttention(SelfAttention):
    """Self-attention inside windows (W-MSA), regular or shifted ones (SW-MSA).

    Scores, if there are any, get the bias B by relative position.

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
        return self.project_output(windows.put(values), x)


def patch_merging(config: VisionTransformerConfig, stage: int) -> nn.Sequential:
    """Return the norm and the linear map of joined patches [B, N, 4 D] behind a stage."""
    dim, next_dim = config.stage_dims[stage : stage + 2]
    reduction = nn.Linear(4 * dim, next_dim, bias=False)
    base.initialize(reduction.weight)
    return nn.Sequential(OrderedDict(norm=base.stage_norm(config, 4 * dim), reduction=reduction))


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
        self.patches_norm = base.stage_norm(config, dims[0])
        self.mergings = nn.ModuleList(patch_merging(config, i) for i in range(len(dims) - 1))
        rates = base.drop_path_rates(config.drop_path, sum(config.stage_layers))
        self.stages = base.build_stages(config, WindowAttention, rates)
        self.add_classifier(base.stage_norm(config, dims[-1]), dims[-1], num_classes)
        attentions_here = [m for m in self.modules() if isinstance(m, WindowAttention)]
        base.exempt_from_decay(self, *(module.position_bias for module in attentions_here))

    def encode(self, images: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        config = self.config
        x, grid = self.patches(images)  # [B, N, D]
        x = self.with_dropout(self.patches_norm(x))
        for number, stage in enumerate(self.stages):
            # Between stages: a quarter of the tokens, [B, N / 4, 2 D].
            if number:
                x, grid = joined_patches(x, grid)
                x = self.mergings[number - 1](x)
            # Alternate between regular and shifted windows.
            windows = [Windows(grid, config.window_size, shifted, x) for shifted in (False, True)]
            for index, block in enumerate(stage):
                x = self.run_block(block, x, windows[index % 2])
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
