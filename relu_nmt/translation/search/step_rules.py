"""Rules about the next token: what a hypothesis may write, and what it must write.

A search has a list of rules. At each step they change the scores of the next tokens one after the
other, so that a later rule has priority. A bonus or penalty of a user is a rule as well
(``--step-score``).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from relu_nmt.config.classes import with_own_config
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.documents import Separators

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

        log_probs are [B, K, V], or [B, 1, V] for the first token. If all active rules are alike,
        they may belong to any hypotheses, [..., ..., V].
        """

    def advance(self, parents: Tensor | None, tokens: Tensor) -> None:  # noqa: B027
        """Append the chosen tokens [B, K] to beams ``parents`` [B, K]. None: the same beams."""

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


class Written:
    """The tokens that the hypotheses of a batch have written and may write.

    ``limits`` are the most tokens before the end symbol, ``context_sizes`` the tokens of a known
    context, ``num_separators`` the separators of the source, int64 [B] each.

    Attributes:
        separator: the symbol that ends each sentence. -1 for none.
        sentences_left: sentences still to write, int64 [B, K], [B, 1] at first. None: they are not
            counted.
        sentence_room: tokens that still fit in the current sentence, in the same shape. At 0 the
            separator is forced. None: sentences may be as long as the output.
        is_single: True for sources without separator, bool [B, 1], whose end is free. None: no such
            source.
    """

    def __init__(
        self,
        symbols: Dictionary,
        limits: np.ndarray,
        context_sizes: np.ndarray,
        num_separators: np.ndarray,
        separators: Separators | None,
        most_of_a_sentence: int | None,
        is_counted: bool,
        device: torch.device,
    ) -> None:
        self.eos_index = symbols.eos_index
        self.separator = -1
        self.limits = limits
        self.context_sizes = context_sizes
        self.sentences_left: Tensor | None = None
        self.sentence_room: Tensor | None = None
        self.is_single: Tensor | None = None
        self._ends: dict[int, Tensor] = {}
        if separators is None:
            return
        self.separator = separators.target
        count = torch.from_numpy(num_separators).to(device)[:, None]
        if not (separators.alone or num_separators.all()):
            self.is_single = count == 0
        if is_counted and (separators.alone or num_separators.any()):
            self.sentences_left = count.clamp_min(int(separators.alone))
        if most_of_a_sentence is not None:
            self._room_of_new = most_of_a_sentence - 1  # one token is the separator
            self.sentence_room = torch.full_like(count, self._room_of_new)

    def save(self, log_probs: Tensor) -> None:
        """Keep the models' scores of the symbols that end sentences."""
        self._ends = {self.eos_index: log_probs[:, :, self.eos_index].clone()}
        if self.sentences_left is not None or self.sentence_room is not None:
            self._ends[self.separator] = log_probs[:, :, self.separator].clone()

    def allow_only(self, symbol: int, log_probs: Tensor, where: Tensor) -> None:
        """Forbid, in place, all but this end of sentences for the beams ``where``, bool [B, K]."""
        saved = self._ends[symbol]
        sentence, beam = where.expand(saved.shape).nonzero(as_tuple=True)
        if len(sentence):
            log_probs[sentence, beam] = -torch.inf
            log_probs[sentence, beam, symbol] = saved[sentence, beam]

    def room(self, step: int, like: Tensor) -> Tensor:
        """Return how many tokens still fit besides ends of sentences, [B, K] or [B, 1]."""
        room = column(self.limits - step, like)
        return room if self.sentences_left is None else room - self.sentences_left

    def is_begun(self, step: int, like: Tensor) -> Tensor:
        """Return whether the context is written, bool [B, 1]."""
        return column(step >= self.context_sizes, like)

    def ends_next(self, step: int, like: Tensor) -> Tensor:
        """Return where the token after the next may have to end a sentence, bool [B, K]."""
        ends_next = self.room(step, like) <= 1
        if self.sentence_room is not None:
            ends_next = ends_next | (self.sentence_room <= 1)
        return ends_next

    def advance(self, parents: Tensor | None, tokens: Tensor) -> None:
        """Append the chosen tokens [B, K] to beams ``parents`` [B, K]. None: the same beams."""
        if self.sentences_left is None and self.sentence_room is None:
            return
        ends = tokens == self.separator
        if self.sentences_left is not None:
            self.sentences_left = of_parents(self.sentences_left, parents, ends) - ends.long()
        if self.sentence_room is not None:
            room = of_parents(self.sentence_room, parents, ends) - 1
            self.sentence_room = room.masked_fill(ends, self._room_of_new)

    def keep(self, rows: Tensor, mask: np.ndarray) -> None:
        """Keep only the sentences with indices ``rows`` [B'], which ``mask`` [B] marks."""
        self.limits = self.limits[mask]
        self.context_sizes = self.context_sizes[mask]
        for name in ("sentences_left", "sentence_room", "is_single"):
            values = getattr(self, name)
            if values is not None:
                setattr(self, name, values.index_select(0, rows))


