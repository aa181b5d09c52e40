"""The ``--arch`` presets of vision models: settings that differ from the defaults, by name."""

from typing import Any


def _vit(embed_dim: int, layers: int, heads: int) -> dict[str, Any]:
    return {"embed_dim": embed_dim, "layers": layers, "heads": heads}


architectures = {
    "vit_ti": _vit(192, 12, 3),
    "vit_s": _vit(384, 12, 6),
    "vit_b": _vit(768, 12, 12),
    "vit_l": _vit(1024, 24, 16),
}
# DeiT without its distillation token is ViT trained by another recipe, so the names are synonyms.
architectures |= {f"deit_{size}": architectures[f"vit_{size}"] for size in ("ti", "s", "b")}
