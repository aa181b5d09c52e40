"""CvT: stages of blocks whose attention projects its tokens by convolutions.

A convolution also embeds the image, or the map of the stage before, at the beginning of each stage.
"""

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from relu_nmt.attention import attentions
from relu_nmt.attention.masks import Visibility
from relu_nmt.errors import ConfigError
from relu_nmt.modules.multihead import MultiheadAttention
from relu_nmt.vision import base, vision_models
from relu_nmt.vision.base import Grid, VisionModel
from relu_nmt.vision.config import VisionTransformerConfig, shown_sides
from relu_nmt.vision.convolutions import Convolutions, convolved

FIRST_EMBEDDING = (7, 4, 2)
"""Width, stride and padding of the convolution before the first stage, in pixels."""
NEXT_EMBEDDING = (3, 2, 1)
SMALLEST_IMAGE = 3  # pixels a side that the first convolution needs
KEY_STRIDE = 2


class ConvolutionalAttention(MultiheadAttention):
    """Self-attention with a convolutional projection each for queries, keys and values.

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
        if not attention.capabilities.sees_fewer_keys:
            names = attentions.names()
            fitting = [n for n in names if attentions.get(n).capabilities.sees_fewer_keys]
            raise ConfigError(
                f"--attention {config.attention}: it needs as many keys as queries, but in CvT "
                f"they are a quarter; choose one of {', '.join(fitting)}"
            )
        super().__init__(dim, attention)
        self.q_convolution = depth_wise(dim, 1)
        self.k_convolution = depth_wise(dim, KEY_STRIDE)
        self.v_convolution = depth_wise(dim, KEY_STRIDE)
        self.q = self.new_projection(1)
        self.k = self.new_projection(1)
        self.v = self.new_projection(1)
        self.draw_output()

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Map [B, N, D] to [B, N, D]. The last height * width of the N are the patches."""
        class_tokens = x[:, : x.size(1) - grid.num_patches]
        image = base.map_of(x, grid)

        def heads(convolution: nn.Module, linear: nn.Module) -> Tensor:
            tokens = convolution(image).flatten(2).transpose(1, 2)  # [B, N or N / 4, D]
            return self.split(linear(torch.cat([class_tokens, tokens], dim=1)))  # [B, H, N', d]

        q = self.attention.map_queries(heads(self.q_convolution, self.q))
        k = self.attention.map_keys(heads(self.k_convolution, self.k))
        v = heads(self.v_convolution, self.v)
        # The mechanism divides by the root of D / H. Divide by the root of H, too.
        q = q * self.num_heads**-0.5
        visibility = Visibility(q.size(2), k.size(2), device=x.device)
        return self.project_output(self.attend(q, k, v, visibility), x)


def depth_wise(dim: int, stride: int) -> Convolutions:
    """Return a new depth-wise 3 x 3 convolution with batch normalization."""
    return Convolutions(
        nn.Conv2d(dim, dim, 3, stride, padding=1, groups=dim, bias=False), nn.BatchNorm2d(dim)
    )


def convolutional_embedding(config: VisionTransformerConfig, stage: int) -> nn.ModuleDict:
    """Return the token embedding of a stage: a strided convolution and a norm (section 3.1)."""
    channels = 3
    width, stride, padding = FIRST_EMBEDDING
    if stage > 0:
        channels = config.stage_dims[stage - 1]
        width, stride, padding = NEXT_EMBEDDING
    dim = config.stage_dims[stage]
    convolution = nn.Conv2d(channels, dim, width, stride, padding)
    norm = base.stage_norm(config, dim)
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
        # Drop branches in the last stage only, at growing rates.
        rates = [0.0] * sum(layers[:-1]) + base.drop_path_rates(config.drop_path, layers[-1])
        self.stages = base.build_stages(config, ConvolutionalAttention, rates)
        self.class_token = nn.Parameter(torch.empty(1, 1, dim))
        self.add_classifier(base.stage_norm(config, dim), dim, num_classes, self.class_token)

    def encode(self, images: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        """Yield tokens and grid after each block (ConfigError: the images are too small)."""
        # Each stage embeds the map [B, C, height, width] of the stage before.
        _check_size(images.shape[2:])
        for embedding, stage in zip(self.embeddings, self.stages, strict=True):
            images = convolved(embedding["convolution"], images)  # [B, D, height, width]
            grid = Grid(images.size(2), images.size(3))
            x = embedding["norm"](images.flatten(2).transpose(1, 2))  # [B, N, D]
            if stage is self.stages[-1]:
                class_tokens = self.class_token.expand(x.size(0), -1, -1)
                x = torch.cat([class_tokens, x], dim=1)  # [B, 1 + N, D]
            x = self.with_dropout(x)
            for block in stage:
                x = self.run_block(block, x, grid)
                yield x, grid
            images = base.map_of(x, grid)

    def features(self, tokens: Tensor) -> Tensor:
        return self.norm(tokens[:, 0])  # [B, D]


def _check_size(sides: Sequence[int]) -> None:
    """Raise a ConfigError if images with these sides, in pixels, are too small."""
    if min(sides) < SMALLEST_IMAGE:
        raise ConfigError(f"--image-size {shown_sides(sides)}: CvT needs {SMALLEST_IMAGE} or more")
