"""Mask R-CNN on the feature pyramid of a vision transformer, and its loss."""

from typing import Any

import torch
from coco import DetectionBatch
from mask_rcnn import FeaturePyramidNetwork, MaskRCNN
from pyramid import FeaturePyramid
from torch import Tensor, nn

from relu_nmt.attention.base import Need
from relu_nmt.attention.records import attention_telemetry, record_attention
from relu_nmt.config import like, option, settings, to_dict
from relu_nmt.errors import ConfigError
from relu_nmt.modules.objective import LossOutput, Metric
from relu_nmt.vision.base import build_vision_model, exempt_from_decay
from relu_nmt.vision.config import VisionTransformerConfig
from relu_nmt.vision.training_config import PreprocessingConfig

PYRAMID_DIM = 256


@settings
class DetectorConfig:
    """Settings of the detector on the backbone, and of the size of images.

    Raises:
        ConfigError: a value out of range.
    """

    min_size: tuple[int, ...] = option(
        (128,),
        "shorter side of an image in pixels; of several one is drawn in training, and the last one "
        "is that of evaluation",
        least=1,
        metavar="N,N",
    )
    max_size: int = option(1333, "images whose longer side would be longer become smaller", least=1)
    anchor_scale: float = option(
        8.0, "sides of anchors, in strides of their map", above=0, metavar="F"
    )
    proposals: int = option(
        2000, "most proposals of an image in training; half in evaluation", least=2
    )
    sampled_boxes: int = option(512, "proposals of an image that the heads learn from", least=4)
    pixel_mean: tuple[float, ...] = like(PreprocessingConfig, "pixel_mean")
    pixel_std: tuple[float, ...] = like(PreprocessingConfig, "pixel_std")

    def check(self) -> None:
        """Compare the sizes, and count the colours."""
        if max(self.min_size) > self.max_size:
            raise ConfigError(
                f"--max-size {self.max_size}: expected {max(self.min_size)}, the largest of "
                "--min-size, or more"
            )
        if not len(self.pixel_mean) == len(self.pixel_std) == 3:
            raise ConfigError("--pixel-mean and --pixel-std: expected three numbers, as .5,.5,.5")


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
        config: sizes, anchors and colours.
        backbone: the vision transformer.
        num_kinds: number of categories; label 0 is the background.

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
        loss = torch.stack([one.float() for one in losses.values()]).sum() * count
        parts = {name: Metric(one.detach().float() * count, count) for name, one in losses.items()}
        metrics = {"loss": Metric(loss.detach(), count), **parts}
        return LossOutput(loss, count, metrics, attention_telemetry(records) if telemetry else {})
