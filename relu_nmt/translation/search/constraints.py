"""Tokens that may come next, by lengths, sentences, prefixes, repetitions and terms."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.forced_terms import Term, TermTracker
from relu_nmt.translation.search.output_limits import SentenceLengths, SentencesLeft


class TokenConstraints:
    """Forbidden and forced tokens at each step, for the live sentences of one batch.

    Args:
        symbols: the target dictionary.
        limits: largest number of tokens before the end symbol, int64 [B]; enough for all
            ``sentences`` and ``terms``.
        context_sizes: forced tokens that are context, int64 [B]. They cost nothing, and
            ``min_len`` counts the tokens after them.
        prefixes: forced first tokens [B, P] int64, padded on the right; None for none.
        sentences: sentences still to be written; None for any number.
        lengths: lengths of the sentences being written; None for any length.
        banned: token ids of the terms that each sentence may not have, except in a forced prefix
            or term, [B]; empty for none.
        terms: terms that hypotheses must have; None for none.
    """

    def __init__(
        self,
        config: GenerationConfig,
        symbols: Dictionary,
        limits: np.ndarray,
        context_sizes: np.ndarray,
        prefixes: Tensor | None = None,
        sentences: SentencesLeft | None = None,
        lengths: SentenceLengths | None = None,
        banned: Sequence[Sequence[Term]] = (),
        terms: TermTracker | None = None,
    ) -> None:
        # Banned terms of several tokens and n-grams need the tokens written so far.
        self._banned = [tuple(own) for own in banned]
        self._terms = terms
        self._keeps_history = bool(config.no_repeat_ngram_size) or any(
            len(term) > 1 for own in set(self._banned) for term in own
        )
        self._config = config
        self._symbols = symbols
        self.limits = limits
        self.context_sizes = context_sizes
        self._prefixes = prefixes
        self._sentences = sentences
        self._lengths = lengths
        self._history: Tensor | None = None  # [B, K, t], kept only if needed
        # Sentences are too short only before, and end or are full only from, these steps.
        self._last_too_short = int(context_sizes.max(initial=0)) + config.min_len
        self._first_limit = int(limits.min())
        if sentences is not None:
            number = sentences.number[:, 0].cpu().numpy()
            self._first_end = int(number.min())
            self._first_limit = int((limits - number).min())
            if prefixes is not None:  # the number of sentences decides where the end is
                ends = prefixes == symbols.eos_index
                self._prefixes = prefixes.masked_fill(ends, symbols.pad_index)

    @property
    def idle_token(self) -> int | None:
        """The token for beams without a hypothesis, so that their sentences never get too long."""
        return None if self._lengths is None else self._lengths.separator

    def are_alike(self, step: int) -> bool:
        """Return True if the same tokens are forbidden for all hypotheses at a step."""
        special = (self._prefixes, self._sentences, self._lengths, self._terms, self._history)
        is_plain = all(each is None for each in special) and not any(self._banned)
        return is_plain and self._last_too_short <= step < self._first_limit

    def apply(self, log_probs: Tensor, step: int) -> None:
        """Change log_probs [B, K, V] of the token after ``step`` others, in place.

        Forbidden tokens become -inf. The longest length and the number of sentences have the
        highest priority, then forced prefixes, then forced terms.

        Args:
            log_probs: if :meth:`are_alike`, of any hypotheses, in any shape [..., ..., V].
            step: number of tokens before.
        """
        config, symbols = self._config, self._symbols
        sentences, lengths = self._sentences, self._lengths
        log_probs[:, :, symbols.bos_index : symbols.pad_index + 1] = -torch.inf  # neighbours
        if config.unkpen and config.unkpen < math.inf:
            log_probs[:, :, symbols.unk_index] -= config.unkpen
        # Save the columns that later steps may allow again; none at most steps.
        special = set() if self.are_alike(step) else {symbols.eos_index}
        special.update(each.separator for each in (sentences, lengths) if each is not None)
        before = {token: log_probs[:, :, token].clone() for token in special}
        forced = self._forced_by_prefix(log_probs, step)
        given = None if self._terms is None else log_probs.clone()
        # Forbid: banned terms, repeated n-grams, an early end.
        self._ban(log_probs)
        if self._history is not None and config.no_repeat_ngram_size:
            size = config.no_repeat_ngram_size
            block_repeated_ngrams(log_probs, self._history, size, symbols.pad_index)
            if sentences is not None:  # ends of sentences are no repetition
                log_probs[:, :, sentences.separator] = before[sentences.separator]
        if step < self._last_too_short:
            self._forbid_the_end(log_probs, step)
        # Force: terms, prefixes, the number and length of sentences, the end at the limit.
        if self._terms is not None and given is not None:
            self._require(self._terms, log_probs, given, step)
        if forced is not None:
            rows, values = forced
            log_probs[rows] = values
        if sentences is not None:
            self._count(sentences, log_probs, step, before)
        # Force the separator where a sentence is full, after the context.
        if lengths is not None:
            full = lengths.full & _column(step >= self.context_sizes, log_probs)
            if sentences is not None:
                full = full & (sentences.number > 0)
            _allow_only(lengths.separator, before, log_probs, full)
        # End hypotheses at the limit, which has the highest priority.
        if step >= self._first_limit:
            _allow_only(
                symbols.eos_index, before, log_probs, _column(step >= self.limits, log_probs)
            )

    def _ban(self, log_probs: Tensor) -> None:
        """Forbid the banned terms of each sentence, and <unk> if its penalty is infinite."""
        if self._config.unkpen == math.inf:
            log_probs[:, :, self._symbols.unk_index] = -torch.inf
        # Sentences of one text share a list; forbid its terms for all of them at once.
        rows: dict[int, list[int]] = {}
        for row, terms in enumerate(self._banned):
            if terms:
                rows.setdefault(id(terms), []).append(row)
        for own in rows.values():
            terms = self._banned[own[0]]
            if len(own) == len(log_probs):
                block_terms(log_probs, self._history, terms)
                continue
            # Write a changed copy back, since a list of rows makes no view.
            part = log_probs[own]
            block_terms(part, None if self._history is None else self._history[own], terms)
            log_probs[own] = part

    def _forbid_the_end(self, log_probs: Tensor, step: int) -> None:
        """Forbid the end symbol, and the separator before it, where a hypothesis is too short."""
        shortest = self.context_sizes + self._config.min_len
        # The end symbol now, or the last separator, after which it would be forced.
        too_short = _column(step < shortest, log_probs)
        log_probs[:, :, self._symbols.eos_index].masked_fill_(too_short, -torch.inf)
        if self._sentences is not None:
            too_short = _column(step + 1 < shortest, log_probs) & (self._sentences.number == 1)
            log_probs[:, :, self._sentences.separator].masked_fill_(too_short, -torch.inf)

    def _require(self, terms: TermTracker, log_probs: Tensor, given: Tensor, step: int) -> None:
        """Allow only tokens that leave room for the terms; ``given``: log_probs from the models."""
        room = _column(self.limits - step, log_probs)
        unfinished = terms.unfinished(log_probs)
        log_probs[:, :, self._symbols.eos_index].masked_fill_(unfinished, -torch.inf)
        if self._sentences is not None:
            room = room - self._sentences.number
            within = terms.within_sentence(self._sentences.number.expand(unfinished.shape))
            log_probs[:, :, self._sentences.separator].masked_fill_(within, -torch.inf)
        terms.require(log_probs, given, room)

    def _count(
        self, sentences: SentencesLeft, log_probs: Tensor, step: int, before: dict[int, Tensor]
    ) -> None:
        """Force the end symbol after the last sentence and forbid it before.

        Separators are forced where the limit leaves room for nothing else.
        """
        # End after the last sentence, not before; force separators where nothing else fits.
        number, eos = sentences.number, self._symbols.eos_index
        log_probs[:, :, eos].masked_fill_(number > 0, -torch.inf)
        if step >= self._first_end:
            _allow_only(eos, before, log_probs, number == 0)
        if step >= self._first_limit:
            room = _column(self.limits - step, log_probs)
            begun = _column(step >= self.context_sizes, log_probs)
            full = (room <= number) & (number > 0) & begun
            _allow_only(sentences.separator, before, log_probs, full)

    def _forced_by_prefix(self, log_probs: Tensor, step: int) -> tuple[Tensor, Tensor] | None:
        """Return the rows [R] with a forced token and their new log_probs [R, K, V]."""
        if self._prefixes is None or step >= self._prefixes.size(1):
            return None
        tokens = self._prefixes[:, step]
        rows = (tokens != self._symbols.pad_index).nonzero()[:, 0]
        # Forbid all tokens of these rows except the forced one.
        values = torch.full_like(log_probs[rows], -torch.inf)
        index = tokens[rows, None, None].expand(-1, log_probs.size(1), 1)
        # A forced token of the context costs nothing.
        in_context = _column(step < self.context_sizes, log_probs)[rows, :, None]
        own = log_probs[rows].gather(2, index).masked_fill(in_context, 0.0)
        values.scatter_(2, index, own)
        return rows, values

    def advance(self, parents: Tensor | None, tokens: Tensor) -> None:
        """Append the chosen tokens [B, K] to beams ``parents`` [B, K]; None: the same beams."""
        if self._sentences is not None:
            self._sentences.advance(parents, tokens)
        if self._lengths is not None:
            self._lengths.advance(parents, tokens)
        if self._terms is not None:
            self._terms.advance(parents, tokens)
        # Append the tokens to the history, [B, K, t + 1].
        if not self._keeps_history:
            return
        newest = tokens[:, :, None]
        if self._history is None:
            self._history = newest
            return
        history = self._history
        # Gather the histories of the parents, [B, K, t].
        if parents is not None:
            history = history.gather(1, parents[:, :, None].expand_as(history))
        self._history = torch.cat([history, newest], dim=2)

    def keep(self, rows: Tensor, mask: np.ndarray) -> None:
        """Keep only these rows [B'], the sentences of the mask [B]."""
        # Select limits and terms by the mask, and tensors by their rows.
        self.limits = self.limits[mask]
        self.context_sizes = self.context_sizes[mask]
        self._banned = list(itertools.compress(self._banned, mask))
        if self._prefixes is not None:
            self._prefixes = self._prefixes.index_select(0, rows)
        if self._history is not None:
            self._history = self._history.index_select(0, rows)
        if self._sentences is not None:
            self._sentences.number = self._sentences.number.index_select(0, rows)
        if self._lengths is not None:
            self._lengths.length = self._lengths.length.index_select(0, rows)
        if self._terms is not None:
            self._terms.keep(mask)


def _column(values: np.ndarray, like: Tensor) -> Tensor:
    """Return values of each sentence [B] as [B, 1] on the device of ``like``."""
    return torch.from_numpy(values).to(like.device)[:, None]


def _allow_only(token: int, before: dict[int, Tensor], log_probs: Tensor, where: Tensor) -> None:
    """Forbid all tokens except one, in place, for the beams ``where``, bool [B, K] or [B, 1].

    ``before`` has the token's log-probabilities [B, K] from the model, by token id.
    """
    sentence, beam = where.expand(before[token].shape).nonzero(as_tuple=True)
    if len(sentence):
        log_probs[sentence, beam] = -torch.inf
        log_probs[sentence, beam, token] = before[token][sentence, beam]


def block_repeated_ngrams(log_probs: Tensor, history: Tensor, size: int, spare_index: int) -> None:
    """Forbid, in place, every token that would repeat an n-gram of its hypothesis.

    Args:
        log_probs: [B, K, V]; forbidden tokens become -inf.
        history: tokens of each hypothesis so far, [B, K, t] int64, without a start symbol.
        size: n, 1 or more.
        spare_index: a symbol that is always forbidden.

    Example:
        >>> log_probs = torch.zeros(1, 1, 8)
        >>> block_repeated_ngrams(log_probs, torch.tensor([[[5, 6, 7, 5]]]), 2, 0)
        >>> log_probs.isinf().nonzero()[:, 2].tolist()
        [0, 6]
    """
    length = history.size(2)
    if length < size:
        return
    # The n-grams so far are a context of n - 1 tokens and the token that followed it; a token is
    # forbidden if the context is also the end of the hypothesis.
    followers = history[:, :, size - 1 :]  # [B, K, t - n + 1]
    if size > 1:
        contexts = history[:, :, :-1].unfold(2, size - 1, 1)  # [B, K, t - n + 1, n - 1]
        ending = history[:, :, None, length - size + 1 :]  # [B, K, 1, n - 1]
        followers = torch.where((contexts == ending).all(-1), followers, spare_index)
    log_probs.scatter_(2, followers, -torch.inf)


def block_terms(log_probs: Tensor, history: Tensor | None, terms: Sequence[Sequence[int]]) -> None:
    """Forbid, in place, every token that would complete one of the terms.

    Args:
        log_probs: [B, K, V]; forbidden tokens become -inf.
        history: tokens of each hypothesis so far, [B, K, t] int64; None before the first token,
            or if each term is one token.
        terms: token ids of each.

    Example:
        >>> log_probs = torch.zeros(1, 1, 8)
        >>> block_terms(log_probs, torch.tensor([[[5, 6]]]), [[7], [6, 4], [5, 4], [6, 5, 3]])
        >>> log_probs.isinf().nonzero()[:, 2].tolist()
        [4, 7]
    """
    for *before, last in terms:
        # Forbid a term of one token everywhere, a longer one after its beginning.
        if not before:
            log_probs[:, :, last] = -torch.inf
        elif history is not None and history.size(2) >= len(before):
            ending = history[:, :, -len(before) :]
            completes = (ending == torch.tensor(before, device=ending.device)).all(2)  # [B, K]
            log_probs[:, :, last].masked_fill_(completes, -torch.inf)
