"""What the command line says of attention: which one, where, its presets and other settings.

It imports no PyTorch. Settings of one mechanism are in the mechanism's file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relu_nmt.config import checked_by, option, settings
from relu_nmt.config.registry import Registry, Spec
from relu_nmt.errors import ConfigError

SLOTS = ("encoder", "decoder", "cross")
"""Where an encoder-decoder attends: source to source, target to target, target to source."""
PLACE_FORM = (
    "expected SLOT.LAYER or SLOT.LAYER.HEAD, such as cross.2, cross.-1 (the last) or encoder.0.3"
)
# The paper prints neither gamma nor the weights of the regulariser. With gamma 8 the output starts
# small, and self-attention learns faster than softmax; weights of 0.1 cost a little at the start
# and gain more in the end than weights of 0.01. Cross-attention with it translates worse: so only
# the preset that repeats the paper has it there (docs/lab/study.md).
_RELUFORMER_PAPER = {
    "attention": "reluformer:gamma=8",
    "attention_norm_weight": 0.1,
    "attention_entropy_weight": 0.1,
}
ATTENTION_PRESETS: dict[str, dict[str, Any]] = {
    "none": {},
    "reluformer": {**_RELUFORMER_PAPER, "cross_attention": "softmax"},
    "reluformer_paper": _RELUFORMER_PAPER,
}
BACKEND_HELP = (
    "what computes attention: reference keeps the whole matrix of weights, blockwise and triton "
    "(pointwise weights, GPU) need memory linear in the length, fused is PyTorch's softmax, native "
    "decodes on CPUs; an attention refuses what it has not; auto takes the fastest"
)


AttentionSpec = Spec
"""A mechanism, or a feed-forward network, as a flag names it."""


def known_in(registry: Registry[Any]) -> Callable[[str], str]:
    """Return the ``parse`` of options whose text begins with a name in the registry."""
    return checked_by(lambda text: registry.check(AttentionSpec.parse(text).name))


@dataclass(frozen=True)
class AttentionPlace:
    """An attention module, or one head of it.

    Args:
        slot: ``encoder``, ``decoder`` (self-attention) or ``cross``.
        layer: from 0; negative ones count from the last, which is -1.
        head: from 0; ``None`` is all heads.

    Raises:
        ConfigError: no such slot.

    Example:
        >>> str(AttentionPlace.parse("cross.2.1"))
        'cross.2.1'
    """

    slot: str
    layer: int
    head: int | None = None

    def __post_init__(self) -> None:
        if self.slot not in SLOTS:
            raise ConfigError(f"attention '{self.slot}': choose a slot of {', '.join(SLOTS)}")

    @classmethod
    def parse(cls, text: str) -> "AttentionPlace":
        """Read ``SLOT.LAYER`` or ``SLOT.LAYER.HEAD``.

        Raises:
            ConfigError: something else, or no such slot.
        """
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


@settings
class AttentionPresetOptions:
    """Which attention's settings to begin with; a preset goes with any shape (``--arch``)."""

    attention_preset: str = option(
        "none",
        "settings of an attention and its regulariser, for any --arch; flags go before it",
        presets=ATTENTION_PRESETS,
        metavar="NAME",
    )


@settings
class AttentionBackendConfig:
    """Which code computes attention; it changes speed and memory only and is never stored."""

    attention_backend: str = option("auto", BACKEND_HELP)


@settings
class AttentionRegularizerConfig:
    """Weights of the two terms that are added to the loss per target token."""

    attention_norm_weight: float = option(
        0.0, "weight of the mean |log(row sum)| of the attention weights", least=0
    )
    attention_entropy_weight: float = option(
        0.0, "weight of the mean excess of the attention entropy over its margin", least=0
    )
    attention_entropy_margin: float = option(
        0.7,
        "the margin is this times log(number of visible keys), in nats",
        needs="attention_entropy_weight",
    )

    @property
    def active(self) -> bool:
        """Return whether any term has a weight."""
        return self.attention_norm_weight > 0 or self.attention_entropy_weight > 0
