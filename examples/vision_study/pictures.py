r"""Show the attention of image models: overlays on images, and heat maps of the weights.

    python examples/vision_study/pictures.py sima/checkpoint_last.safetensors \
        softmax/checkpoint_last.safetensors --data cifar10/test.zip --heat-maps 2.1 4.3

An overlay shows for each patch the length of its query and of its key in one block, over all
channels. SimA's queries and keys are normalised over the tokens. A heat map is the mean of a head's
weights over images. It writes pictures.html, overlays.csv and heat_maps.csv.

Reference: Koohpayegani and Pirsiavash 2024, "SimA", Figure 3 (overlays). Saratchandran et al.
2024, "Rethinking softmax", section 6.1 (heat maps).
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
from relu_nmt.cli.command import RecipeCommand
from relu_nmt.config import REQUIRED, option, settings
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.io.page import csv_text, draw_image, draw_weights, render_page
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
        "heads to show the weights of, from 1 (default: the first one of the second and of the "
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
            f"{path}: in {config.family} a block does not see the same patches as queries and as "
            "keys; pictures are of vit and xcit"
        )
    found = []
    for block in classifier.model.blocks:
        attentions = [module for module in block.modules() if isinstance(module, Attention)]
        if len(attentions) != 1:
            raise ConfigError(
                f"{path}: a block of --block {config.block} has {len(attentions)} attentions; "
                "pictures are of blocks with one"
            )
        found += attentions
    return found


def lengths(attention: Attention, q: Tensor, k: Tensor, grid: Sequence[int]) -> Tensor:
    """Return the lengths over all channels of the queries and keys of the patches.

    Args:
        attention: the attention. SimA normalises queries and keys over the tokens.
        q: queries [B, H, N, d].
        k: keys [B, H, N, d].
        grid: height and width of the image in patches, the last of the N tokens.

    Returns:
        [2, B, height, width].
    """
    found = []
    for x in (q, k):
        if isinstance(attention, SimAAttention) and attention.config.norm != "none":
            x = normalized_over_tokens(x.float(), int(attention.config.norm[1]))
        patches = x[:, :, -grid[0] * grid[1] :].float()
        found.append(patches.square().sum((1, 3)).sqrt().unflatten(1, tuple(grid)))
    return torch.stack(found)


def saliency(sizes: Tensor, image_size: tuple[int, int]) -> Tensor:
    """Return lengths [B, height, width] as [B, Y, X], bilinear, scaled to 0 to 1."""
    full = F.interpolate(sizes[:, None], image_size, mode="bilinear", align_corners=False)[:, 0]
    low, high = full.amin((1, 2), keepdim=True), full.amax((1, 2), keepdim=True)
    return (full - low) / (high - low).clamp(min=torch.finfo(full.dtype).tiny)


def heads_of(settings: PictureSettings, blocks: Sequence[Attention]) -> list[tuple[int, int]]:
    """Return the indices of the blocks and heads of the heat maps.

    Raises:
        ConfigError: the model has no such head.
    """
    if not settings.heat_maps:
        return sorted({(min(1, len(blocks) - 1), 0), (len(blocks) - 1, 0)})
    found = []
    for text in settings.heat_maps:
        block, _, head = text.partition(".")
        known = block.isdecimal() and head.isdecimal() and 1 <= int(block) <= len(blocks)
        if not known or not 1 <= int(head) <= blocks[int(block) - 1].num_heads:
            raise ConfigError(
                f"--heat-maps {text}: expected BLOCK.HEAD, from 1.1 to {len(blocks)}."
                f"{blocks[-1].num_heads}"
            )
        found.append((int(block) - 1, int(head) - 1))
    return found


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
    wanted = heads_of(settings, blocks)
    pixels = pixels_of(classifier, settings.data, settings.overlays)
    taken: list[Tensor] = []

    def take(module: nn.Module, args: tuple[Any, ...]) -> None:
        q, k, _, visibility = args
        taken.append(lengths(blocks[layer], q, k, visibility.grid))

    handle = blocks[layer].register_forward_pre_hook(take)
    classifier.outputs(pixels)
    handle.remove()
    maps = {}
    averaged = 0
    if blocks[0].capabilities.weights:
        many = pixels_of(classifier, settings.data, settings.images)
        averaged = len(many)
        for place in wanted:
            with record_attention(blocks[place[0]], Need(weights=True)) as records:
                classifier.outputs(many)
            assert records[0].weights is not None
            maps[place] = records[0].weights[:, place[1]].mean(0).float().cpu()
    spec = classifier.model.config.attention
    shown = Pictures(path, spec, layer, taken[0].cpu(), maps, averaged)
    config = classifier.transform.config
    scale, shift = (np.array(v)[:, None, None] for v in (config.pixel_std, config.pixel_mean))
    images = pixels.numpy() * scale + shift
    return shown, images.transpose(0, 2, 3, 1).clip(0, 1)


def overlay_image(shown: Pictures, images: np.ndarray) -> str:
    """Return the images with overlays of the lengths, for the ``src`` of an image."""
    size = (images.shape[1], images.shape[2])

    def draw(figure: "Figure") -> None:
        axes = figure.subplots(3, len(images), squeeze=False)
        for column, picture in enumerate(images):
            axes[0][column].imshow(picture)
            for row, values in enumerate(shown.lengths, 1):
                axes[row][column].imshow(picture)
                mask = saliency(values[column : column + 1], size)[0]
                axes[row][column].imshow(mask.numpy(), cmap="jet", alpha=0.5, vmin=0, vmax=1)
        for row, label in enumerate(("image", *KINDS)):
            axes[row][0].set_ylabel(label)
        for one in axes.flatten():
            one.set_xticks([])
            one.set_yticks([])

    return draw_image(PANEL_INCHES * len(images), PANEL_INCHES * 3, draw)


def heat_map_image(shown: Pictures) -> str:
    """Return the heat maps side by side, for ``src``. Exact zeros are white."""

    def draw(figure: "Figure") -> None:
        all_axes = figure.subplots(1, len(shown.heat_maps), squeeze=False)[0]
        for axes, ((layer, head), weights) in zip(all_axes, shown.heat_maps.items(), strict=True):
            most = weights.abs().max().item() or 1.0
            drawn = draw_weights(axes, weights.numpy(), most, bool((weights < 0).any()))
            axes.set_title(f"block {layer + 1}, head {head + 1}", loc="left", fontsize=9.5)
            axes.set_xlabel("key, token")
            axes.set_ylabel("query, token")
            figure.colorbar(drawn, ax=axes, shrink=0.8, label="weight")

    return draw_image(3.6 * len(shown.heat_maps), 3.2, draw)


def write_report(found: Sequence[tuple[Pictures, np.ndarray]], settings: PictureSettings) -> None:
    """Write the page and the numbers behind its pictures.

    Raises:
        DataError: they cannot be written.
    """
    sections = []
    sizes = []
    weights = []
    for shown, images in found:
        place = {"checkpoint": shown.name, "attention": shown.attention}
        heat_maps = heat_map_image(shown) if shown.heat_maps else None
        sections.append({"shown": shown, "overlays": overlay_image(shown, images)})
        sections[-1]["heat_maps"] = heat_maps
        for (kind, image, row, column), value in np.ndenumerate(shown.lengths.numpy()):
            where = {"layer": shown.layer + 1, "image": image + 1, "row": row, "column": column}
            sizes.append({**place, **where, "of": KINDS[kind], "length": value})
        for (layer, head), table in shown.heat_maps.items():
            for (query, key), value in np.ndenumerate(table.numpy()):
                where = {"layer": layer + 1, "head": head + 1, "query": query, "key": key}
                weights.append({**place, **where, "weight": value})
    folder = Path(settings.out)
    averaged = max(shown.averaged for shown, _ in found)
    page = {
        "sections": sections,
        "facts_of_all": [
            ("images", settings.data),
            ("heat maps are means over", averaged and f"{averaged} images"),
            ("report of", time.strftime("%d %B %Y, %H:%M")),
        ],
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / OVERLAYS, csv_text(list(sizes[0]), sizes))
        if weights:
            write_text(folder / HEAT_MAPS, csv_text(list(weights[0]), weights))
        write_text(folder / REPORT, render_page(Path(__file__).parent, REPORT, page))
    except OSError as error:
        raise DataError(f"{folder / REPORT}: cannot be written: {error.strerror}") from error


def run(settings: PictureSettings) -> None:
    """Draw the pictures of all checkpoints.

    Raises:
        ReluNmtError: as :func:`pictures_of` and :func:`write_report`.
    """
    write_report([pictures_of(path, settings) for path in settings.checkpoints], settings)
    print(f"report: {Path(settings.out) / REPORT}")


main = RecipeCommand("pictures", __doc__, PictureSettings, run)

if __name__ == "__main__":
    sys.exit(main())
