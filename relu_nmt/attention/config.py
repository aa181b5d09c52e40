"""Settings of attention that are no mechanism's own; it imports no PyTorch, for the flags."""

from typing import Any

from relu_nmt.config import option, settings

# The paper prints neither gamma nor the weights of the regulariser. With gamma 2 the output starts
# as small as that of softmax over a sentence, and training starts almost as fast. Weights of 0.1
# cost a little at the start and gain more in the end than weights of 0.01 (docs/results.md).
ATTENTION_PRESETS: dict[str, dict[str, Any]] = {
    "none": {},
    "reluformer": {
        "attention": "reluformer:gamma=2",
        "attention_norm_weight": 0.1,
        "attention_entropy_weight": 0.1,
    },
}
BACKEND_HELP = (
    "what computes attention: reference keeps the whole matrix of weights, blockwise and triton "
    "(pointwise weights, GPU) need memory linear in the length, fused is PyTorch's softmax; an "
    "attention refuses what it has not; auto takes the fastest"
)


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
        """Whether any term has a weight."""
        return self.attention_norm_weight > 0 or self.attention_entropy_weight > 0
