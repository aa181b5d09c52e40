"""Tokens that may come next, by lengths, sentences, prefixes, repetitions and terms."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.documents import Separators
from relu_nmt.errors import ConfigError
from relu_nmt.translation.search.banned_terms import TermBans
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.forced_terms import TermTracker
from relu_nmt.translation.search.selection import (
    block_repeated_ngrams,
    exclude_token,
)
from relu_nmt.translation.search.translations import SourceSentence


class TokenConstraints:
    """Forbidden and forced tokens at each step, for the live sentences of one batch.

    A translation may have to have as many sentences as its source. The end symbol then follows the
    last separator directly and is forbidden elsewhere. A sentence may be empty, since a translation
    may join two sentences. Allowed tokens keep their log-probabilities, so the score of a
    hypothesis stays the model's own. A context costs nothing, nor do the first ``num_free`` tokens,
    and ``min_len`` counts the tokens after a context. Prefixes, [B, P] int64 with their context,
    are padded on the right. Without separators sentences are neither counted nor measured. At
    ``most_of_a_sentence`` tokens, as the models can write, the separator is forced. It is taken out
    of the distribution for a source without separator, if the model reads single sentences so.
    The limits leave room for all sentences, and for their prefixes and terms.

    Attributes:
        limits: most tokens before the end symbol, int64 [B].
        context_sizes: forced tokens of a known context, int64 [B].
        terms: progress with forced terms; None for none.
        idle_token: token for beams without a hypothesis, so that no sentence of theirs gets long.
    """

    def __init__(
        self,
        config: GenerationConfig,
        symbols: Dictionary,
        sources: Sequence[SourceSentence],
        src_tokens: Tensor,
        prefixes: Tensor | None = None,
        separators: Separators | None = None,
        most_tokens: int | None = None,
        most_of_a_sentence: int | None = None,
        num_free: int = 0,
    ) -> None:
        self._config, self._symbols = config, symbols
        self._prefixes, self._num_free = prefixes, num_free
        lengths = np.array([len(source.ids) for source in sources], dtype=np.int64)
        self.limits = config.length_limits(lengths, most_tokens)
        self.context_sizes = np.array([len(source.context) for source in sources], dtype=np.int64)
        # Sentences to write, and tokens of the current one, [B, K]; [B, 1] before the first token.
        self._separator = -1 if separators is None else separators[1]
        self._left: Tensor | None = None
        self._single: Tensor | None = None  # sources without separator, bool [B, 1], if any
        self._is_mixed = False
        if separators is not None:
            count = (src_tokens == separators.source).sum(1, keepdim=True)
            if not separators.alone and bool((count == 0).any()):
                self._single = count == 0
                self._is_mixed = bool(count.any())
            if not config.free_sentence_count and bool(count.any() or separators.alone):
                self._left = count.clamp_min(int(separators.alone))
        self._most_of_a_sentence = most_of_a_sentence
        self._length = None if most_of_a_sentence is None else torch.zeros_like(src_tokens[:, :1])
        self.idle_token = None if self._length is None else self._separator
        # N-grams need the tokens written so far, [B, K, t].
        self._history: Tensor | None = None
        # Follow forced terms, if any sentence has some.
        forced = [source.forced for source in sources]
        self.terms: TermTracker | None = None
        if any(own.num_tokens for own in forced):
            config.check_terms()
            separator = -1 if self._left is None else self._separator
            self.terms = TermTracker(forced, self.context_sizes, separator)
        banned, self._bans = [source.banned for source in sources], None
        if any(banned):
            self._bans = TermBans(banned, prefixes, symbols.pad_index, self.terms)
        # The longest output needs room for sentences, prefixes and terms.
        self.limits = np.maximum(self.limits, self._room(sources))
        # A single sentence without separator ends where the models can write no longer one.
        if self._single is not None and most_of_a_sentence is not None:
            shorter = self._single[:, 0].cpu().numpy() & (self.limits >= most_of_a_sentence)
            self.limits = np.where(shorter, most_of_a_sentence - 1, self.limits)
        longest = int(self.limits.max(initial=0))
        if most_tokens is not None and longest >= most_tokens:
            raise ConfigError(
                f"{longest} tokens are needed for the sentences to translate at once, or for "
                f"prefixes and forced terms, but the model can write {most_tokens - 1}; give a "
                "smaller --max-doc-tokens, shorter prefixes or fewer terms"
            )
        # Outputs are too short only before the first of these steps, and end from the others on.
        self._last_too_short = int(self.context_sizes.max(initial=0)) + config.min_len
        self._first_limit = int(self.limits.min())
        if self._left is not None:
            number = self._left[:, 0].cpu().numpy()
            self._first_end = int(number.min())
            self._first_limit = int((self.limits - number).min())
            if prefixes is not None:  # the number of sentences decides where the end is
                ends = prefixes == symbols.eos_index
                self._prefixes = prefixes.masked_fill(ends, symbols.pad_index)

    def _room(self, sources: Sequence[SourceSentence]) -> np.ndarray:
        """Return the fewest tokens before the end symbol, int64 [B]."""
        number, room = np.zeros_like(self.limits), np.zeros_like(self.limits)
        prefixes = None if self._prefixes is None else self._prefixes.cpu().numpy()
        if self._left is not None:
            # All separators, and the tokens of the context that are none.
            number = self._left[:, 0].cpu().numpy()
            room = number + self.context_sizes
            if prefixes is not None:
                in_context = np.arange(prefixes.shape[1]) < self.context_sizes[:, None]
                room -= ((prefixes == self._separator) & in_context).sum(1)
        # All forced tokens of sentences with prefixes or terms, and all separators.
        num_forced = np.array([own.forced.num_tokens for own in sources], dtype=np.int64)
        is_forced = num_forced + [len(own.prefix) for own in sources] > 0
        needed = num_forced + number
        if prefixes is not None:
            needed = needed + (prefixes != self._symbols.pad_index).sum(1)
        return np.maximum(room, needed * is_forced)

    def are_alike(self, step: int) -> bool:
        """Return True if the same tokens are forbidden for all hypotheses at a step."""
        if self._bans is not None or self._is_mixed or self.terms is not None:
            return False
        special = (self._prefixes, self._left, self._length, self._history)
        if any(each is not None for each in special):
            return False
        return self._last_too_short <= step < self._first_limit

    def apply(self, log_probs: Tensor, step: int) -> None:
        """Change log_probs [B, K, V] of the token after ``step`` others, in place.

        Forbidden tokens become -inf. If :meth:`are_alike`, log_probs may be those of any
        hypotheses, in any shape [..., ..., V]. The longest length and the number of sentences have
        the highest priority, then forced prefixes, then forced terms.
        """
        config, symbols, separator = self._config, self._symbols, self._separator
        # Forbid the symbols that no output has, and subtract the finite penalty of <unk>.
        log_probs[:, :, symbols.bos_index : symbols.pad_index + 1] = -torch.inf  # neighbours
        if config.unkpen and config.unkpen < math.inf:
            log_probs[:, :, symbols.unk_index] -= config.unkpen
        if self._single is not None:
            single = self._single if self._is_mixed else None
            exclude_token(log_probs, separator, single)
        forbids_unk = config.unkpen == math.inf
        if self.are_alike(step):
            if forbids_unk:
                log_probs[:, :, symbols.unk_index] = -torch.inf
            return
        # Save the columns that later steps may allow again.
        counts = self._left is not None or self._length is not None
        special = (symbols.eos_index, separator) if counts else (symbols.eos_index,)
        before = {token: log_probs[:, :, token].clone() for token in special}
        forced = self._forced_by_prefix(log_probs, step)
        given = None if self.terms is None else log_probs.clone()
        # Forbid: unknown words, banned terms, repeated n-grams, an early end.
        if forbids_unk:
            log_probs[:, :, symbols.unk_index] = -torch.inf
        if self._bans is not None:
            self._bans.apply(log_probs, given, self._is_last(step, log_probs))
        if self._history is not None:
            of_separator = log_probs[:, :, separator].clone()
            size = config.no_repeat_ngram_size
            block_repeated_ngrams(log_probs, self._history, size, symbols.pad_index)
            if self._left is not None:  # ends of sentences are no repetition
                log_probs[:, :, separator] = of_separator
        if step < self._last_too_short:
            self._forbid_the_end(log_probs, step)
        # Force: terms, prefixes, the number and length of sentences, the end at the limit.
        if self.terms is not None and given is not None:
            room = column(self.limits - step, log_probs)
            room = room if self._left is None else room - self._left
            self.terms.require(log_probs, given, room, self._left, symbols.eos_index)
        if forced is not None:
            rows, values = forced
            log_probs[rows] = values
        if self._left is not None:
            self._count(self._left, log_probs, step, before)
        # Force the separator where a sentence is full, after the context.
        if self._most_of_a_sentence is not None and self._length is not None:
            full = self._length >= self._most_of_a_sentence - 1
            full = full & column(step >= self.context_sizes, log_probs)
            if self._left is not None:
                full = full & (self._left > 0)
            allow_only(separator, before, log_probs, full)
        if (at_limit := step >= self.limits).any():
            allow_only(symbols.eos_index, before, log_probs, column(at_limit, log_probs))

    def _is_last(self, step: int, log_probs: Tensor) -> Tensor:
        """Return the beams, bool [B, K] or [B, 1], whose token after the next may be forced."""
        room = column(self.limits - step, log_probs)
        if self._left is not None:
            room = room - self._left
        last = room <= 1
        if self._most_of_a_sentence is not None and self._length is not None:
            last = last | (self._length >= self._most_of_a_sentence - 2)
        if self.terms is not None:
            last = last.expand(log_probs.shape[:2]).clone()
            rooms = room.expand(log_probs.shape[:2]).tolist()
            for row, beam, progress in self.terms:
                last[row, beam] |= progress.missing > max(0, rooms[row][beam] - 3)
        return last

    def _forbid_the_end(self, log_probs: Tensor, step: int) -> None:
        """Forbid the end symbol, and the separator before it, where a hypothesis is too short."""
        # The end symbol now, or the last separator, after which it would be forced.
        least = self.context_sizes + self._config.min_len
        too_short = column(step < least, log_probs)
        log_probs[:, :, self._symbols.eos_index].masked_fill_(too_short, -torch.inf)
        if self._left is not None:
            too_short = column(step + 1 < least, log_probs) & (self._left == 1)
            log_probs[:, :, self._separator].masked_fill_(too_short, -torch.inf)

    def _count(self, left: Tensor, log_probs: Tensor, step: int, before: dict[int, Tensor]) -> None:
        """End after the last sentence, not before; force separators where nothing else fits."""
        eos = self._symbols.eos_index
        log_probs[:, :, eos].masked_fill_(left > 0, -torch.inf)
        if step >= self._first_end:
            ended = left == 0 if self._single is None else (left == 0) & ~self._single
            allow_only(eos, before, log_probs, ended)
        if step >= self._first_limit:
            room = column(self.limits - step, log_probs)
            begun = column(step >= self.context_sizes, log_probs)
            allow_only(self._separator, before, log_probs, (room <= left) & (left > 0) & begun)

    def _forced_by_prefix(self, log_probs: Tensor, step: int) -> tuple[Tensor, Tensor] | None:
        """Return the rows [R] with a forced token and their new log_probs [R, K, V]."""
        if self._prefixes is None or step >= self._prefixes.size(1):
            self._prefixes = None  # all are written
            return None
        tokens = self._prefixes[:, step]
        rows = (tokens != self._symbols.pad_index).nonzero()[:, 0]
        # Forbid all tokens of these rows except the forced one; in the context it costs nothing.
        values = torch.full_like(log_probs[rows], -torch.inf)
        index = tokens[rows, None, None].expand(-1, log_probs.size(1), 1)
        is_free = column(step < np.maximum(self.context_sizes, self._num_free), log_probs)
        own = log_probs[rows].gather(2, index).masked_fill(is_free[rows, :, None], 0.0)
        values.scatter_(2, index, own)
        return rows, values

    def advance(self, parents: Tensor | None, tokens: Tensor) -> None:
        """Append the chosen tokens [B, K] to beams ``parents`` [B, K]; None: the same beams."""
        ends = tokens == self._separator
        if self._left is not None:
            self._left = of_parents(self._left, parents, ends) - ends.long()
        if self._length is not None:
            self._length = (of_parents(self._length, parents, ends) + 1).masked_fill(ends, 0)
        if self._bans is not None:
            self._bans.advance(parents, tokens)
        if self.terms is not None:
            self.terms.advance(parents, tokens)
        # Append the tokens to the history of the parents, [B, K, t + 1].
        if not self._config.no_repeat_ngram_size:
            return
        newest = tokens[:, :, None]
        history = newest[:, :, :0] if self._history is None else self._history
        if parents is not None:
            history = history.gather(1, parents[:, :, None].expand_as(history))
        self._history = torch.cat([history, newest], dim=2)

    def keep(self, rows: Tensor, mask: np.ndarray) -> None:
        """Keep only these rows [B'], the sentences of the mask [B]."""
        self.limits, self.context_sizes = self.limits[mask], self.context_sizes[mask]
        if self._bans is not None:
            self._bans.keep(mask)
        if self.terms is not None:
            self.terms.keep(mask)
        for name in ("_prefixes", "_history", "_left", "_length", "_single"):
            if (values := getattr(self, name)) is not None:
                setattr(self, name, values.index_select(0, rows))


def of_parents(values: Tensor, parents: Tensor | None, like: Tensor) -> Tensor:
    """Return the values [B, K] or [B, 1] of each beam's parent, [B, K] as ``like``."""
    values = values.expand(like.shape)
    return values if parents is None else values.gather(1, parents)


def column(values: np.ndarray, like: Tensor) -> Tensor:
    """Return values of each sentence [B] as [B, 1] on the device of ``like``."""
    return torch.from_numpy(values).to(like.device)[:, None]


def allow_only(token: int, before: dict[int, Tensor], log_probs: Tensor, where: Tensor) -> None:
    """Forbid all tokens except one, in place, for the beams ``where``, bool [B, K] or [B, 1].

    ``before`` has the token's log-probabilities [B, K] from the model, by token id.
    """
    sentence, beam = where.expand(before[token].shape).nonzero(as_tuple=True)
    if len(sentence):
        log_probs[sentence, beam] = -torch.inf
        log_probs[sentence, beam, token] = before[token][sentence, beam]
