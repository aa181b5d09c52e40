"""Mask R-CNN on the feature pyramid of a vision transformer, and its loss."""

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, cast

import torch
from coco import DetectionBatch
from mask_rcnn import FeaturePyramidNetwork, MaskRCNN
from torch import Tensor, nn

from relu_nmt.attention.base import Need
from relu_nmt.attention.records import attention_telemetry, record_attention
from relu_nmt.config import like, option, settings, to_dict
from relu_nmt.errors import ConfigError
from relu_nmt.modules import norms
from relu_nmt.modules.objective import LossOutput
from relu_nmt.vision.base import (
    NORM_EPS,
    VisionModel,
    build_vision_model,
    exempt_from_decay,
    map_of,
)
from relu_nmt.vision.config import PreprocessingConfig, VisionTransformerConfig, shown_sides

PYRAMID_DIM = 256
STRIDES = (4, 8, 16, 32)
"""Distance of neighboring positions of each map, in pixels of the image."""
DEPTHS = ((1, 3), (1, 2), (2, 3), (1, 1))
"""Fraction of the blocks before each map: 4, 6, 8 and 12 of 12 blocks."""


@settings
class DetectorConfig:
    """Settings of the detector on the backbone, and of the size of images.

    Raises:
        ConfigError: a value out of range.
    """

    min_size: tuple[int, ...] = option(
        (128,),
        "shorter side of an image in pixels. Given several numbers, training draws one for each "
        "image, and evaluation takes the last one",
        least=1,
        metavar="N,N",
    )
    max_size: int = option(1333, "longest side of an image; larger images are reduced", least=1)
    anchor_scale: float = option(
        8.0, "sides of anchors, in strides of their map", above=0, metavar="F"
    )
    proposals: int = option(
        2000, "most proposals of an image in training. In evaluation half as many", least=2
    )
    sampled_boxes: int = option(512, "proposals of an image that the heads learn from", least=4)
    pixel_mean: tuple[float, ...] = like(PreprocessingConfig, "pixel_mean")
    pixel_std: tuple[float, ...] = like(PreprocessingConfig, "pixel_std")

    def check(self) -> None:
        """Compare the sizes, and count the colors."""
        if max(self.min_size) > self.max_size:
            raise ConfigError(
                f"--max-size {self.max_size}: expected {max(self.min_size)}, the largest of "
                "--min-size, or more"
            )
        if not len(self.pixel_mean) == len(self.pixel_std) == 3:
            raise ConfigError("--pixel-mean and --pixel-std: expected three numbers, as .5,.5,.5")


