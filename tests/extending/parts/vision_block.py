"""A vision block of one's own: attention, then a convolution over the grid of patches."""

import torch
from torch import Tensor, nn

from relu_nmt.attention.masks import Visibility
from relu_nmt.modules import norms
from relu_nmt.modules.multihead import SelfAttention
from relu_nmt.vision import vision_blocks
from relu_nmt.vision.base import NORM_EPS, Grid, mechanism
from relu_nmt.vision.config import VisionTransformerConfig


@vision_blocks.register("convolution")
class ConvolutionBlock(nn.Module):
    """x + attend(norm(x)), then each patch plus a sum over the 3 x 3 patches around it."""

    def __init__(self, config: VisionTransformerConfig, index: int) -> None:
        super().__init__()
        width = config.embed_dim
        self.norm = norms.get(config.norm)(width, NORM_EPS)
        self.attention = SelfAttention(width, mechanism(config, index, config.heads))
        self.convolution = nn.Conv2d(width, width, 3, padding=1, groups=width)

    def forward(self, x: Tensor, visibility: Visibility, grid: Grid) -> Tensor:
        """Map [B, N, D] to [B, N, D]. The last height * width tokens are the patches."""
        x = x + self.attention(self.norm(x), visibility)
        number = grid.height * grid.width
        extra = x[:, :-number]
        patches = x[:, -number:]
        picture = patches.transpose(1, 2).unflatten(2, tuple(grid))  # [B, D, height, width]
        patches = patches + self.convolution(picture).flatten(2).transpose(1, 2)
        return torch.cat([extra, patches], dim=1)