class SpecialSymbols(StepRule):
    """Forbids the symbols that no output has, and subtracts the finite penalty of ``<unk>``."""

    is_alike = True

    def __init__(self, symbols: Dictionary, unkpen: float) -> None:
        self._symbols = symbols
        self._unkpen = unkpen if unkpen < torch.inf else 0.0

    def apply(self, log_probs: Tensor, step: int) -> None:
        symbols = self._symbols
        log_probs[:, :, symbols.bos_index : symbols.pad_index + 1] = -torch.inf  # neighbors
        if self._unkpen:
            log_probs[:, :, symbols.unk_index] -= self._unkpen


class SingleSentences(StepRule):
    """Takes the separator out of the distribution for sources without one."""

    def __init__(self, written: Written) -> None:
        self._written = written
        self.is_alike = written.is_single is not None and bool(written.is_single.all())

    def apply(self, log_probs: Tensor, step: int) -> None:
        where = None if self.is_alike else self._written.is_single
        exclude_token(log_probs, self._written.separator, where)


class NoUnknownWords(StepRule):
    """Forbids ``<unk>``, for ``--unkpen inf``."""

    is_alike = True

    def __init__(self, unk_index: int) -> None:
        self._unk_index = unk_index

    def apply(self, log_probs: Tensor, step: int) -> None:
        log_probs[:, :, self._unk_index] = -torch.inf


class NoRepeatedNgrams(StepRule):
    """Forbids n-grams that a hypothesis already has, for one n. Ends of sentences may repeat."""

    def __init__(self, size: int, pad_index: int, written: Written) -> None:
        self._size = size
        self._pad_index = pad_index
        self._written = written
        self._history: Tensor | None = None  # all tokens of each hypothesis, [B, K, t]

    def is_active(self, step: int) -> bool:
        """Return False before the first token is written."""
        return step > 0

    def apply(self, log_probs: Tensor, step: int) -> None:
        assert self._history is not None, "it is active"
        separator = self._written.separator
        of_separator = log_probs[:, :, separator].clone()
        block_repeated_ngrams(log_probs, self._history, self._size, self._pad_index)
        if self._written.sentences_left is not None:
            log_probs[:, :, separator] = of_separator

    def advance(self, parents: Tensor | None, tokens: Tensor) -> None:
        """Append the chosen tokens to the history of the parents, [B, K, t + 1]."""
        newest = tokens[:, :, None]
        history = self._history
        if history is None:
            self._history = newest
            return
        if parents is not None:
            history = history.gather(1, parents[:, :, None].expand_as(history))
        self._history = torch.cat([history, newest], dim=2)

    def keep(self, rows: Tensor, mask: np.ndarray) -> None:
        if self._history is not None:
            self._history = self._history.index_select(0, rows)


class ShortestOutput(StepRule):
    """Forbids the end symbol, and the separator before it, where a hypothesis is too short."""

    def __init__(self, min_len: int, written: Written) -> None:
        self._min_len = min_len
        self._written = written
        self._last = int(written.context_sizes.max(initial=0)) + min_len

    def is_active(self, step: int) -> bool:
        """Return whether an output may still be too short."""
        return step < self._last

    def apply(self, log_probs: Tensor, step: int) -> None:
        # Forbid the end symbol, and the last separator, since it would force the end symbol.
        written = self._written
        shortest = written.context_sizes + self._min_len
        too_short = column(step < shortest, log_probs)
        log_probs[:, :, written.eos_index].masked_fill_(too_short, -torch.inf)
        if written.sentences_left is not None:
            too_short = column(step + 1 < shortest, log_probs) & (written.sentences_left == 1)
            log_probs[:, :, written.separator].masked_fill_(too_short, -torch.inf)


class Prefixes(StepRule):
    """Forces the first tokens, int64 [B, P]. A context and ``num_free`` tokens cost nothing."""

    def __init__(self, prefixes: Tensor, pad_index: int, num_free: int, written: Written) -> None:
        self._prefixes = prefixes
        self._pad_index = pad_index
        self._written = written
        self._num_free = num_free
        self._saved = prefixes, torch.empty(0)  # rows [R], and their new scores [R, K, V]

    def is_active(self, step: int) -> bool:
        """Return False after the longest prefix."""
        return step < self._prefixes.size(1)

    def save(self, log_probs: Tensor, step: int) -> None:
        """Keep the scores of the forced tokens."""
        tokens = self._prefixes[:, step]
        rows = (tokens != self._pad_index).nonzero()[:, 0]
        values = torch.full_like(log_probs[rows], -torch.inf)
        index = tokens[rows, None, None].expand(-1, log_probs.size(1), 1)
        is_free = column(step < np.maximum(self._written.context_sizes, self._num_free), log_probs)
        scores = log_probs[rows].gather(2, index).masked_fill(is_free[rows, :, None], 0.0)
        self._saved = rows, values.scatter_(2, index, scores)

    def apply(self, log_probs: Tensor, step: int) -> None:
        rows, values = self._saved
        log_probs[rows] = values

    def keep(self, rows: Tensor, mask: np.ndarray) -> None:
        self._prefixes = self._prefixes.index_select(0, rows)


