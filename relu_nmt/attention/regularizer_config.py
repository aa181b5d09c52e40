"""Settings of the regularisation loss on attention weights."""

from dataclasses import dataclass

from relu_nmt.config import option
from relu_nmt.errors import ConfigError


@dataclass(frozen=True)
class AttentionRegularizerConfig:
    """Weights of the two terms that are added to the loss per target token."""

    attention_norm_weight: float = option(
        0.0, "weight of the mean |log(row sum)| of the attention weights"
    )
    attention_entropy_weight: float = option(
        0.0, "weight of the mean excess of the attention entropy over its margin"
    )
    attention_entropy_margin: float = option(
        0.7, "the margin is this times log(number of visible keys), in nats"
    )

    def __post_init__(self) -> None:
        for name in ("attention_norm_weight", "attention_entropy_weight"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"--{name.replace('_', '-')} {getattr(self, name)}: expected 0 or more"
                )

    @property
    def active(self) -> bool:
        """Whether any term has a weight."""
        return self.attention_norm_weight > 0 or self.attention_entropy_weight > 0
