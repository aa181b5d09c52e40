"""The attention weights of an image classifier, as maps over the image."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from relu_nmt.attention.base import Attention, Need
from relu_nmt.attention.records import record_attention
from relu_nmt.drawing.figures import draw_svg, draw_weights
from relu_nmt.errors import ConfigError, reporting
from relu_nmt.io.safe_write import safe_writer
from relu_nmt.vision.base import Grid, VisionModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANEL_INCHES = 1.9
COLUMNS = 4
TITLE_SIZE = 8.5
BRIGHTEST = 0.99  # weights above this quantile all have the darkest color


@dataclass(frozen=True)
class ImageAttention:
    """The attention weights of one layer for one image."""

    layer: int  # from 0
    head: int | None  # from 0. None: all
    # [queries, keys], or [H, queries, keys] for all heads. Class tokens precede the patches, whose
    # order is row by row. Rows need not sum to 1.
    weights: np.ndarray
    grid: Grid  # rows and columns of the keys that are patches
    pixels: np.ndarray  # uint8 [Y, X, 3], the image as the model sees it

    def over_image(self) -> np.ndarray:
        """Return the weights of the patches, [height, width], or [H, height, width] for all heads.

        The query is the class token, or the mean over all queries in a model without one.
        """
        num_patches = self.grid.num_patches
        if self.weights.shape[-1] > num_patches:
            weights = self.weights[..., 0, :]
        else:
            weights = self.weights.mean(-2)
        return weights[..., -num_patches:].reshape(*weights.shape[:-1], *self.grid)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Draw the image and a map for each head, as SVG. Exact zeros are white."""
        if Path(path).suffix != ".svg":
            raise ConfigError(f"{path}: maps are drawn as SVG; give a name that ends in .svg")
        maps = self.over_image()
        heads = range(len(maps)) if self.head is None else [self.head]
        svg = _drawn(self.pixels, maps.reshape(-1, *self.grid), heads, self.layer)
        with reporting(f"{path}: cannot write it"), safe_writer(path) as file:
            file.write(svg.encode())


def _drawn(pixels: np.ndarray, maps: np.ndarray, heads: range | list[int], layer: int) -> str:
    """Draw an image [Y, X, 3] and maps [H, height, width] beside it, as SVG."""
    count = 1 + len(maps)
    columns = min(COLUMNS, count)
    num_rows = -(-count // columns)
    sizes = np.abs(maps)
    darkest = float(np.quantile(sizes, BRIGHTEST)) or float(sizes.max()) or 1.0
    signed = bool((maps < 0).any())
    bottom, right = pixels.shape[:2]

    def draw(figure: "Figure") -> None:
        grid = figure.subplots(num_rows, columns, squeeze=False).flatten()
        for axes in grid:
            axes.set_axis_off()
        grid[0].imshow(pixels)
        grid[0].set_title("image", fontsize=TITLE_SIZE)
        for axes, head, weights in zip(grid[1:], heads, maps, strict=False):
            image = draw_weights(axes, weights, darkest, signed)
            # Lay the map over the whole image, and frame it, since zeros are white.
            image.set_extent((0, right, bottom, 0))
            axes.set_aspect("equal")
            axes.set_axis_on()
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(f"layer {layer}, head {head}", fontsize=TITLE_SIZE)

    height = PANEL_INCHES * num_rows * max(0.5, min(2.0, bottom / right)) + 0.25 * num_rows
    return draw_svg(PANEL_INCHES * columns, height, draw)


def image_weights(model: VisionModel, images: Tensor, layer: int) -> tuple[Tensor, Grid, int]:
    """Return weights [H, queries, keys] for an image [1, 3, Y, X], grid of keys, and layer."""
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    if not -len(attentions) <= layer < len(attentions):
        raise ConfigError(f"attention layer {layer}: the layers are 0 to {len(attentions) - 1}")
    layer %= len(attentions)
    attention = attentions[layer]
    if not attention.capabilities.weights:
        raise ConfigError(f"attention layer {layer}: it has no matrix of weights to show")
    # Run the blocks until the attention has left its record.
    with torch.inference_mode(), record_attention(attention, Need(weights=True)) as records:
        patches = Grid(1, 1)
        for _, grid in model.encode(images):
            # XCiT's class attention has no grid, and reads all patches.
            patches = grid if grid.num_patches else patches
            if records:
                break
    weights = records[0].weights
    if weights is None:
        raise ConfigError(f"attention layer {layer}: its mechanism returned no weights")
    return weights[0].float(), _grid_of_keys(weights, patches, layer), layer


def _grid_of_keys(weights: Tensor, patches: Grid, layer: int) -> Grid:
    """Return the grid of the keys of weights [B, H, queries, keys], without a class token."""
    grid = patches
    if weights.size(-1) < weights.size(-2):  # CvT's convolutions leave a key for 2 x 2 patches
        grid = Grid(-(-patches.height // 2), -(-patches.width // 2))
    if len(weights) != 1 or weights.size(-1) - grid.num_patches not in (0, 1):
        raise ConfigError(
            f"attention layer {layer}: it attends inside windows or between channels, and has no "
            "map over the image"
        )
    return grid