class FeaturePyramid(nn.Module):
    """The blocks of a vision transformer, with layers that give maps of strides 4, 8, 16 and 32.

    Swin and CvT give the normalized map of each stage. In ViT and XCiT all blocks have the stride
    of a patch, and the maps come after a third, a half, two thirds and all of the blocks.
    Transposed convolutions make these maps finer and max pooling makes them coarser. The
    classifier is removed.

    Args:
        model: gives the maps by its ``encode``. The pyramid removes its classifier.

    Attributes:
        channels: of each map.
        strides: of each map, in pixels.

    Raises:
        ConfigError: the size of a patch is none of the strides.

    Reference: El-Nouby et al. 2021, "XCiT", section 4.3, with the layers of its public code
    that change strides. Liu et al. 2021, "Swin Transformer", section 4.2, with the norms of its
    public code.

    Example:
        >>> import torch
        >>> from relu_nmt.vision.base import build_vision_model
        >>> from relu_nmt.vision.config import VisionTransformerConfig
        >>> config = VisionTransformerConfig.of(family="xcit", attention="sima", layers=3)
        >>> maps = FeaturePyramid(build_vision_model(config, 1))(torch.zeros(1, 3, 64, 96))
        >>> [tuple(x.shape) for x in maps.values()]
        [(1, 192, 16, 24), (1, 192, 8, 12), (1, 192, 4, 6), (1, 192, 2, 3)]
    """

    def __init__(self, model: VisionModel) -> None:
        super().__init__()
        # Remove the classifier.
        config = model.config
        for name in model.classifier:
            delattr(model, name)
        self.model = model
        # Choose the block, width, stride and last layers of each map.
        if config.family in ("vit", "xcit"):
            side = config.patch_size[0]
            if len(set(config.patch_size)) > 1 or side not in STRIDES:
                raise ConfigError(
                    f"--patch-size {shown_sides(config.patch_size)}: a feature "
                    "pyramid needs square patches of 4, 8, 16 or 32 pixels"
                )
            # All blocks have the same stride. The layers change it.
            self.blocks = [max(1, config.layers * n // m) - 1 for n, m in DEPTHS]
            self.channels = [config.embed_dim] * len(STRIDES)
            self.strides = list(STRIDES)
            levels = [changed_stride(config.embed_dim, side, stride) for stride in STRIDES]
        else:
            # Take the last block of each stage, with a norm.
            ends = [sum(config.stage_layers[: i + 1]) for i in range(len(config.stage_dims))]
            self.blocks = [end - 1 for end in ends]
            self.channels = list(config.stage_dims)
            first = config.patch_size[0] if config.family == "swin" else 4
            self.strides = [first * 2**stage for stage in range(len(ends))]
            make_norm = norms.get(config.norm)
            levels = [nn.ModuleDict({"norm": make_norm(dim, NORM_EPS)}) for dim in self.channels]
        self.levels = cast(Sequence[nn.Module], nn.ModuleList(levels))
        exempt_from_decay(self)

    def forward(self, images: Tensor) -> "OrderedDict[str, Tensor]":
        """Return the maps [B, C, Y / stride, X / stride] by number, the finest first.

        Sides that are no multiple of a patch are rounded up.

        Args:
            images: [B, 3, Y, X], normalized.
        """
        # Keep the maps of some blocks. Compute no block behind the last of them.
        outputs = itertools.islice(self.model.encode(images), self.blocks[-1] + 1)
        block_maps = {}
        for block, (x, grid) in enumerate(outputs):
            if block in self.blocks:
                block_maps[block] = map_of(x, grid)
        maps: OrderedDict[str, Tensor] = OrderedDict()
        for number, (block, level) in enumerate(zip(self.blocks, self.levels, strict=True)):
            x = block_maps[block]  # [B, C, height, width]
            # A norm acts on the last axis.
            if isinstance(level, nn.ModuleDict):
                maps[str(number)] = level["norm"](x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            else:
                maps[str(number)] = level(x)
        return maps


def changed_stride(dim: int, old: int, new: int) -> nn.Module:
    """Return the layers that change the stride of a map with ``dim`` channels, a power of 2."""
    if new >= old:
        return nn.MaxPool2d(new // old) if new > old else nn.Identity()
    # Each transposed convolution halves the stride.
    layers: list[nn.Module] = [nn.ConvTranspose2d(dim, dim, 2, 2)]
    while old // 2 > new:
        layers += [nn.BatchNorm2d(dim), nn.GELU(), nn.ConvTranspose2d(dim, dim, 2, 2)]
        old //= 2
    return nn.Sequential(*layers)


class Backbone(nn.Module):
    """The maps of a vision transformer, joined from coarse to fine, for Mask R-CNN.

    Args:
        config: settings of the vision transformer.

    Raises:
        ConfigError: its patches do not suit a pyramid.
    """

    def __init__(self, config: VisionTransformerConfig) -> None:
        super().__init__()
        self.maps = FeaturePyramid(build_vision_model(config, 1))
        self.pyramid = FeaturePyramidNetwork(self.maps.channels, PYRAMID_DIM)
        self.strides = [*self.maps.strides, 2 * self.maps.strides[-1]]
        self.out_channels = PYRAMID_DIM

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return maps [B, 256, Y / stride, X / stride] of images [B, 3, Y, X]."""
        return self.pyramid([*self.maps(images).values()])


def build_detector(
    config: DetectorConfig, backbone: VisionTransformerConfig, num_kinds: int
) -> MaskRCNN:
    """Return an untrained Mask R-CNN whose norms and biases are exempt from weight decay.

    Args:
        config: sizes, anchors and colors.
        backbone: the vision transformer.
        num_kinds: number of categories. Label 0 is the background.

    Raises:
        ConfigError: the backbone's patches do not suit a pyramid.

    Reference: He et al. 2017, "Mask R-CNN", on the backbones of Koohpayegani and Pirsiavash 2024,
    "SimA", section 4.2: boxes by two layers of 1,024, masks by four convolutions.
    """
    model = MaskRCNN(Backbone(backbone), 1 + num_kinds, **to_dict(config))
    exempt_from_decay(model)
    return model


class DetectionObjective(nn.Module):
    """The sum of Mask R-CNN's losses: for proposals, boxes, categories and masks.

    Args:
        model: result of :func:`build_detector`.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: DetectionBatch, telemetry: bool = False) -> LossOutput:
        """Return the loss of a batch, its mean times the number of images.

        Args:
            batch: images and their objects.
            telemetry: also return the statistics of the backbone's attention.
        """
        with record_attention(self.model, Need(telemetry=telemetry)) as records:
            losses: dict[str, Any] = self.model(batch.images, batch.targets)
        count = batch.num_sentences
        loss = torch.stack([part.float() for part in losses.values()]).sum() * count
        metrics = {name: (part.detach().float() * count, count) for name, part in losses.items()}
        return LossOutput(loss, count, metrics, attention_telemetry(records) if telemetry else {})
