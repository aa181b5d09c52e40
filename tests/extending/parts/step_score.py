"""Scores of one's own for single tokens: a bonus for some, a penalty for one that comes twice."""

from torch import Tensor

from relu_nmt.config import option, settings
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.translation.search import step_scores
from relu_nmt.translation.search.step_rules import StepScore


@step_scores.register("preferred")
class Preferred(StepScore):
    """Adds ``bonus`` nats to the tokens in ``words``, which are joined by ``+``."""

    is_alike = True  # the bonus is the same for all hypotheses

    @settings(flags=False)
    class Config:
        """Options of the bonus."""

        words: str = option("", "tokens, joined by +")
        bonus: float = option(1.0, "nats for each of them, below 0 for a penalty")

    def __init__(self, config: Config, symbols: Dictionary) -> None:
        super().__init__(config, symbols)
        self._ids = [symbols.index(word) for word in config.words.split("+")]

    def apply(self, log_probs: Tensor, step: int) -> None:
        """Add the bonus."""
        log_probs[:, :, self._ids] += self.config.bonus


@step_scores.register("no_stammer")
class NoStammer(StepScore):
    """Subtracts nats from the token that a hypothesis has just written."""

    @settings(flags=False)
    class Config:
        """Options of the penalty."""

        penalty: float = option(5.0, "nats")

    def __init__(self, config: Config, symbols: Dictionary) -> None:
        super().__init__(config, symbols)
        self._newest: Tensor | None = None  # [B, K]

    def apply(self, log_probs: Tensor, step: int) -> None:
        """Subtract the penalty."""
        if self._newest is not None:
            log_probs.scatter_add_(
                2,
                self._newest[:, :, None],
                log_probs.new_full((*self._newest.shape, 1), -self.config.penalty),
            )

    def advance(self, parents: Tensor, tokens: Tensor) -> None:
        """Remember the newest tokens."""
        self._newest = tokens

    def keep(self, rows: Tensor, mask) -> None:
        """Keep only these rows."""
        if self._newest is not None:
            self._newest = self._newest.index_select(0, rows)
