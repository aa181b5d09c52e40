"""Checkpoints of version 1: their tensors and settings get their present names when read."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

_PACKED = re.compile(r"(?P<module>.*\b\w*attention)\.in_proj_(?P<kind>weight|bias)(?P<ending>.*)")
_VISION_PART = re.compile(r"\bblocks\.(\d+)\.(attention|feed_forward)(_branch)?\.")


def _new_vision_part(match: re.Match[str]) -> str:
    index, part, branch = match.groups()
    if part == "attention":
        part = "self_attention"
    if branch:
        part += "_residual"
    return f"blocks.{index}.layer.{part}."


def present_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights, or optimizer state as ``optimizer.PARAMETER.KEY``, under their present names.

    Query, key and value projections were one parameter ``in_proj_weight`` (and ``in_proj_bias``).
    Now they are ``qkv`` in self-attention, ``q`` and ``kv`` in cross-attention.
    """
    renamed = {}
    for old_name, tensor in tensors.items():
        name = _VISION_PART.sub(_new_vision_part, old_name)
        packed = _PACKED.fullmatch(name)
        if packed is None:
            renamed[name] = tensor
            continue
        module, kind, ending = packed.group("module", "kind", "ending")
        # Keep one tensor for self-attention, whose q, k and v have the same input.
        if not module.endswith("cross_attention"):
            renamed[f"{module}.qkv.{kind}{ending}"] = tensor
            continue
        # Copy a scalar, such as the number of steps, since the parts count separately.
        q, kv = tensor, tensor.clone()
        if tensor.dim() and len(tensor) >= 3:
            # Split [3C, ...] into q [C, ...] and kv [2C, ...].
            q, kv = tensor.split([len(tensor) // 3, len(tensor) - len(tensor) // 3])
        renamed[f"{module}.q.{kind}{ending}"] = q
        renamed[f"{module}.kv.{kind}{ending}"] = kv
    return renamed


def rename_settings(metadata: dict[str, Any]) -> None:
    """Give the settings in a checkpoint's metadata their present names, in place."""
    for model in (metadata.get("model_config", {}), metadata.get("args", {}).get("model", {})):
        if "activation_fn" in model:
            model["feed_forward"] = model.pop("activation_fn")
        for side in ("encoder", "decoder"):
            if model.pop(f"{side}_learned_pos", False):
                model[f"{side}_positions"] = "learned"
