"""The base classes of rules about the next token, and the parts that rules share.

A search has a list of rules (:mod:`relu_nmt.translation.search.constraints`). At each step they
change the scores of the next tokens one after the other, so that a later rule has priority. A bonus
or penalty of a user is a rule as well (``--step-score``).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from relu_nmt.config.classes import with_own_config
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.separators import Separators
from relu_nmt.errors import ConfigError
from relu_nmt.translation.base import Ensemble
from relu_nmt.translation.search.config import GenerationConfig

if TYPE_CHECKING:
    from relu_nmt.translation.search.translations import SourceSentence

State = TypeVar("State")


class StepRule(ABC):
    """One rule about the next tokens of all hypotheses of a batch."""

    is_alike: bool = False
    """The rule changes the scores of all hypotheses in the same way."""

    def is_active(self, step: int) -> bool:
        """Return False if nothing changes at this step."""
        return True

    def save(self, log_probs: Tensor, step: int) -> None:  # noqa: B027
        """Keep scores [B, K, V] of the models before any token is forbidden or forced."""

    @abstractmethod
    def apply(self, log_probs: Tensor, step: int) -> None:
        """Change the scores of the token that follows ``step`` tokens, in place.

        log_probs are [B, K, V]. If all active rules are alike, they may belong to any hypotheses,
        [..., ..., V].
        """

    def advance(self, parents: Tensor, tokens: Tensor) -> None:  # noqa: B027
        """Append the chosen tokens [B, K] to beams ``parents`` [B, K]."""

    def keep(self, rows: Tensor, mask: np.ndarray) -> None:  # noqa: B027
        """Keep only the sentences with indices ``rows`` [B'], which ``mask`` [B] marks."""


class StepScore(StepRule):
    """The base class of a user's bonus or penalty, in nats, for tokens that are written.

    Register a class with ``@step_scores.register("name")``, and add to or subtract from the scores
    in :meth:`apply`. The scores of hypotheses include it. Set ``is_alike`` if it depends on the
    token alone.

    Args:
        config: options from ``--step-score NAME:option=value``.
        symbols: the target dictionary.
    """

    Config: ClassVar[type]

    def __init_subclass__(cls) -> None:
        with_own_config(cls)

    def __init__(self, config: Any, symbols: Dictionary) -> None:
        self.config = config
        self.symbols = symbols


class OutputBudget:
    """The tokens that the hypotheses of a batch may still write, and the symbols that end them.

    Attributes:
        limits: most tokens before the end symbol, int64 [B]. They leave room for all sentences,
            prefixes and terms.
        context_sizes: tokens of a known context, int64 [B].
        separator: the symbol that ends each sentence. -1 for none.
        sentences_left: sentences still to write, int64 [B, K]. None: they are not counted.
        sentence_tokens_left: tokens that still fit in the current sentence, int64 [B, K]. At 0 the
            separator is forced. None: sentences may be as long as the output.
        is_single: True for translations without separator, bool [B, 1]. None: no such translation.

    Raises:
        ConfigError: prefixes and terms need more tokens than the models can write.
    """

    def __init__(
        self,
        config: GenerationConfig,
        symbols: Dictionary,
        ensemble: Ensemble,
        sources: "Sequence[SourceSentence]",
        prefixes: Tensor,
        separators: Separators | None,
    ) -> None:
        self.eos_index = symbols.eos_index
        self.context_sizes = _counts(len(source.context) for source in sources)
        self.separator = -1
        self.sentences_left: Tensor | None = None
        self.sentence_tokens_left: Tensor | None = None
        self.is_single: Tensor | None = None
        self._ends: dict[int, Tensor] = {}
        if separators is not None:
            self.separator = separators.target
            num_separators = _counts(separators.num_expected(source.ids) for source in sources)
            count = torch.from_numpy(num_separators).to(prefixes.device)[:, None]
            if not num_separators.all():
                self.is_single = count == 0
            if not config.free_sentence_count and num_separators.any():
                self.sentences_left = count.expand(-1, config.beam)
            # Sentences have a separate limit if the models limit them more than the whole output.
            most_of_sentence = ensemble.max_target_sentence_positions
            if most_of_sentence not in (None, ensemble.max_target_positions):
                self._tokens_of_new = most_of_sentence - 1  # one token is the separator
                left = torch.full_like(count, self._tokens_of_new)
                self.sentence_tokens_left = left.expand(-1, config.beam)
        most_tokens = ensemble.max_target_positions
        limits = config.length_limits(_counts(len(source.ids) for source in sources), most_tokens)
        self.limits = self._raised(limits, sources, prefixes.cpu().numpy(), symbols.pad_index)
        longest = int(self.limits.max(initial=0))
        if most_tokens is not None and longest >= most_tokens:
            raise ConfigError(
                f"{longest} tokens are needed for the sentences to translate at once, or for "
                f"prefixes and forced terms, but the model can write {most_tokens - 1}; give a "
                "smaller --max-doc-tokens, shorter prefixes or fewer terms"
            )

    def _raised(
        self,
        limits: np.ndarray,
        sources: "Sequence[SourceSentence]",
        prefixes: np.ndarray,
        pad_index: int,
    ) -> np.ndarray:
        """Return limits [B] with room for all sentences, prefixes [B, P] and terms."""
        num_sentences = np.zeros_like(limits)
        if self.sentences_left is not None:
            # Leave room for all separators and for the other tokens of the context.
            num_sentences = self.sentences_left[:, 0].cpu().numpy()
            in_context = np.arange(prefixes.shape[1]) < self.context_sizes[:, None]
            num_in_context = ((prefixes == self.separator) & in_context).sum(1)
            limits = np.maximum(limits, num_sentences + self.context_sizes - num_in_context)
        # With prefixes or terms, leave room for all forced tokens and all separators.
        num_terms = _counts(source.num_forced for source in sources)
        is_forced = num_terms + _counts(len(source.prefix) for source in sources) > 0
        num_needed = num_terms + num_sentences + (prefixes != pad_index).sum(1)
        limits = np.where(is_forced, np.maximum(limits, num_needed), limits)
        # A source without separator ends at the longest sentence that the models can write.
        if self.is_single is not None and self.sentence_tokens_left is not None:
            is_single = self.is_single[:, 0].cpu().numpy()
            shorter = np.minimum(limits, self.sentence_tokens_left[:, 0].cpu().numpy())
            limits = np.where(is_single, shorter, limits)
        return limits

    def save(self, log_probs: Tensor) -> None:
        """Keep the models' scores of the symbols that end sentences."""
        self._ends = {self.eos_index: log_probs[:, :, self.eos_index].clone()}
        if self.sentences_left is not None or self.sentence_tokens_left is not None:
            self._ends[self.separator] = log_probs[:, :, self.separator].clone()

    def allow_only(self, symbol: int, log_probs: Tensor, where: Tensor) -> None:
        """Forbid, in place, all but this end of sentences for the beams ``where``, bool [B, K]."""
        saved = self._ends[symbol]
        sentence, beam = where.expand(saved.shape).nonzero(as_tuple=True)
        if len(sentence):
            log_probs[sentence, beam] = -torch.inf
            log_probs[sentence, beam, symbol] = saved[sentence, beam]

    def tokens_left(self, step: int, like: Tensor) -> Tensor:
        """Return how many tokens still fit besides ends of sentences, [B, K] or [B, 1]."""
        left = column(self.limits - step, like)
        return left if self.sentences_left is None else left - self.sentences_left

    def is_begun(self, step: int, like: Tensor) -> Tensor:
        """Return whether the context is written, bool [B, 1]."""
        return column(step >= self.context_sizes, like)

    def ends_next(self, step: int, like: Tensor) -> Tensor:
        """Return where the token after the next may have to end a sentence, bool [B, K]."""
        ends_next = self.tokens_left(step, like) <= 1
        if self.sentence_tokens_left is not None:
            ends_next = ends_next | (self.sentence_tokens_left <= 1)
        return ends_next

    def advance(self, parents: Tensor, tokens: Tensor) -> None:
        """Append the chosen tokens [B, K] to beams ``parents`` [B, K]."""
        if self.sentences_left is None and self.sentence_tokens_left is None:
            return
        ends = tokens == self.separator
        if self.sentences_left is not None:
            self.sentences_left = self.sentences_left.gather(1, parents) - ends.long()
        if self.sentence_tokens_left is not None:
            left = self.sentence_tokens_left.gather(1, parents) - 1
            self.sentence_tokens_left = left.masked_fill(ends, self._tokens_of_new)

    def keep(self, rows: Tensor, mask: np.ndarray) -> None:
        """Keep only the sentences with indices ``rows`` [B'], which ``mask`` [B] marks."""
        self.limits = self.limits[mask]
        self.context_sizes = self.context_sizes[mask]
        for name in ("sentences_left", "sentence_tokens_left", "is_single"):
            values = getattr(self, name)
            if values is not None:
                setattr(self, name, values.index_select(0, rows))


def states_of_parents(states: Sequence[Sequence[State]], parents: Tensor) -> list[list[State]]:
    """Return the state of the parent of each beam, [B][K]. A sentence may have no states."""
    rows = []
    for states_of_row, beams in zip(states, parents.tolist(), strict=True):
        rows.append([states_of_row[beam] for beam in beams] if states_of_row else [])
    return rows


def _counts(numbers: Iterable[int]) -> np.ndarray:
    """Return a number for each sentence, int64 [B]."""
    return np.fromiter(numbers, dtype=np.int64)


def column(values: np.ndarray, like: Tensor) -> Tensor:
    """Return values of each sentence [B] as [B, 1] on the device of ``like``."""
    return torch.from_numpy(values).to(like.device)[:, None]


def forbid(log_probs: Tensor, hypotheses: Sequence[tuple[int, int]], symbols: Tensor) -> None:
    """Forbid symbols [n] in log_probs [B, K, V], in place, for pairs of sentence and beam."""
    if len(symbols):
        indices = torch.tensor(hypotheses, device=log_probs.device)  # [N, 2]
        rows, beams = indices.t()[:, :, None]  # [N, 1] each
        log_probs[rows, beams, symbols.to(log_probs.device)] = -torch.inf


def exclude_token(log_probs: Tensor, token: int, where: Tensor | None = None) -> None:
    """Remove a token from log_probs [B, K, V], in place, and normalize, ``where`` [B, K or 1].

    Example:
        >>> log_probs = torch.tensor([[[0.5, 0.25, 0.25]]]).log()
        >>> exclude_token(log_probs, 0)
        >>> log_probs.exp().tolist()
        [[[0.0, 0.5, 0.5]]]
    """
    share = log_probs[:, :, token]  # [B, K]
    if where is not None:
        share = share.masked_fill(~where, -torch.inf)
    # Keep the other tokens as they are where this token has all of the probability.
    remainder = torch.log1p(-share.exp())
    log_probs -= remainder.masked_fill(remainder == -torch.inf, 0.0)[:, :, None]
    log_probs[:, :, token].masked_fill_(share > -torch.inf, -torch.inf)
