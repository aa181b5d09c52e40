"""Terms that a translation must or must not have, and the progress of each hypothesis.

Reference: Post and Vilar 2018, "Fast lexically constrained decoding with dynamic beam allocation
for neural machine translation", section 3, in the form of Hu et al. 2019, "Improved lexically
constrained decoding for translation and monolingual rewriting", as in fairseq's ``--constraints``:
the beam is divided among hypotheses with equally many tokens of the terms
(:func:`~relu_nmt.translation.search.selection.share_among_terms`). Two things differ. Where terms
overlap, all ways of reading a hypothesis are followed. And no term goes missing, as the longest
output leaves room for all. If several sentences are translated at once, each has its own terms.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

Term = tuple[int, ...]
Way = tuple[tuple[Term, ...], Term]
"""Terms that are not begun, and the rest of the term that is being written; () for none."""
MOST_WAYS = 32
"""Follow this many ways of reading one hypothesis; only terms that overlap much have more."""


@dataclass(frozen=True)
class ForcedTerms:
    """Terms that a translation must have, at positions that do not overlap, and its progress.

    It is a state of an automaton that is built on demand.

    Args:
        terms: token ids of each term; a term that is given twice must occur twice.
        ordered: the terms come in this order.
        prefix: token ids with which the translation begins; they may contain terms. In the middle
            of it, its rest.
        later: the terms of each sentence after the first; ``terms`` are then those of the first.
            Empty: one sentence, or terms anywhere in several.
        ways: all ways of reading the sentence so far; at least one is in the middle of no term.
            By default nothing is written.

    Example:
        >>> terms = ForcedTerms(((5, 6), (5,)), ordered=False)
        >>> [terms.missing, terms.advance(5).missing, terms.advance(5).advance(6).missing]
        [3, 2, 1]
        >>> terms.advance(5).advance(4).advance(5).advance(6).missing
        0
    """

    terms: tuple[Term, ...] = ()
    ordered: bool = True
    prefix: Term = ()
    later: tuple["ForcedTerms", ...] = ()
    ways: tuple[Way, ...] = ()

    def __post_init__(self) -> None:
        if not self.ways:
            object.__setattr__(self, "ways", ((self.terms, ()),))

    @cached_property
    def num_tokens(self) -> int:
        """All tokens of terms and prefixes; 0: nothing is forced."""
        own = sum(map(len, self.terms)) + len(self.prefix)
        return own + sum(each.num_tokens for each in self.later)

    @cached_property
    def missing(self) -> int:
        """The fewest tokens that complete the terms."""
        return self.missing_here + sum(sentence.missing for sentence in self.later)

    @cached_property
    def missing_here(self) -> int:
        """The fewest tokens that complete the terms of the current sentence."""
        # Terms in the prefix count as written.
        read = replace(self, prefix=())
        for token in self.prefix:
            read = read.advance(token)
        return len(self.prefix) + min(map(_missing, read.ways))

    @cached_property
    def otherwise(self) -> "ForcedTerms":
        """The progress after a token that no term needs next; invalid while a prefix is written."""
        ways = tuple(way for way in self.ways if not way[1])
        return self if ways == self.ways else replace(self, ways=ways)

    @cached_property
    def after(self) -> dict[int, "ForcedTerms"]:
        """The progress after each token that the prefix or a term needs next."""
        # A prefix leaves one choice.
        if self.prefix:
            first = self.prefix[0]
            read = replace(self, prefix=()).advance(first)
            return {first: replace(read, prefix=self.prefix[1:])}
        # Each way goes on with its term; a way between terms begins one.
        ways: dict[int, list[Way]] = defaultdict(list)
        for left, rest in self.ways:
            if rest:
                ways[rest[0]].append((left, rest[1:]))
                continue
            for i in range(min(1, len(left)) if self.ordered else len(left)):
                ways[left[i][0]].append((left[:i] + left[i + 1 :], left[i][1:]))
        free = self.otherwise.ways
        return {token: replace(self, ways=_best([*free, *own])) for token, own in ways.items()}

    def advance(self, token: int) -> "ForcedTerms":
        """Return the progress with one more token."""
        return self.after.get(token, self.otherwise)

    def next_sentence(self) -> "ForcedTerms":
        """Return the progress at the beginning of the next sentence."""
        if not self.later:
            return self.otherwise
        return replace(self.later[0], later=self.later[1:])


NO_TERMS = ForcedTerms()
"""Shared by all sentences without terms."""


def _missing(way: Way) -> int:
    left, rest = way
    return sum(map(len, left)) + len(rest)


def _best(ways: Sequence[Way]) -> tuple[Way, ...]:
    """Return the ways, the best first, without ways that another beats in every term."""
    # Compare each way with the free ways: those in the middle of no term.
    unique = sorted(dict.fromkeys(ways), key=lambda way: (_missing(way), way))
    needs = [Counter(left) for left, _ in unique]
    free = [i for i, (_, rest) in enumerate(unique) if not rest]
    kept = []
    for i, (_, rest) in enumerate(unique):
        # Drop a way if a free way needs no more terms and has written this one already.
        if not any(needs[j] <= needs[i] and (rest or needs[j] != needs[i]) for j in free):
            kept.append(unique[i])
    first_free = next(way for way in kept if not way[1])
    kept = kept[:MOST_WAYS]
    return tuple(kept if first_free in kept else [*kept, first_free])


class TermTracker:
    """Progress of the hypotheses of one batch; some of its sentences may have no terms.

    Args:
        forced: terms of each translation, [B].
        context_sizes: first tokens that belong to the context, int64 [B].
        separator: the symbol that ends each sentence; -1 for none.
    """

    def __init__(
        self, forced: Sequence[ForcedTerms], context_sizes: np.ndarray, separator: int = -1
    ) -> None:
        self._context_sizes = context_sizes
        self._separator = separator
        self._num_tokens = 0
        # The terms of each beam, [B][K]; of one hypothesis before the first token.
        self.rows = [[own] if own.num_tokens else [] for own in forced]

    def __iter__(self) -> Iterator[tuple[int, int, ForcedTerms]]:
        """Yield sentence, beam and progress of each hypothesis that has terms."""
        for row, beams in enumerate(self.rows):
            for beam, progress in enumerate(beams):
                yield row, beam, progress

    def require(
        self, log_probs: Tensor, given: Tensor, room: Tensor, sentences: Tensor | None, end: int
    ) -> None:
        """Allow the next tokens of terms in place, and only these where no more fit.

        ``log_probs`` and those from the models, ``given``, are [B, K, V]. ``room`` has the tokens
        that each hypothesis can still have besides ends of sentences, and ``sentences``, if they
        are counted, the number of sentences to end, both [B, K] or [B, 1]. The ``end`` symbol, and
        the separator of a sentence with terms of its own, have to wait for the terms.
        """
        shape = log_probs.shape[:2]
        rooms = room.expand(shape).tolist()
        numbers = None if sentences is None else sentences.expand(shape).tolist()
        for row, beam, progress in self:
            # Leave hypotheses alone that have all their terms.
            if not progress.missing:
                continue
            log_probs[row, beam, end] = -torch.inf
            # Terms without a sentence of their own may wait for the last one.
            is_own = numbers is not None and numbers[row][beam] <= len(progress.later) + 1
            if is_own and progress.missing_here:
                log_probs[row, beam, self._separator] = -torch.inf
            # Count the room after the next token.
            left, allowed = rooms[row][beam] - 1, list(progress.after)
            # Allow only necessary tokens where any other would leave too little room.
            if progress.prefix or progress.otherwise.missing > left:
                allowed = [token for token in allowed if progress.after[token].missing <= left]
                if not progress.missing_here:  # the next sentence needs all remaining tokens
                    allowed.append(self._separator)
                log_probs[row, beam] = -torch.inf
            # Restore the models' scores of terms, which other rules may have forbidden.
            log_probs[row, beam, allowed] = given[row, beam, allowed]

    def advance(self, parents: Tensor | None, tokens: Tensor) -> None:
        """Append the chosen tokens [B, K] to beams ``parents`` [B, K]; None: the same beams."""
        chosen = tokens.tolist()
        origins = None if parents is None else parents.tolist()
        for row, beams in enumerate(self.rows):
            if not beams:
                continue
            # Before the first token, all beams continue the one hypothesis.
            origin = range(len(chosen[row])) if origins is None else origins[row]
            beams = [beams[min(beam, len(beams) - 1)] for beam in origin]
            # Ignore tokens of the context, which translate earlier sentences.
            if self._num_tokens >= self._context_sizes[row]:
                beams = [
                    b.next_sentence() if token == self._separator else b.advance(token)
                    for b, token in zip(beams, chosen[row], strict=True)
                ]
            self.rows[row] = beams
        self._num_tokens += 1

    def keep(self, mask: np.ndarray) -> None:
        """Keep only the sentences of the mask [B]."""
        self._context_sizes = self._context_sizes[mask]
        self.rows = [beams for beams, is_kept in zip(self.rows, mask, strict=True) if is_kept]
