"""Public weights in timm's format, loaded into models of this package (``--init``)."""

import math
import os
import pickle
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from relu_nmt.errors import CheckpointError
from relu_nmt.training.checkpoint import load_weights
from relu_nmt.vision.base import Grid, VisionModel, resize_positions
from relu_nmt.vision.image_files import first_line
from relu_nmt.vision.swin import fit_position_biases
from relu_nmt.vision.vision_transformer import VisionTransformer


def _below(theirs: str, ours: str, names: Mapping[str, str]) -> dict[str, str]:
    """Return the names of parts of a block with its own names in front."""
    return {f"{theirs}.{their}": f"{ours}.{our}" for their, our in names.items()}


_BLOCK = {
    "norm1": "attention_residual.norm",
    "attn.proj": "attention.out_proj",
    "norm2": "feed_forward_residual.norm",
    "mlp.fc1": "feed_forward.inner",
    "mlp.fc2": "feed_forward.outer",
}
_JOINT_BLOCK = {**_BLOCK, "attn.qkv": "attention.qkv"}
_XCIT_BLOCK = {
    **_JOINT_BLOCK,
    "gamma1": "attention_residual.gain",
    "gamma2": "feed_forward_residual.gain",
}
_LAYER = {
    "norm1": "self_attention_residual.norm",
    "attn.qkv": "self_attention.qkv",
    "attn.proj": "self_attention.out_proj",
    "ls1.gamma": "self_attention_residual.gain",
    "norm2": "feed_forward_residual.norm",
    "mlp.fc1": "feed_forward.inner",
    "mlp.fc2": "feed_forward.outer",
    "ls2.gamma": "feed_forward_residual.gain",
}
_CVT_PROJECTIONS = {
    theirs.format(part): ours.format(part)
    for part in "qkv"
    for theirs, ours in (
        ("proj_{}", "{}"),
        ("conv_proj_{}.conv", "{}_convolution.0"),
        ("conv_proj_{}.bn", "{}_convolution.1"),
    )
}
_CLASSIFIER = {"norm": "norm", "head": "head"}
NAMES = {
    "vit": {
        "cls_token": "class_token",
        "pos_embed": "positions",
        "patch_embed.proj": "patches.projection",
        **_below("blocks.#", "blocks.#.layer", _LAYER),
        **_CLASSIFIER,
    },
    "xcit": {
        "cls_token": "class_token",
        "pos_embed.token_projection": "positions",
        "pos_embeder.token_projection": "positions",  # in the files of XCiT's authors
        **{f"patch_embed.proj.{2 * i}.0": f"stem.layers.{3 * i}" for i in range(4)},
        **{f"patch_embed.proj.{2 * i}.1": f"stem.layers.{3 * i + 1}" for i in range(4)},
        **_below("blocks.#", "blocks.#", _XCIT_BLOCK),
        "blocks.#.attn.temperature": "blocks.#.attention.attention.temperature",
        "blocks.#.norm3": "blocks.#.local_residual.norm",
        "blocks.#.local_mp.conv1": "blocks.#.local.first",
        "blocks.#.local_mp.bn": "blocks.#.local.norm",
        "blocks.#.local_mp.conv2": "blocks.#.local.second",
        "blocks.#.gamma3": "blocks.#.local_residual.gain",
        **_below("cls_attn_blocks.#", "class_blocks.#", _XCIT_BLOCK),
        **_CLASSIFIER,
    },
    "swin": {
        "patch_embed.proj": "patches.projection",
        "patch_embed.norm": "patches_norm",
        "layers.#.downsample.norm": "mergings.#.norm",
        "layers.#.downsample.reduction": "mergings.#.reduction",
        **_below("layers.#.blocks.#", "stages.#.#", _JOINT_BLOCK),
        "layers.#.blocks.#.attn.relative_position_bias_table": "stages.#.#.attention.position_bias",
        **_CLASSIFIER,
        "head.fc": "head",
    },
    "cvt": {  # the names of its authors
        "stage#.patch_embed.proj": "embeddings.#.convolution",
        "stage#.patch_embed.norm": "embeddings.#.norm",
        "stage#.cls_token": "class_token",
        **_below("stage#.blocks.#", "stages.#.#", _BLOCK),
        **_below("stage#.blocks.#.attn", "stages.#.#.attention", _CVT_PROJECTIONS),
        **_CLASSIFIER,
    },
}
"""timm's names of modules or parameters and ours, by family. Each # stands for a number."""
_BUFFERS = (".relative_position_index", ".attn_mask")
"""Ends of names in older files of Swin that are not weights."""


