"""Public weights of timm and of the authors of the models."""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from relu_nmt.config.yaml_text import parse_yaml
from relu_nmt.errors import CheckpointError
from relu_nmt.training.checkpoint import load_weights, read_tensors
from relu_nmt.vision import base
from relu_nmt.vision.swin import fit_position_biases
from relu_nmt.vision.vision_transformer import VisionTransformer

TIMM_NAMES = Path(__file__).with_name("timm_names.yaml")
"""Names of modules or parameters by family: timm's or the authors', and relu_nmt's."""
_BUFFERS = (".relative_position_index", ".attn_mask")
"""Ends of names in older files of Swin that are not weights."""


def load_timm_weights(model: base.VisionModel, path: str | os.PathLike[str]) -> list[str]:
    """Load a public model's weights, and return notes for the log.

    ``path`` is a file of timm or the authors: ``.safetensors``, or tensors of ``torch.save``. The
    model must have the shape and attention of the weights. A head for other classes is left out.
    Positions that were learned for images of another size are interpolated.
    """
    family = model.config.family
    names = parse_yaml(TIMM_NAMES.read_text("utf-8"))
    if family not in names:
        raise CheckpointError(f"--init {path}: works for {', '.join(names)}, not for {family}")
    initial = model.state_dict()
    notes: list[str] = []
    tensors = _joined(read_tensors(Path(path), "--init", ("model", "state_dict")))
    if family == "swin":
        tensors = _merged_last(tensors)
    weights = {_renamed(name, names[family]): tensor for name, tensor in tensors.items()}
    if weights.keys().isdisjoint(initial):
        raise CheckpointError(
            f"{path}: holds no weights of timm's {family}; a checkpoint of relu_nmt is what "
            "--finetune-from-model takes"
        )
    if isinstance(model, VisionTransformer) and "positions" in weights:
        weights["positions"], changed = _positions_for(model, weights["positions"][0])
        notes += changed
    notes += fit_position_biases(weights, initial)
    for name, tensor in weights.items():
        # Some convolutions are linear maps here, and some axes have length 1.
        if (
            name in initial
            and tensor.dim() > initial[name].dim()
            and tensor.numel() == initial[name].numel()
        ):
            weights[name] = tensor.reshape(initial[name].shape)
    # Keep the new head for other classes.
    num_stored = len(weights.get("head.bias", ()))
    num_classes = len(initial.get("head.bias", ()))
    if num_stored != num_classes:
        notes.append(
            f"its head of {num_stored:,} classes is left out; that of {num_classes:,} starts anew"
        )
        weights |= {name: initial[name] for name in ("head.weight", "head.bias")}
    load_weights(model, weights, path, advice="give the --arch and other model flags of the file")
    return notes


def _joined(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with separate q, k and v joined to one matrix."""
    joint = dict(tensors)
    for name in tensors:
        if ".attn.q." in name:
            parts = [name.replace(".attn.q.", f".attn.{part}.") for part in "qkv"]
            if joint.keys() >= set(parts):  # else the names are reported as unknown
                joined = torch.cat([joint.pop(part) for part in parts])
                joint[name.replace(".attn.q.", ".attn.qkv.")] = joined
    return joint


def _merged_last(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a Swin with patch merging at the end of a stage, as its authors do."""
    kept_tensors = {name: t for name, t in tensors.items() if not name.endswith(_BUFFERS)}
    if any(name.startswith("layers.0.downsample.") for name in kept_tensors):
        return kept_tensors

    # Newer files of timm have the merging at the start of the next stage.
    def before(match: re.Match[str]) -> str:
        return f"layers.{int(match[1]) - 1}.downsample."

    return {re.sub(r"layers\.(\d+)\.downsample\.", before, n): t for n, t in kept_tensors.items()}


def _renamed(name: str, names: Mapping[str, str]) -> str:
    """Return our name of a tensor. A name without an entry in the table stays."""
    for theirs, ours in names.items():
        # Each # matches a number, and a leaf such as .weight may follow.
        pattern = re.escape(theirs).replace(r"\#", r"(\d+)") + r"(\.[a-z_]+)?"
        match = re.fullmatch(pattern, name)
        if match is not None:
            *numbers, leaf = match.groups()
            for number in numbers:
                ours = ours.replace("#", number, 1)
            return ours + (leaf or "")
    return name


def _positions_for(model: VisionTransformer, positions: Tensor) -> tuple[Tensor, list[str]]:
    """Return positions [N', D] of a square grid, interpolated to the model's [N, D], and notes."""
    # Keep positions that fit already, or that belong to no square behind the class tokens.
    num_class_tokens = model.num_tokens - model.grid.num_patches
    side = math.isqrt(max(0, len(positions) - num_class_tokens))
    grid = base.Grid(side, side)
    if grid.num_patches + num_class_tokens != len(positions) or grid == model.grid:
        return positions, []
    patches = f"{grid.height} x {grid.width}"
    model_patches = f"{model.grid.height} x {model.grid.width}"
    note = f"its positions of {patches} patches are interpolated to {model_patches}"
    return base.resize_positions(positions, grid, model.grid), [note]
