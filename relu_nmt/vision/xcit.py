"""XCiT: patches mixed by attention between channels and by small convolutions."""

import math
from collections import OrderedDict
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from relu_nmt.attention.masks import Visibility
from relu_nmt.errors import ConfigError
from relu_nmt.modules import norms
from relu_nmt.modules.multihead import SelfAttention
from relu_nmt.modules.transformer_layer import Residual
from relu_nmt.vision import base, vision_models
from relu_nmt.vision.base import Block, Grid, VisionModel
from relu_nmt.vision.config import VisionTransformerConfig
from relu_nmt.vision.convolutions import Convolutions

WAVES = 32  # sines and cosines of the position on each axis
ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU}


@vision_models.register("xcit")
class XCiT(VisionModel):
    """Blocks of attention, local patch interaction and feed-forward network for patches.

    Blocks of class attention follow, in which a class token reads the patches.

    The attention is ``xca`` in the paper.

    Reference: El-Nouby et al. 2021, "XCiT: Cross-Covariance Image Transformers", sections 3.3 and
    4. The block order and the effect of class attention on the patches follow the public code.
    """

    classifier = ("class_token", "class_blocks", "norm", "head")

    def __init__(self, config: VisionTransformerConfig, num_classes: int) -> None:
        super().__init__(config)
        dim = config.embed_dim
        self.num_tokens = base.grid_of(config.image_sides, config.patch_sides).num_patches
        self.stem = convolutional_stem(config)
        self.positions = nn.Linear(2 * WAVES, dim)
        self.blocks = nn.ModuleList(XCiTBlock(config, i) for i in range(config.layers))
        self.class_token = nn.Parameter(torch.empty(1, 1, dim))
        self.class_blocks = nn.ModuleList(
            ClassBlock(config, config.layers + i) for i in range(config.class_layers)
        )
        norm = norms.get(config.norm)(dim, base.NORM_EPS)
        self.add_classifier(norm, dim, num_classes, self.class_token)

    def encode(self, images: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        feature_map = self.stem(images)  # [B, D, height, width]
        grid = Grid(feature_map.size(2), feature_map.size(3))
        x = feature_map.flatten(2).transpose(1, 2)  # [B, N, D]
        waves = fourier_positions(grid, x.device).to(self.positions.weight.dtype)
        x = self.with_dropout(x + self.positions(waves))
        visibility = Visibility(x.size(1), x.size(1), device=x.device, grid=grid)
        for block in self.blocks:
            x = self.run_block(block, x, visibility, grid)
            yield x, grid
        # Put the class token in front, and let it attend to the patches.
        x = torch.cat([self.class_token.expand(x.size(0), -1, -1), x], dim=1)  # [B, 1 + N, D]
        for block in self.class_blocks:
            x = block(x, grid)
            yield x[:, :1], Grid(0, 0)

    def features(self, tokens: Tensor) -> Tensor:
        return self.norm(tokens[:, 0])  # [B, D]


def convolutional_stem(config: VisionTransformerConfig) -> nn.Sequential:
    """Return convolutions, each of which halves the sides: [B, 3, Y, X] to [B, D, height, width].

    Reference: El-Nouby et al. 2021, appendix A. Graham et al. 2021, "LeViT", section 4.2.
    """
    halvings = [side.bit_length() - 1 for side in config.patch_sides]
    steps = max(halvings)
    # Check that halvings end exactly at a patch, and leave a width.
    if any(2**n != side for n, side in zip(halvings, config.patch_sides, strict=True)):
        raise ConfigError(
            f"--patch-size {'x'.join(map(str, config.patch_sides))}: --family xcit needs sides "
            "that are powers of 2"
        )
    if steps == 0 or config.embed_dim % 2 ** (steps - 1):
        raise ConfigError(
            f"--embed-dim {config.embed_dim} with patches of {max(config.patch_sides)} pixels: "
            f"--family xcit halves sides and width {steps} times, at least once"
        )
    # Double the width with each halving, up to D in the last. The shorter side stops earlier.
    layers: list[nn.Module] = []
    width = 3
    for step in range(1, steps + 1):
        wider = config.embed_dim >> (steps - step)
        # Keep the length of a side that is short enough already.
        stride = [2 if step <= n else 1 for n in halvings]
        layers += [
            nn.Conv2d(width, wider, 3, (stride[0], stride[1]), padding=1, bias=False),
            nn.BatchNorm2d(wider),
            ACTIVATIONS[config.conv_activation](),
        ]
        width = wider
    return nn.Sequential(OrderedDict(layers=Convolutions(*layers[:-1])))


def fourier_positions(grid: Grid, device: torch.device) -> Tensor:
    """Return 32 sines and cosines of rows, and 32 of columns, [N, 64]: from 2 pi / size to 2 pi."""
    # Space the rates geometrically, beginning with 1.
    rates = 10000.0 ** (-torch.arange(0, WAVES, 2, device=device) / WAVES)  # [16]
    waves = []
    for size in grid:
        positions = torch.arange(1, size + 1, device=device) * (2 * math.pi / (size + 1e-6))
        angles = positions[:, None] * rates  # [size, 16]
        waves.append(torch.stack([angles.sin(), angles.cos()], 2).flatten(1))  # [size, 32]
    # Repeat waves of rows along columns, and waves of columns along rows: [height, width, 32].
    rows = waves[0][:, None].expand(-1, grid.width, -1)
    columns = waves[1][None].expand(grid.height, -1, -1)
    return torch.cat([rows, columns], 2).flatten(0, 1)  # [N, 64]


def local_patch_interaction(config: VisionTransformerConfig) -> Convolutions:
    """Return two depth-wise 3 x 3 convolutions of a map, with activation and BatchNorm between.

    Reference: El-Nouby et al. 2021, section 3.3. The activation precedes the BatchNorm, as in the
    public code.
    """
    dim = config.embed_dim
    return Convolutions(
        OrderedDict(
            first=nn.Conv2d(dim, dim, 3, padding=1, groups=dim),
            activation=ACTIVATIONS[config.conv_activation](),
            norm=nn.BatchNorm2d(dim),
            second=nn.Conv2d(dim, dim, 3, padding=1, groups=dim),
        )
    )


class XCiTBlock(nn.Module):
    """Attention, perhaps convolutions of the patches, and a feed-forward network."""

    def __init__(self, config: VisionTransformerConfig, index: int) -> None:
        super().__init__()
        # All blocks have the same rate of stochastic depth.
        layer_config = base.block_config(config, config.embed_dim, config.drop_path)
        attention = base.mechanism(config, index, config.heads)
        self.attention = SelfAttention(config.embed_dim, attention)
        self.attention_residual = Residual(layer_config)
        base.initialize(self.attention.qkv.weight, self.attention.out_proj.weight)
        self.local = None
        if config.local_patch_interaction:
            self.local = local_patch_interaction(config)
            self.local_residual = Residual(layer_config)
        self.feed_forward = base.new_feed_forward(config, layer_config)
        self.feed_forward_residual = Residual(layer_config)
        base.initialize_linears(self.feed_forward.modules())

    def forward(self, x: Tensor, visibility: Visibility, grid: Grid) -> Tensor:
        """Map [B, N, D] to [B, N, D]."""
        x = self.attention_residual(x, self.attention, visibility)
        if self.local is not None:
            feature_map = base.map_of(self.local_residual.before(x), grid)  # [B, D, height, width]
            x = self.local_residual.add(x, self.local(feature_map).flatten(2).transpose(1, 2))
        return self.feed_forward_residual(x, self.feed_forward)


class ClassAttention(SelfAttention):
    """Attention of the first token, the class token, to all tokens.

    A mechanism that normalizes queries over the tokens (SimA) gets the queries of all tokens. Then
    only the first output is kept.

    Reference: Touvron et al. 2021, "Going deeper with image transformers", section 3. The public
    code of SimA.
    """

    def forward(self, x: Tensor, grid: Grid) -> Tensor:  # type: ignore[override]
        """Map tokens [B, N, D] to the output of the first, [B, 1, D]."""
        q, k, v = self.heads(self.qkv(x))  # [B, H, N, d] each
        # Keep only the class token's query if the mechanism allows fewer queries.
        if self.attention.capabilities.cross:
            q = q[:, :, :1]
        visibility = Visibility(q.size(2), k.size(2), device=x.device, grid=grid)
        values = self.attend(q, k, v, visibility)
        return self.project_output(values[:, :1], x[:, :1])


class ClassBlock(Block):
    """Class attention and a feed-forward network for the class token.

    Patches are changed as in the public code: their normed states are added to them. Then they are
    normed again (not in the nano models) and doubled. ``layer`` continues the indices of the other
    blocks.
    """

    def __init__(self, config: VisionTransformerConfig, layer: int) -> None:
        # The heads have the width of all blocks. The mechanism may differ.
        attention = base.mechanism(config, layer, config.heads, name="class_attention")
        class_attention = ClassAttention(config.embed_dim, attention)
        base.initialize(class_attention.qkv.weight, class_attention.out_proj.weight)
        layer_config = base.block_config(config, config.embed_dim, drop_path=0.0)
        feed_forward = base.new_feed_forward(config, layer_config)
        base.initialize_linears(feed_forward.modules())
        super().__init__(layer_config, class_attention, feed_forward)
        self.norms_patches = config.class_layers_norm_patches

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Map class token and patches [B, 1 + N, D] to [B, 1 + N, D]."""
        # The class token gets its attention output, the patches get their own normed states.
        residual = self.attention_residual
        normed = residual.before(x)
        x = residual.add(x, torch.cat([self.attention(normed, grid), normed[:, 1:]], dim=1))
        # The class token passes the feed-forward network. Patches are normed and doubled.
        residual = self.feed_forward_residual
        class_token = residual.before(x[:, :1])
        patches = x[:, 1:]
        if self.norms_patches:
            patches = residual.before(patches)
        class_token = residual.add(class_token, self.feed_forward(class_token))
        return torch.cat([class_token, 2 * patches], dim=1)
