"""The ``--arch`` presets of vision models: settings that differ from the defaults, by name."""

from typing import Any

from relu_nmt.errors import ConfigError


def _vit(embed_dim: int, layers: int, heads: int) -> dict[str, Any]:
    return {"embed_dim": embed_dim, "layers": layers, "heads": heads}


_ARCHITECTURES = {
    "vit_ti": _vit(192, 12, 3),
    "vit_s": _vit(384, 12, 6),
    "vit_b": _vit(768, 12, 12),
    "vit_l": _vit(1024, 24, 16),
}
# DeiT without its distillation token is ViT trained by another recipe, so the names are synonyms.
_ARCHITECTURES |= {f"deit_{size}": _ARCHITECTURES[f"vit_{size}"] for size in ("ti", "s", "b")}


def architecture_names() -> list[str]:
    """Return the names of all presets, sorted."""
    return sorted(_ARCHITECTURES)


def architecture_defaults(name: str) -> dict[str, Any]:
    """Return the settings of a preset: fields of the model's config.

    Raises:
        ConfigError: no such preset.
    """
    if name not in _ARCHITECTURES:
        raise ConfigError(f"--arch {name}: choose one of {', '.join(architecture_names())}")
    return dict(_ARCHITECTURES[name])
