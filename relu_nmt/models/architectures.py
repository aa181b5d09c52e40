"""The ``--arch`` presets: settings that differ from the defaults, by name.

Every shape exists twice: ``transformer*`` with softmax and ``reluformer*`` with ReLU attention
and its regulariser; nothing else differs between the twins.
"""

from typing import Any

# The paper prints neither gamma nor the weights of the regulariser. With gamma 2 the output starts
# as small as that of softmax over a sentence, and training starts almost as fast. Weights of 0.1
# cost a little at the start and gain more in the end than weights of 0.01 (docs/results.md).
_RELU_ATTENTION = {
    "attention": "reluformer:gamma=2",
    "attention_norm_weight": 0.1,
    "attention_entropy_weight": 0.1,
}


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

architectures = {
    f"{family}{suffix}": {**shape, **attention}
    for suffix, shape in _SHAPES.items()
    for family, attention in (("transformer", {}), ("reluformer", _RELU_ATTENTION))
}
