r"""Show the attention of image models: overlays on images, and heat maps of the weights.

    python examples/vision_study/pictures.py sima/checkpoint_last.safetensors \
        softmax/checkpoint_last.safetensors --data cifar10/test.zip --heat-maps 2.1 4.3

An overlay shows for each patch the length of its query and of its key in one block, over all
channels. SimA's queries and keys are normalized over the tokens. A heat map is the mean of a head's
weights over images. It writes pictures.html, overlays.csv and heat_maps.csv.

Reference: Koohpayegani and Pirsiavash 2024, "SimA", Figure 3 (overlays). Saratchandran et al.
2024, "Rethinking Attention", section 6.1 (heat maps).
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from norms import pixels_of
from torch import Tensor, nn

from relu_nmt.attention.base import Attention, Need
from relu_nmt.attention.records import record_attention
from relu_nmt.attention.token_axis import SimAAttention, normalized_over_tokens
from relu_nmt.cli.command import Command
from relu_nmt.config import REQUIRED, option, settings
from relu_nmt.drawing.figures import draw_svg, draw_weights
from relu_nmt.drawing.pages import csv_text, render_page
from relu_nmt.errors import ConfigError, reporting
from relu_nmt.io.safe_write import write_text
from relu_nmt.vision.loading import ImageClassifier

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPORT = "pictures.html"
OVERLAYS = "overlays.csv"
HEAT_MAPS = "heat_maps.csv"
KINDS = ("query", "key")
PANEL_INCHES = 1.9


@settings
class PictureSettings:
    """The models and the images of the pictures."""

    checkpoints: tuple[str, ...] = option(
        REQUIRED,
        "image classifiers: ViT (not of --block gau) or XCiT",
        positional=True,
        several=True,
        metavar="CKPT",
    )
    data: str = option(REQUIRED, "images, as relu-nmt-vision-evaluate takes them", metavar="PATH")
    overlays: int = option(6, "images to draw overlays on", least=1)
    layer: int | None = option(
        None, "block of the overlays, from 1 (default: the last one)", least=1
    )
    heat_maps: tuple[str, ...] = option(
        (),
        "heads whose weights to show, from 1 (default: the first head of the second and of the "
        "last block)",
        several=True,
        metavar="BLOCK.HEAD",
    )
    images: int = option(
        128, "images that heat maps are means over, from all over the set", least=1
    )
    out: str = option("vision-study/pictures", "folder of the report", metavar="DIR")


@dataclass
class Pictures:
    """The pictures of a model.

    Args:
        name: path of its checkpoint.
        attention: attention of the blocks.
        layer: index of the block of the overlays.
        lengths: lengths of queries and keys, [2, B, height, width].
        heat_maps: heat maps [N, N] by indices of block and head.
        averaged: number of images that heat maps are means over.
    """

    name: str
    attention: str
    layer: int
    lengths: Tensor
    heat_maps: dict[tuple[int, int], Tensor]
    averaged: int


def blocks_of(classifier: ImageClassifier, path: str) -> list[Attention]:
    """Return the attentions between all patches, block by block.

    Raises:
        ConfigError: the model has no such attention.
    """
    config = classifier.model.config
    if config.family not in ("vit", "xcit"):
        raise ConfigError(
            f"{path}: in {config.family} the queries and keys of a block are not the same patches; "
            "pictures are of vit and xcit"
        )
    attentions = []
    for block in classifier.model.blocks:
        of_block = [module for module in block.modules() if isinstance(module, Attention)]
        if len(of_block) != 1:
            raise ConfigError(
                f"{path}: a block of --block {config.block} has {len(of_block)} attentions; "
                "pictures are of blocks with one"
            )
        attentions += of_block
    return attentions


def lengths(attention: Attention, q: Tensor, k: Tensor, grid: Sequence[int]) -> Tensor:
    """Return the lengths over all channels of the queries and keys of the patches.

    Args:
        attention: the attention. SimA normalizes queries and keys over the tokens.
        q: queries [B, H, N, d].
        k: keys [B, H, N, d].
        grid: height and width of the image in patches, the last of the N tokens.

    Returns:
        [2, B, height, width].
    """
    lengths_of_kinds = []
    for x in (q, k):
        if isinstance(attention, SimAAttention) and attention.config.norm != "none":
            x = normalized_over_tokens(x.float(), int(attention.config.norm[1]))
        patches = x[:, :, -grid[0] * grid[1] :].float()
        lengths_of_kinds.append(patches.square().sum((1, 3)).sqrt().unflatten(1, tuple(grid)))
    return torch.stack(lengths_of_kinds)


def saliency(sizes: Tensor, image_size: tuple[int, int]) -> Tensor:
    """Return lengths [B, height, width] as [B, Y, X], bilinear, scaled to 0 to 1."""
    full = F.interpolate(sizes[:, None], image_size, mode="bilinear", align_corners=False)[:, 0]
    low = full.amin((1, 2), keepdim=True)
    high = full.amax((1, 2), keepdim=True)
    return (full - low) / (high - low).clamp(min=torch.finfo(full.dtype).tiny)


def heads_of(settings: PictureSettings, blocks: Sequence[Attention]) -> list[tuple[int, int]]:
    """Return the indices of the blocks and heads of the heat maps.

    Raises:
        ConfigError: the model has no such head.
    """
    if not settings.heat_maps:
        return sorted({(min(1, len(blocks) - 1), 0), (len(blocks) - 1, 0)})
    heads = []
    for text in settings.heat_maps:
        block, _, head = text.partition(".")
        has_block = block.isdecimal() and head.isdecimal() and 1 <= int(block) <= len(blocks)
        if not has_block or not 1 <= int(head) <= blocks[int(block) - 1].num_heads:
            raise ConfigError(
                f"--heat-maps {text}: expected BLOCK.HEAD, from 1.1 to {len(blocks)}."
                f"{blocks[-1].num_heads}"
            )
        heads.append((int(block) - 1, int(head) - 1))
    return heads


def pictures_of(path: str, settings: PictureSettings) -> tuple[Pictures, np.ndarray]:
    """Return the pictures of a model, and their images [B, Y, X, 3] from 0 to 1.

    Raises:
        CheckpointError: the checkpoint is damaged.
        ConfigError: the model has no such block or head.
        DataError: there are no images, or they are damaged.
    """
    classifier = ImageClassifier.from_checkpoint(path)
    blocks = blocks_of(classifier, path)
    layer = len(blocks) - 1 if settings.layer is None else settings.layer - 1
    if layer >= len(blocks):
        raise ConfigError(f"--layer {settings.layer}: {path} has {len(blocks)} blocks")
    heads = heads_of(settings, blocks)
    pixels = pixels_of(classifier, settings.data, settings.overlays)
    recorded: list[Tensor] = []

    def record(module: nn.Module, args: tuple[Any, ...]) -> None:
        q, k, _, visibility = args
        recorded.append(lengths(blocks[layer], q, k, visibility.grid))

    handle = blocks[layer].register_forward_pre_hook(record)
    classifier.outputs(pixels)
    handle.remove()
    maps = {}
    averaged = 0
    if blocks[0].capabilities.weights:
        many = pixels_of(classifier, settings.data, settings.images)
        averaged = len(many)
        for block, head in heads:
            with record_attention(blocks[block], Need(weights=True)) as records:
                classifier.outputs(many)
            assert records[0].weights is not None
            maps[block, head] = records[0].weights[:, head].mean(0).float().cpu()
    spec = classifier.model.config.attention
    pictures = Pictures(path, spec, layer, recorded[0].cpu(), maps, averaged)
    config = classifier.transform.config
    scale = np.array(config.pixel_std)[:, None, None]
    shift = np.array(config.pixel_mean)[:, None, None]
    images = pixels.numpy() * scale + shift
    return pictures, images.transpose(0, 2, 3, 1).clip(0, 1)


def overlay_image(pictures: Pictures, images: np.ndarray) -> str:
    """Return the images with overlays of the lengths, as SVG."""
    size = (images.shape[1], images.shape[2])

    def draw(figure: "Figure") -> None:
        axes = figure.subplots(3, len(images), squeeze=False)
        for column, image in enumerate(images):
            axes[0][column].imshow(image)
            for row, values in enumerate(pictures.lengths, 1):
                axes[row][column].imshow(image)
                mask = saliency(values[column : column + 1], size)[0]
                axes[row][column].imshow(mask.numpy(), cmap="jet", alpha=0.5, vmin=0, vmax=1)
        for row, label in enumerate(("image", *KINDS)):
            axes[row][0].set_ylabel(label)
        for panel in axes.flatten():
            panel.set_xticks([])
            panel.set_yticks([])

    return draw_svg(PANEL_INCHES * len(images), PANEL_INCHES * 3, draw)


def heat_map_image(pictures: Pictures) -> str:
    """Return the heat maps side by side, as SVG. Exact zeros are white."""

    def draw(figure: "Figure") -> None:
        panels = figure.subplots(1, len(pictures.heat_maps), squeeze=False)[0]
        for axes, ((layer, head), weights) in zip(panels, pictures.heat_maps.items(), strict=True):
            largest = weights.abs().max().item() or 1.0
            drawn = draw_weights(axes, weights.numpy(), largest, bool((weights < 0).any()))
            axes.set_title(f"block {layer + 1}, head {head + 1}", loc="left", fontsize=9.5)
            axes.set_xlabel("key, token")
            axes.set_ylabel("query, token")
            figure.colorbar(drawn, ax=axes, shrink=0.8, label="weight")

    return draw_svg(3.6 * len(pictures.heat_maps), 3.2, draw)


def write_report(models: Sequence[tuple[Pictures, np.ndarray]], settings: PictureSettings) -> None:
    """Write the page and the numbers behind its pictures.

    Args:
        models: results of :func:`pictures_of`.
        settings: settings of the command.

    Raises:
        DataError: they cannot be written.
    """
    sections = []
    sizes = []
    weights = []
    for pictures, images in models:
        model = {"checkpoint": pictures.name, "attention": pictures.attention}
        heat_maps = heat_map_image(pictures) if pictures.heat_maps else None
        sections.append({"pictures": pictures, "overlays": overlay_image(pictures, images)})
        sections[-1]["heat_maps"] = heat_maps
        for (kind, image, row, column), value in np.ndenumerate(pictures.lengths.numpy()):
            patch = {"layer": pictures.layer + 1, "image": image + 1, "row": row, "column": column}
            sizes.append({**model, **patch, "of": KINDS[kind], "length": value})
        for (layer, head), table in pictures.heat_maps.items():
            for (query, key), value in np.ndenumerate(table.numpy()):
                pair = {"layer": layer + 1, "head": head + 1, "query": query, "key": key}
                weights.append({**model, **pair, "weight": value})
    folder = Path(settings.out)
    averaged = max(pictures.averaged for pictures, _ in models)
    page = {
        "sections": sections,
        "facts_of_all": [
            ("images", settings.data),
            ("heat maps are means over", averaged and f"{averaged} images"),
            ("report of", time.strftime("%d %B %Y, %H:%M")),
        ],
    }
    with reporting(f"{folder / REPORT}: cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / OVERLAYS, csv_text(list(sizes[0]), sizes))
        if weights:
            write_text(folder / HEAT_MAPS, csv_text(list(weights[0]), weights))
        write_text(folder / REPORT, render_page(Path(__file__).parent, REPORT, page))


def run(settings: PictureSettings) -> None:
    """Draw the pictures of all checkpoints.

    Raises:
        ReluNmtError: as :func:`pictures_of` and :func:`write_report`.
    """
    write_report([pictures_of(path, settings) for path in settings.checkpoints], settings)
    print(f"report: {Path(settings.out) / REPORT}")


main = Command("pictures", __doc__, PictureSettings, run)

if __name__ == "__main__":
    sys.exit(main())
