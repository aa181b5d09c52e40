"""Which attention of a model: its slot, layer and head."""

from dataclasses import dataclass

from relu_nmt.attention.spec import SLOTS
from relu_nmt.errors import ConfigError

FORM = "expected SLOT.LAYER or SLOT.LAYER.HEAD, such as cross.2, cross.-1 (the last) or encoder.0.3"


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
            raise ConfigError(f"attention '{text}': {FORM}") from None
        if len(head) > 1:
            raise ConfigError(f"attention '{text}': {FORM}")
        return cls(slot, layer, head[0] if head else None)

    def __str__(self) -> str:
        head = "" if self.head is None else f".{self.head}"
        return f"{self.slot}.{self.layer}{head}"