class SentenceCount(StepRule):
    """Forces the end after the last sentence, and separators where nothing else fits."""

    def __init__(self, written: Written) -> None:
        assert written.sentences_left is not None, "sentences are counted"
        self._written = written
        number = written.sentences_left[:, 0].cpu().numpy()
        self._first_end = int(number.min())
        self._first_limit = int((written.limits - number).min())

    def apply(self, log_probs: Tensor, step: int) -> None:
        written = self._written
        left = written.sentences_left
        assert left is not None, "sentences are counted"
        log_probs[:, :, written.eos_index].masked_fill_(left > 0, -torch.inf)
        if step >= self._first_end:
            ended = left == 0
            if written.is_single is not None:
                ended = ended & ~written.is_single
            written.allow_only(written.eos_index, log_probs, ended)
        if step >= self._first_limit:
            is_full = (written.room(step, log_probs) <= 0) & (left > 0)
            where = is_full & written.is_begun(step, log_probs)
            written.allow_only(written.separator, log_probs, where)


class SentenceLength(StepRule):
    """Forces the separator where a sentence has as many tokens as the models can write."""

    def __init__(self, written: Written) -> None:
        self._written = written

    def apply(self, log_probs: Tensor, step: int) -> None:
        written = self._written
        assert written.sentence_room is not None, "sentences are limited"
        is_full = written.sentence_room <= 0
        if written.sentences_left is not None:
            is_full = is_full & (written.sentences_left > 0)
        where = is_full & written.is_begun(step, log_probs)
        written.allow_only(written.separator, log_probs, where)


class LongestOutput(StepRule):
    """Forces the end symbol at the longest output."""

    def __init__(self, written: Written) -> None:
        self._written = written
        self._first = int(written.limits.min())

    def is_active(self, step: int) -> bool:
        """Return whether an output may have its longest length."""
        return step >= self._first

    def apply(self, log_probs: Tensor, step: int) -> None:
        at_limit = column(step >= self._written.limits, log_probs)
        self._written.allow_only(self._written.eos_index, log_probs, at_limit)


def of_parents(values: Tensor, parents: Tensor | None, like: Tensor) -> Tensor:
    """Return for each beam the value of its parent, [B, K], from values [B, K] or [B, 1]."""
    values = values.expand(like.shape)
    return values if parents is None else values.gather(1, parents)


def states_of_parents(
    states: Sequence[Sequence[State]], parents: Tensor | None, tokens: Tensor
) -> list[list[State]]:
    """Return the state of the parent of each beam, [B][K]. A sentence may have no states."""
    if parents is None:
        parents = torch.arange(tokens.size(1)).expand(tokens.shape)
    rows = []
    for states_of_row, beams in zip(states, parents.tolist(), strict=True):
        row = []
        if states_of_row:
            row = [states_of_row[min(beam, len(states_of_row) - 1)] for beam in beams]
        rows.append(row)
    return rows


def column(values: np.ndarray, like: Tensor) -> Tensor:
    """Return values of each sentence [B] as [B, 1] on the device of ``like``."""
    return torch.from_numpy(values).to(like.device)[:, None]


def forbid(log_probs: Tensor, hypotheses: Sequence[tuple[int, int]], symbols: Tensor) -> None:
    """Forbid symbols [n] in log_probs [B, K, V], in place, for pairs of sentence and beam."""
    if len(symbols):
        indices = torch.tensor(hypotheses, device=log_probs.device)  # [N, 2]
        rows, beams = indices.t()[:, :, None]  # [N, 1] each
        log_probs[rows, beams, symbols.to(log_probs.device)] = -torch.inf


def block_repeated_ngrams(log_probs: Tensor, history: Tensor, size: int, spare_index: int) -> None:
    """Forbid, in place, every token that would repeat an n-gram of its hypothesis.

    log_probs are [B, K, V], the history the tokens of each hypothesis so far, [B, K, t]. The size
    is n, 1 or more, and ``spare_index`` a symbol that is always forbidden.

    Example:
        >>> log_probs = torch.zeros(1, 1, 8)
        >>> block_repeated_ngrams(log_probs, torch.tensor([[[5, 6, 7, 5]]]), 2, 0)
        >>> log_probs.isinf().nonzero()[:, 2].tolist()
        [0, 6]
    """
    length = history.size(2)
    if length < size:
        return
    # The n-grams so far are a context of n - 1 tokens and the token that followed it. A token is
    # forbidden if the context is also the end of the hypothesis.
    followers = history[:, :, size - 1 :]  # [B, K, t - n + 1]
    if size > 1:
        contexts = history[:, :, :-1].unfold(2, size - 1, 1)  # [B, K, t - n + 1, n - 1]
        ending = history[:, :, None, length - size + 1 :]  # [B, K, 1, n - 1]
        followers = torch.where((contexts == ending).all(-1), followers, spare_index)
    log_probs.scatter_(2, followers, -torch.inf)


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
