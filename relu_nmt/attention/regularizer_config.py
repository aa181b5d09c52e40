"""Settings of the regularisation loss on attention weights."""

from relu_nmt.config import option, settings


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