def load_timm_weights(model: VisionModel, path: str | os.PathLike[str]) -> list[str]:
    """Load a public model's weights; a head for other classes is left out.

    Positions that were learned for images of another size are interpolated.

    Args:
        model: of the same shape, with the attention of the public model.
        path: a file of timm or the authors: ``.safetensors``, or one of ``torch.save``, from which
            only tensors are read.

    Returns:
        notes on the changes for the log.

    Raises:
        CheckpointError: the file is missing, damaged or of another model.
    """
    # Read the file, and rename its tensors.
    family = model.config.family
    if family not in NAMES:
        raise CheckpointError(f"--init {path}: works for {', '.join(NAMES)}, not for {family}")
    own, notes = model.state_dict(), []
    tensors = _joined(_read(Path(path)))
    if family == "swin":
        tensors = _merged_last(tensors)
    found = {_renamed(name, NAMES[family]): tensor for name, tensor in tensors.items()}
    if found.keys().isdisjoint(own):
        raise CheckpointError(
            f"{path}: holds no weights of timm's {family}; a checkpoint of relu_nmt is what "
            "--finetune-from-model takes"
        )
    # Fit positions, position biases and shapes to those of the model.
    if isinstance(model, VisionTransformer) and "positions" in found:
        found["positions"], changed = _positions_for(model, found["positions"][0])
        notes += changed
    notes += fit_position_biases(found, own)
    for name, tensor in found.items():
        # Some convolutions are linear maps here, and some axes have length 1.
        if name in own and tensor.dim() > own[name].dim() and tensor.numel() == own[name].numel():
            found[name] = tensor.reshape(own[name].shape)
    # Keep the new head for other classes.
    theirs, ours = (len(weights.get("head.bias", ())) for weights in (found, own))
    if theirs != ours:
        notes.append(f"its head of {theirs:,} classes is left out; that of {ours:,} starts anew")
        found |= {name: own[name] for name in ("head.weight", "head.bias")}
    load_weights(model, found, path)
    return notes


def _read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name.

    Raises:
        CheckpointError: the file is missing or damaged, or holds something else.
    """
    # Read safetensors, or only the tensors of a pickle.
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"--init {path}: no such file") from None
    except (OSError, SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise CheckpointError(
            f"--init {path}: cannot be read as weights ({first_line(error)})"
        ) from error
    for key in ("model", "state_dict"):  # some authors wrap the weights
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not all(isinstance(t, Tensor) for t in found.values()):
        raise CheckpointError(f"--init {path}: expected tensors by name, as timm stores them")
    return found


def _joined(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with separate q, k and v joined to one matrix."""
    found = dict(tensors)
    for name in tensors:
        if ".attn.q." in name:
            parts = [found.pop(name.replace(".attn.q.", f".attn.{part}.")) for part in "qkv"]
            found[name.replace(".attn.q.", ".attn.qkv.")] = torch.cat(parts)
    return found


def _merged_last(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a Swin with patch merging at the end of a stage.

    The files of its authors have it there; newer files of timm at the start of the next stage.
    """
    found = {name: t for name, t in tensors.items() if not name.endswith(_BUFFERS)}
    if any(name.startswith("layers.0.downsample.") for name in found):
        return found

    # Move each merging to the stage before.
    def before(match: re.Match[str]) -> str:
        return f"layers.{int(match[1]) - 1}.downsample."

    return {re.sub(r"layers\.(\d+)\.downsample\.", before, n): t for n, t in found.items()}


def _renamed(name: str, names: Mapping[str, str]) -> str:
    """Return our name of a tensor; a name without an entry in the table stays."""
    for theirs, ours in names.items():
        # Each # matches a number, and a leaf such as .weight may follow.
        pattern = re.escape(theirs).replace(r"\#", r"(\d+)") + r"(\.[a-z_]+)?"
        if match := re.fullmatch(pattern, name):
            *numbers, leaf = match.groups()
            for number in numbers:
                ours = ours.replace("#", number, 1)
            return ours + (leaf or "")
    return name


def _positions_for(model: VisionTransformer, positions: Tensor) -> tuple[Tensor, list[str]]:
    """Return positions [N', D] of a square grid, interpolated to the model's [N, D], and notes."""
    # The grid of the public model is a square, and class tokens come first.
    others = model.num_tokens - model.grid.num_patches
    side = math.isqrt(max(0, len(positions) - others))
    grid = Grid(side, side)
    # Keep positions that fit already, or that belong to no square.
    if grid.num_patches + others != len(positions) or grid == model.grid:
        return positions, []
    old, new = (f"{height} x {width}" for height, width in (grid, model.grid))
    note = f"its positions of {old} patches are interpolated to {new}"
    return resize_positions(positions, grid, model.grid), [note]
