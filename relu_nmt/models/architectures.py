"""The ``--arch`` shapes and the ``--attention-preset`` values: other settings' defaults, by name.

Every shape exists twice: ``transformer*`` with softmax and ``reluformer*``, which is the same shape
with the attention preset ``reluformer``.
"""

from typing import Any

from relu_nmt.attention.spec import ATTENTION_PRESETS


def _both_sides(embed_dim: int, ffn_dim: int, layers: int, heads: int) -> dict[str, Any]:
    sides = {}
    for side in ("encoder", "decoder"):
        sides[f"{side}_embed_dim"] = embed_dim
        sides[f"{side}_ffn_embed_dim"] = ffn_dim
        sides[f"{side}_layers"] = layers
        sides[f"{side}_attention_heads"] = heads
    return sides


_SHAPES: dict[str, dict[str, Any]] = {
    "": _both_sides(512, 2048, 6, 8),
    "_tiny": _both_sides(64, 128, 2, 2),
    "_iwslt_de_en": _both_sides(512, 1024, 6, 4),
    "_wmt_en_de": _both_sides(512, 2048, 6, 8),
}

architectures: dict[str, dict[str, Any]] = {
    f"{family}{suffix}": {**shape, **choice}
    for suffix, shape in _SHAPES.items()
    for family, choice in (
        ("transformer", {}),
        *((name, {"attention_preset": name}) for name in ATTENTION_PRESETS if name != "none"),
    )
}
