"""Building blocks of the models, with one registry for each kind that has several.

Entries are listed here by name with their file, as in :mod:`relu_nmt.attention`. ``get(name)``
imports the file. A file given with ``--user-module`` adds entries.
"""

from typing import TYPE_CHECKING

from relu_nmt.config.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from relu_nmt.modules.positions import PositionScheme

feed_forwards: "Registry[Callable[..., nn.Module]]" = Registry(
    "feed-forward network",
    dict.fromkeys(
        (
            *("relu", "gelu", "gelu-tanh", "quick-gelu", "silu", "swiglu", "geglu"),
            *("softmax", "softmax-ln", "relu-ln"),
        ),
        "relu_nmt.modules.feed_forward",
    ),
)
"""Called with (embed_dim, ffn_dim, dropout), and with its ``Config`` if it has options. The module
maps [..., D] to [..., D]."""

norms: "Registry[Callable[[int, float], nn.Module]]" = Registry(
    "norm", dict.fromkeys(("layer", "rms"), "relu_nmt.modules.transformer_layer")
)
"""Called with (embed_dim, eps). The module maps [..., D] to [..., D]."""

position_schemes: "Registry[type[PositionScheme]]" = Registry(
    "position scheme",
    dict.fromkeys(
        ("sinusoidal", "sinusoidal-fairseq", "learned", "none", "rotary", "alibi", "t5"),
        "relu_nmt.modules.positions",
    ),
)
