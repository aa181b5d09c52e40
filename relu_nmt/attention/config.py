"""Settings of attention that are no mechanism's own; it imports no PyTorch, for the flags."""

from dataclasses import dataclass

from relu_nmt.config import option
from relu_nmt.errors import ConfigError

BACKEND_HELP = (
    "what computes attention: reference keeps the whole matrix of weights, blockwise and triton "
    "(pointwise weights, GPU) need memory linear in the length, fused is PyTorch's softmax; an "
    "attention refuses what it has not; auto takes the fastest"
)


@dataclass(frozen=True)
class AttentionBackendConfig:
    """Which code computes attention; it changes speed and memory only and is never stored."""

    attention_backend: str = option("auto", BACKEND_HELP)


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
