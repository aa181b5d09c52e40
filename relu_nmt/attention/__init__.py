"""Attention mechanisms, shared by translation and vision.

Every mechanism is one file, listed here by name. ``attentions.get(name)`` returns its class;
listing the names imports nothing.
"""

from typing import TYPE_CHECKING

from relu_nmt.registry import Registry

if TYPE_CHECKING:
    from relu_nmt.attention.base import Attention

attentions: "Registry[type[Attention]]" = Registry(
    "attention",
    {
        "softmax": "relu_nmt.attention.softmax",
        "reluformer": "relu_nmt.attention.reluformer",
    },
)
