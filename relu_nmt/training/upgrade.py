"""Checkpoints written by earlier versions of relu_nmt, brought to today's names.

This is the one place that knows how weights and settings were called before.
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

_PACKED = re.compile(r"(?P<module>.*\b\w*attention)\.in_proj_(?P<kind>weight|bias)(?P<rest>.*)")
_VISION_PART = re.compile(r"\bblocks\.(\d+)\.(attention|feed_forward)(_branch)?\.")
_VISION_NAMES = {"attention": "self_attention", "feed_forward": "feed_forward"}


def upgrade_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors under today's names; today's own stay as they are.

    Query, key and value projections were one parameter ``in_proj_weight`` (and ``in_proj_bias``);
    they are ``qkv`` in self-attention, ``q`` and ``kv`` in cross-attention. The optimiser's
    moments of a parameter are renamed and split with it.

    Args:
        tensors: weights, or optimiser state as ``optimizer.PARAMETER.KEY``.
    """
    upgraded = {}
    for old_name, tensor in tensors.items():
        name = _VISION_PART.sub(_new_vision_part, old_name)
        packed = _PACKED.fullmatch(name)
        if packed is None:
            upgraded[name] = tensor
            continue
        module, kind, rest = packed.group("module", "kind", "rest")
        if not module.endswith("cross_attention"):
            upgraded[f"{module}.qkv.{kind}{rest}"] = tensor
            continue
        width = tensor.size(0) // 3 if tensor.dim() else 0
        # A scalar, such as the number of steps, belongs to both parts, which count on their own.
        halves = (tensor[:width], tensor[width:]) if width else (tensor, tensor.clone())
        parts = dict(zip(("q", "kv"), halves, strict=True))
        upgraded |= {f"{module}.{part}.{kind}{rest}": value for part, value in parts.items()}
    return upgraded


def _new_vision_part(match: re.Match[str]) -> str:
    index, part, branch = match.groups()
    return f"blocks.{index}.layer.{_VISION_NAMES[part]}{'_residual' if branch else ''}."


def upgrade_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint's metadata with today's names of settings."""
    upgraded = dict(metadata)
    if isinstance(upgraded.get("model_config"), Mapping):
        upgraded["model_config"] = _upgrade_model(upgraded["model_config"])
    arguments = upgraded.get("args")
    if isinstance(arguments, Mapping) and isinstance(arguments.get("model"), Mapping):
        upgraded["args"] = {**arguments, "model": _upgrade_model(arguments["model"])}
    return upgraded


def _upgrade_model(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a model under today's names."""
    upgraded = dict(settings)
    if "activation_fn" in upgraded:
        upgraded["feed_forward"] = upgraded.pop("activation_fn")
    for side in ("encoder", "decoder"):
        if upgraded.pop(f"{side}_learned_pos", False):
            upgraded[f"{side}_positions"] = "learned"
    return upgraded
