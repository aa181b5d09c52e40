"""The shapes of vision transformers by name: what ``--arch`` chooses from."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

ENDINGS = re.compile(
    r"(?P<shape>.+?)(_(patch|p)(?P<patch_size>\d+(x\d+)?))?(_window(?P<window_size>\d+))?"
    r"(_(?P<image_size>\d+(x\d+)?))?"
)
NAMED_SETTINGS = {
    "vit": {"patch_size", "image_size"},
    "xcit": {"patch_size", "image_size"},
    "swin": {"patch_size", "window_size", "image_size"},
    "cvt": {"image_size"},
}
"""What the end of a name may say of a shape, by its family."""


class Architectures(Mapping[str, dict[str, Any]]):
    """Settings that differ from the defaults, by the name of a shape.

    A name may go on as in timm: ``vit_small_patch32_384`` (or ``_p32_384``) is ``vit_small`` with
    patches of 32 pixels a side and images of 384; ``_patch16x8`` means 16 rows of 8 pixels, and
    ``_192x256`` 192 rows of 256. Such names are read, not listed.

    Args:
        shapes: the settings by the names that are listed.

    Example:
        >>> architectures["vit_tiny_patch4_32"]
        {'embed_dim': 192, 'layers': 12, 'heads': 3, 'patch_size': 4, 'image_size': 32}
    """

    def __init__(self, shapes: Mapping[str, dict[str, Any]]) -> None:
        self._shapes = shapes

    def __getitem__(self, name: str) -> dict[str, Any]:
        if name in self._shapes:
            return self._shapes[name]
        found = ENDINGS.fullmatch(name)
        if found is None:
            raise KeyError(name)
        shape = self._shapes[found["shape"]]
        given = {key: text for key, text in found.groupdict().items() if text and key != "shape"}
        if given.keys() - NAMED_SETTINGS[shape.get("family", "vit")]:
            raise KeyError(name)
        numbers = {key: tuple(map(int, text.split("x"))) for key, text in given.items()}
        return {**shape, **{key: n if len(n) > 1 else n[0] for key, n in numbers.items()}}

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def _vit(embed_dim: int, layers: int, heads: int) -> dict[str, Any]:
    return {"embed_dim": embed_dim, "layers": layers, "heads": heads}


_VIT = {
    "vit_tiny": _vit(192, 12, 3),
    "vit_small": _vit(384, 12, 6),
    "vit_base": _vit(768, 12, 12),
    "vit_large": _vit(1024, 24, 16),
}
# DeiT without its distillation token is ViT trained by another recipe, so the names are synonyms.
_DEIT = {f"deit_{size}": _VIT[f"vit_{size}"] for size in ("tiny", "small", "base")}
_SHORT = {
    f"{family}_{short}": shapes[f"{family}_{size}"]
    for family, shapes in (("vit", _VIT), ("deit", _DEIT))
    for short, size in (("ti", "tiny"), ("s", "small"), ("b", "base"), ("l", "large"))
    if f"{family}_{size}" in shapes
}

_BIG_VISION = {"big_vision": True, "feed_forward": "gelu-tanh"}
_BIG_VISION_FORMS = {  # its settings for ImageNet-1k and for ImageNet-21k
    "bigvision_i1k": {**_BIG_VISION, "tanh_layer": True, "head_bias": -6.9},
    "bigvision_i21k": {**_BIG_VISION, "pooling": "mean", "head_bias": -10.0},
}
_BIG_VISION_VIT = {
    f"{name}_{form}": {**_VIT[name], **values}
    for name in ("vit_small", "vit_base", "vit_large")
    for form, values in _BIG_VISION_FORMS.items()
}


def _xcit(embed_dim: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "family": "xcit",
        "attention": "xca",
        **_vit(embed_dim, layers, heads),
        "layer_scale": 1.0 if layers == 12 else 1e-5,
    }


_XCIT = {
    "xcit_nano_12": {**_xcit(128, 12, 4), "class_layers_norm_patches": False},
    "xcit_tiny_12": _xcit(192, 12, 4),
    "xcit_tiny_24": _xcit(192, 24, 4),
    "xcit_small_12": _xcit(384, 12, 8),
    "xcit_small_24": _xcit(384, 24, 8),
    "xcit_medium_24": _xcit(512, 24, 8),
    "xcit_large_24": _xcit(768, 24, 16),
}


def _swin(embed_dim: int, layers: tuple[int, ...], drop_path: float) -> dict[str, Any]:
    heads = embed_dim // 32
    return {
        "family": "swin",
        "patch_size": 4,
        "embed_dim": embed_dim,
        "stage_layers": layers,
        "stage_heads": (heads, 2 * heads, 4 * heads, 8 * heads),
        "drop_path": drop_path,
    }


_SWIN = {
    "swin_tiny": _swin(96, (2, 2, 6, 2), 0.2),
    "swin_small": _swin(96, (2, 2, 18, 2), 0.3),
    "swin_base": _swin(128, (2, 2, 18, 2), 0.5),
}
_CVT = {
    "cvt_13": {
        "family": "cvt",
        "embed_dim": 64,
        "stage_layers": (1, 2, 10),
        "stage_heads": (1, 3, 6),
        "feed_forward": "quick-gelu",
        "drop_path": 0.1,
    }
}
architectures = Architectures(_SHORT | _VIT | _DEIT | _BIG_VISION_VIT | _XCIT | _SWIN | _CVT)
"""The ``--arch`` presets."""
