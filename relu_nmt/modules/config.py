"""Settings of all transformers and their attention, for translation and vision.

The file imports no PyTorch. Settings of one mechanism are in the mechanism's file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from relu_nmt.attention import attentions
from relu_nmt.config import MOST_SIZE, checked_by, option, settings
from relu_nmt.errors import ConfigError
from relu_nmt.modules import feed_forwards, norms

SLOTS = ("encoder", "decoder", "cross")
"""Slots of an encoder-decoder: source to source, target to target, target to source."""
PLACE_FORM = (
    "expected SLOT.LAYER or SLOT.LAYER.HEAD, such as cross.2, cross.-1 (the last) or encoder.0.3"
)
# The paper prints neither gamma nor the weights of the regularizer. docs/lab/study.md compares
# values. Gamma 8 makes small outputs at first, which speeds up self-attention. In cross-attention,
# with sinusoidal positions alone, the paper's ReLU translates worse than softmax. With rotary
# positions it translates as well, and so does ReLU over a threshold.
_RELUFORMER_PAPER = {
    "attention": "reluformer:gamma=8",
    "attention_norm_weight": 0.1,
    "attention_entropy_weight": 0.1,
}
ATTENTION_PRESETS: dict[str, dict[str, Any]] = {
    "none": {},
    "reluformer": {**_RELUFORMER_PAPER, "cross_attention": "thresholded_relu"},
    "reluformer_hybrid": {**_RELUFORMER_PAPER, "cross_attention": "softmax"},
    "reluformer_paper": _RELUFORMER_PAPER,
}

attention_option = partial(option, metavar="NAME", parse=checked_by(attentions.check))
attention_preset_option = partial(
    option,
    "none",
    "settings of an attention and its regularizer",
    presets=ATTENTION_PRESETS,
    metavar="NAME",
)
probability_option = partial(option, least=0, below=1, metavar="P")
size_option = partial(option, least=1, most=MOST_SIZE, metavar="N")
depth_option = partial(size_option, most=10_000)


def arch_option(default: str, presets: Mapping[str, Mapping[str, Any]], names: str) -> Any:
    """Return the option ``arch``. ``names`` lists the presets in ``--help``."""
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
        parse=checked_by(feed_forwards.check),
        metavar="NAME",
        flags=("--activation-fn", "--ffn"),
    )
    norm: str = option(
        "layer", f"normalization: {', '.join(norms.names())}", choices=norms, metavar="NAME"
    )
    dropout: float = probability_option(0.1, "dropout on embeddings and sublayer outputs")
    attention_dropout: float = probability_option(0.0, "dropout on attention weights")
    activation_dropout: float = probability_option(
        0.0, "dropout inside the FFN", flags=("--relu-dropout",)
    )
    checkpoint_activations: bool = option(
        False, "recompute activations in the backward pass: less memory, more time"
    )


@settings
class AttentionRegularizerConfig:
    """Weights of the two terms that the regularizer adds to the loss of each target token."""

    attention_norm_weight: float = option(
        0.0, "weight of the mean |log(row sum)| of the weights", least=0, metavar="W"
    )
    attention_entropy_weight: float = option(
        0.0, "weight of the mean excess of the entropy over its margin", least=0, metavar="W"
    )
    attention_entropy_margin: float = option(
        0.7, "margin, in log(number of visible keys)", metavar="M", needs="attention_entropy_weight"
    )

    @property
    def active(self) -> bool:
        """True if a term has a weight."""
        return self.attention_norm_weight > 0 or self.attention_entropy_weight > 0


@dataclass(frozen=True)
class AttentionPlace:
    """An attention module, or one head of it: ``cross.2`` is all heads, ``cross.2.1`` one.

    The slot is ``encoder``, ``decoder`` (self-attention) or ``cross``. Layers and heads count from
    0. Negative layers count from the end: -1 is the last one. ``None`` is all heads.

    Raises:
        ConfigError: no such slot.
    """

    slot: str
    layer: int
    head: int | None = None

    def __post_init__(self) -> None:
        if self.slot not in SLOTS:
            raise ConfigError(f"attention '{self.slot}': choose a slot of {', '.join(SLOTS)}")

    @classmethod
    def parse(cls, text: str) -> "AttentionPlace":
        """Read ``SLOT.LAYER`` or ``SLOT.LAYER.HEAD``."""
        slot, *numbers = text.split(".")
        try:
            layer, *head = (int(number) for number in numbers)
        except ValueError:
            raise ConfigError(f"attention '{text}': {PLACE_FORM}") from None
        if len(head) > 1:
            raise ConfigError(f"attention '{text}': {PLACE_FORM}")
        return cls(slot, layer, head[0] if head else None)

    def __str__(self) -> str:
        head = "" if self.head is None else f".{self.head}"
        return f"{self.slot}.{self.layer}{head}"
