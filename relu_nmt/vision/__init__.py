"""Image classification: vision transformers, their blocks, image data and training."""

from typing import TYPE_CHECKING

from relu_nmt.config.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from relu_nmt.vision.base import VisionModel
    from relu_nmt.vision.config import VisionTransformerConfig

vision_models: "Registry[Callable[[VisionTransformerConfig, int], VisionModel]]" = Registry(
    "family of vision transformers",
    {
        "vit": "relu_nmt.vision.vision_transformer",
        "xcit": "relu_nmt.vision.xcit",
        "swin": "relu_nmt.vision.swin",
        "cvt": "relu_nmt.vision.cvt",
    },
)
"""Called with (config, number of classes). See :mod:`relu_nmt.vision.base`."""

vision_blocks: "Registry[Callable[[VisionTransformerConfig, int], nn.Module]]" = Registry(
    "vision block",
    {
        "transformer": "relu_nmt.vision.vision_transformer",
        "gau": "relu_nmt.vision.gated_block",
    },
)
"""Called with (config, index of the block). See :mod:`relu_nmt.vision.vision_transformer`."""
