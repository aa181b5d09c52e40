"""Settings of all transformers, for translation and vision; the file imports no PyTorch."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from relu_nmt.attention import attentions
from relu_nmt.attention.spec import known_in
from relu_nmt.config import option, settings
from relu_nmt.modules import feed_forwards, norms

attention_option = partial(option, metavar="NAME", parse=known_in(attentions))
probability_option = partial(option, least=0, below=1, metavar="P")
size_option = partial(option, least=1, metavar="N")
# Beyond any memory: refuse a typing error at once.
width_option = partial(size_option, most=1_000_000)
depth_option = partial(size_option, most=10_000)


def arch_option(default: str, presets: Mapping[str, Mapping[str, Any]], names: str) -> Any:
    """Return the option ``arch``; ``names`` lists the presets in ``--help``."""
    text = f"shape of the model: {names}"
    return option(default, text, flags=("-a",), metavar="NAME", presets=presets)


@settings
class TransformerOptions:
    """Settings that encoder-decoders and vision transformers share."""

    attention: str = attention_option(
        "softmax", "attention of all layers: NAME or NAME:option=value,..."
    )
    feed_forward: str = option(
        "relu",
        f"feed-forward network: {', '.join(feed_forwards.names())}",
        parse=known_in(feed_forwards),
        metavar="NAME",
        flags=("--activation-fn", "--ffn"),
    )
    norm: str = option(
        "layer", f"normalisation: {', '.join(norms.names())}", choices=norms, metavar="NAME"
    )
    dropout: float = probability_option(0.1, "dropout on embeddings and sublayer outputs")
    attention_dropout: float = probability_option(0.0, "dropout on attention weights")
    activation_dropout: float = probability_option(
        0.0, "dropout inside the FFN", flags=("--relu-dropout",)
    )
    checkpoint_activations: bool = option(
        False, "recompute activations in the backward pass: less memory, more time"
    )
