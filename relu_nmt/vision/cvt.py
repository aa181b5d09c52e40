"""CvT: convolutions before the projections of attention, and between stages.

The blocks are those of Swin, with another attention.
"""

from collections.abc import Collection, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from relu_nmt.attention import attentions
from relu_nmt.attention.base import Dropout
from relu_nmt.attention.masks import Visibility
from relu_nmt.errors import ConfigError
from relu_nmt.modules.multihead import MultiheadAttention
from relu_nmt.modules.transformer_layer import run_layer
from relu_nmt.vision import vision_models
from relu_nmt.vision.base import (
    BatchNorm,
    EncodedImages,
    Grid,
    VisionModel,
    exempt_from_decay,
    growing,
    initialize,
    map_of,
    mechanism,
)
from relu_nmt.vision.config import VisionTransformerConfig, shown_sides
from relu_nmt.vision.swin import build_stages, stage_norm

FIRST_EMBEDDING = (7, 4, 2)
"""Width, stride and padding of the convolution before the first stage, in pixels."""
NEXT_EMBEDDING = (3, 2, 1)
SMALLEST_IMAGE = 3
"""Pixels a side that the first convolution needs."""
KEY_STRIDE = 2


class ConvolutionalAttention(MultiheadAttention):
    """Self-attention whose queries, keys and values each come from a convolution of their own.

    Each convolution is depth-wise, 3 x 3, and followed by batch normalisation and a linear map.
    Keys and values use stride 2, so they are a quarter of the queries. Class tokens, in front, go
    straight to the linear maps. Scores are divided by the square root of the width D, not of the
    width of a head.

    Raises:
        ConfigError: the attention needs as many keys as queries.

    Reference: Wu et al. 2021, "CvT: Introducing convolutions to vision transformers", section 3.2;
    the divisor of the scores is that of its public code.
    """

    def __init__(self, config: VisionTransformerConfig, stage: int, layer: int) -> None:
        dim, head_dim = config.stage_dims[stage], config.stage_head_dim
        attention = mechanism(config, layer, config.stage_heads[stage], head_dim)
        # Require a mechanism that accepts fewer keys than queries.
        able = attention.capabilities
        if not (able.cross or able.fewer_keys):
            kinds = ((name, attentions.get(name).capabilities) for name in attentions.names())
            fitting = ", ".join(name for name, kind in kinds if kind.cross or kind.fewer_keys)
            raise ConfigError(
                f"--attention {config.attention}: it needs as many keys as queries, but in CvT "
                f"they are a quarter; choose one of {fitting}"
            )
        super().__init__(dim, attention)
        self.q_convolution = depth_wise(dim, 1)
        self.k_convolution = depth_wise(dim, KEY_STRIDE)
        self.v_convolution = depth_wise(dim, KEY_STRIDE)
        self.q, self.k, self.v = self.draw_projections(1, 1, 1)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Map [B, N, D] to [B, N, D]; the last height * width of the N are the patches."""
        # Split off the class tokens, and lay out the patches as a map [B, D, height, width].
        first = x[:, : x.size(1) - grid.num_patches]
        image = map_of(x, grid)

        # Project the convolved patches behind the class tokens.
        def heads(convolution: nn.Module, linear: nn.Module) -> Tensor:
            tokens = convolution(image).flatten(2).transpose(1, 2)  # [B, N or N / 4, D]
            return self.split(linear(torch.cat([first, tokens], dim=1)))  # [B, H, N', d]

        q = self.attention.map_queries(heads(self.q_convolution, self.q))
        k = self.attention.map_keys(heads(self.k_convolution, self.k))
        v = heads(self.v_convolution, self.v)
        # The mechanism divides by the root of D / H; divide by the root of H, too.
        q = q * self.num_heads**-0.5
        visibility = Visibility(q.size(2), k.size(2), device=x.device)
        return self.finish(self.attend(q, k, v, visibility), x)


def depth_wise(dim: int, stride: int) -> nn.Sequential:
    """Return a new depth-wise 3 x 3 convolution with batch normalisation."""
    return nn.Sequential(
        nn.Conv2d(dim, dim, 3, stride, padding=1, groups=dim, bias=False), BatchNorm(dim)
    )


def convolutional_embedding(config: VisionTransformerConfig, stage: int) -> nn.ModuleDict:
    """Return a strided convolution and a norm, before a stage (Wu et al. 2021, section 3.1)."""
    channels = config.stage_dims[stage - 1] if stage else 3
    shape = NEXT_EMBEDDING if stage else FIRST_EMBEDDING
    convolution = nn.Conv2d(channels, config.stage_dims[stage], *shape)
    norm = stage_norm(config, config.stage_dims[stage])
    return nn.ModuleDict({"convolution": convolution, "norm": norm})


@vision_models.register("cvt")
class ConvolutionalTransformer(VisionModel):
    """Stages of blocks with convolutional projections, without positions.

    The last stage has a class token in front of its patches. Stochastic depth acts only there, at
    a rate that grows with the block. The convolutions pad the image, so it may have any size of 3
    pixels or more.

    Example:
        >>> config = VisionTransformerConfig.of(
        ...     family="cvt", embed_dim=8, stage_layers=(1, 2), stage_heads=(1, 2)
        ... )
        >>> output = ConvolutionalTransformer(config, 10)(torch.zeros(2, 3, 30, 50), blocks=[2])
        >>> tuple(output.logits.shape), tuple(output.intermediate[2].shape)
        ((2, 10), (2, 16, 4, 6))

    Reference: Wu et al. 2021, "CvT: Introducing convolutions to vision transformers", Table 2.
    """

    def __init__(self, config: VisionTransformerConfig, num_classes: int) -> None:
        super().__init__(config)
        _check_size(config.image_size)
        # Count the tokens of the first stage.
        width, stride, padding = FIRST_EMBEDDING
        height, breadth = ((n + 2 * padding - width) // stride + 1 for n in config.image_sides)
        self.num_tokens = height * breadth
        # Before each stage, embed the image or the map of the stage before.
        layers, dim = config.stage_layers, config.stage_dims[-1]
        embeddings = [convolutional_embedding(config, stage) for stage in range(len(layers))]
        self.embeddings = cast(Sequence[nn.ModuleDict], nn.ModuleList(embeddings))
        self.dropout = Dropout(config.dropout)
        # Drop branches in the last stage only, at growing rates.
        rates = [growing(config.drop_path, index, layers[-1]) for index in range(layers[-1])]
        rates = [0.0] * sum(layers[:-1]) + rates
        self.stages = build_stages(config, ConvolutionalAttention, rates)
        # Classify the class token.
        self.class_token = nn.Parameter(torch.empty(1, 1, dim))
        self.norm = stage_norm(config, dim)
        self.head = nn.Linear(dim, num_classes)
        initialize(self.class_token, self.head.weight)
        nn.init.zeros_(self.head.bias)
        exempt_from_decay(self, self.class_token)

    def encode(self, images: Tensor, blocks: Collection[int] = ()) -> EncodedImages:
        """See :meth:`VisionModel.encode`; raise a ConfigError if the images are too small."""
        # Each stage embeds the map [B, C, height, width] of the stage before.
        _check_size(images.shape[2:])
        image, intermediate, class_tokens, layer = images, {}, {}, 0
        for embedding, stage in zip(self.embeddings, self.stages, strict=True):
            image = embedding["convolution"](image)  # [B, D, height, width]
            grid = Grid(image.size(2), image.size(3))
            x = embedding["norm"](image.flatten(2).transpose(1, 2))  # [B, N, D]
            if stage is self.stages[-1]:
                first = self.class_token.expand(x.size(0), -1, -1)
                x = torch.cat([first, x], dim=1)  # [B, 1 + N, D]
            x = self.dropout(x)
            # Each token attends to all keys, a quarter of the tokens.
            for block in stage:
                x = run_layer(block, (x, grid), self.config.checkpoint_activations)
                if layer in blocks:
                    intermediate[layer] = map_of(x, grid)
                    if stage is self.stages[-1]:
                        class_tokens[layer] = x[:, 0]
                layer += 1
            # Lay the tokens out for the next stage: [B, D, height, width].
            image = map_of(x, grid)
        return EncodedImages(x, grid, intermediate, class_tokens)

    def features(self, encoded: EncodedImages, blocks: Collection[int] = ()) -> Tensor:
        """See :meth:`VisionModel.features`."""
        return self.norm(encoded.tokens[:, 0])  # [B, D]


def _check_size(sides: Sequence[int]) -> None:
    """Raise a ConfigError if images with these sides, in pixels, are too small."""
    if min(sides) < SMALLEST_IMAGE:
        raise ConfigError(f"--image-size {shown_sides(sides)}: CvT needs {SMALLEST_IMAGE} or more")
