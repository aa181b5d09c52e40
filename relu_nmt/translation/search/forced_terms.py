"""Terms that a translation must have: how far each hypothesis is, and which ones are kept.

Reference: Post and Vilar 2018, "Fast lexically constrained decoding with dynamic beam allocation
for neural machine translation", section 3, in the form of Hu et al. 2019, "Improved lexically
constrained decoding for translation and monolingual rewriting", as in fairseq's ``--constraints``:
the beam is shared out among hypotheses that have as many tokens of the terms. Unlike there, where
terms overlap all ways of reading a hypothesis are followed, and a term never goes missing: it is
written at the longest output at last, for which there is room. Where several sentences are
translated at once, each has terms of its own, and ends when it has them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from relu_nmt.translation.search.selectors import BeamSelector, Candidates
from relu_nmt.translation.step_decoder import StepScores

Term = tuple[int, ...]
Way = tuple[tuple[Term, ...], Term]
"""Terms that are not begun, and what is left of the one that is being written; () for none."""
MOST_WAYS = 32
"""Ways of reading one hypothesis that are followed; only terms that overlap much have more."""


@dataclass(frozen=True)
class ForcedTerms:
    """What one translation must have, at places that do not overlap.

    Args:
        terms: token ids of each, one or more; one that is given twice must occur twice.
        ordered: whether they come in this order.
        prefix: token ids that it begins with; they may have the terms.
        later: what each of the sentences behind the first must have; the terms are then those of
            the first. None: one sentence, or terms anywhere in several.
    """

    terms: tuple[Term, ...] = ()
    ordered: bool = True
    prefix: Term = ()
    later: tuple["ForcedTerms", ...] = ()

    @cached_property
    def num_tokens(self) -> int:
        """All tokens of terms and prefixes; 0: there is nothing to follow."""
        own = sum(map(len, self.terms)) + len(self.prefix)
        return own + sum(each.num_tokens for each in self.later)

    @cached_property
    def missing(self) -> int:
        """The fewest tokens that a translation must have."""
        return self.begin().missing

    def begin(self) -> "Progress":
        """Return how far a hypothesis without tokens is."""
        return Progress(((self.terms, ()),), self.ordered, self.prefix, self.later)


@dataclass(frozen=True)
class Progress:
    """How far a hypothesis is with its terms: an automaton that is built as it is used.

    Args:
        ways: all ways of reading its sentence; always one of them is in the middle of no term.
        ordered: see :class:`ForcedTerms`.
        prefix: what is left of that of its sentence.
        later: what the sentences behind it must have.

    Example:
        >>> progress = ForcedTerms(((5, 6), (5,)), ordered=False).begin()
        >>> [progress.missing, progress.advance(5).missing, progress.advance(5).advance(6).missing]
        [3, 2, 1]
        >>> progress.advance(5).advance(4).advance(5).advance(6).missing
        0
    """

    ways: tuple[Way, ...]
    ordered: bool
    prefix: Term = ()
    later: tuple[ForcedTerms, ...] = ()

    @cached_property
    def missing(self) -> int:
        """The fewest tokens that complete the terms."""
        return self.missing_here + sum(sentence.missing for sentence in self.later)

    @cached_property
    def missing_here(self) -> int:
        """The same of the sentence that is being written; it cannot end before."""
        read = replace(self, prefix=())
        for token in self.prefix:
            read = read.advance(token)
        return len(self.prefix) + min(map(_missing, read.ways))

    @cached_property
    def otherwise(self) -> "Progress":
        """After a token that no term needs next; there is none while a prefix is written."""
        return replace(self, ways=tuple(way for way in self.ways if not way[1]))

    @cached_property
    def after(self) -> dict[int, "Progress"]:
        """After each token that the prefix or a term needs next."""
        if self.prefix:
            first = self.prefix[0]
            read = replace(self, prefix=()).advance(first)
            return {first: replace(read, prefix=self.prefix[1:])}
        ways: dict[int, list[Way]] = defaultdict(list)
        for left, rest in self.ways:
            if rest:
                ways[rest[0]].append((left, rest[1:]))
                continue
            for i in range(min(1, len(left)) if self.ordered else len(left)):
                ways[left[i][0]].append((left[:i] + left[i + 1 :], left[i][1:]))
        free = self.otherwise.ways
        return {token: replace(self, ways=_best([*free, *own])) for token, own in ways.items()}

    def advance(self, token: int) -> "Progress":
        """Return how far it is with one more token."""
        return self.after.get(token, self.otherwise)

    def next_sentence(self) -> "Progress":
        """Return how far it is with the end of a sentence more."""
        if not self.later:
            return self.otherwise
        return replace(self.later[0].begin(), later=self.later[1:])


def _missing(way: Way) -> int:
    left, rest = way
    return sum(map(len, left)) + len(rest)


def _best(ways: Sequence[Way]) -> tuple[Way, ...]:
    """Return the ways without those that others are ahead of in every term, the best first."""
    unique = sorted(dict.fromkeys(ways), key=lambda way: (_missing(way), way))
    needs = [Counter(left) for left, _ in unique]
    free = [i for i, (_, rest) in enumerate(unique) if not rest]
    kept = []
    for i, (_, rest) in enumerate(unique):
        # In the middle of a term, or not even there, while another has written it.
        if not any(needs[j] <= needs[i] and (rest or needs[j] != needs[i]) for j in free):
            kept.append(unique[i])
    first_free = next(way for way in kept if not way[1])
    kept = kept[:MOST_WAYS]
    return tuple(kept if first_free in kept else [*kept, first_free])


class TermTracker:
    """How far the hypotheses of one batch are; some of its sentences may have no terms.

    Args:
        forced: what each translation must have, [B].
        context_sizes: first tokens that are no part of it, int64 [B].
        separator: the symbol that ends each sentence; -1: they are not told apart.
    """

    def __init__(
        self, forced: Sequence[ForcedTerms], context_sizes: np.ndarray, separator: int = -1
    ) -> None:
        self._context_sizes = context_sizes
        self._separator = separator
        self._num_tokens = 0
        # One hypothesis before the first token, then as many as beams.
        self.rows = [[own.begin()] if own.num_tokens else [] for own in forced]

    def __iter__(self) -> Iterator[tuple[int, int, Progress]]:
        """Yield sentence, beam and progress of each hypothesis that has terms."""
        for row, beams in enumerate(self.rows):
            for beam, progress in enumerate(beams):
                yield row, beam, progress

    def unfinished(self, log_probs: Tensor) -> Tensor:
        """Return whose terms are missing, bool [B, K] or [B, 1], like log_probs [B, K, V]."""
        found = torch.zeros(log_probs.shape[:2], dtype=torch.bool)
        for row, beam, progress in self:
            found[row, beam] = progress.missing > 0
        return found.to(log_probs.device)

    def within_sentence(self, number: Tensor) -> Tensor:
        """Return who may not end a sentence yet, for want of its terms, bool like ``number``.

        Args:
            number: of the sentences that each hypothesis has still to end, [B, K] or [B, 1].
        """
        found, left = torch.zeros(number.shape, dtype=torch.bool), number.tolist()
        for row, beam, progress in self:
            # Terms of no certain sentence may wait for the last.
            is_own = left[row][beam] <= len(progress.later) + 1
            found[row, beam] = is_own and progress.missing_here > 0
        return found.to(number.device)

    def require(self, log_probs: Tensor, given: Tensor, room: Tensor) -> None:
        """Allow, in place, what terms need next, and where there is room for no more, only that.

        Args:
            log_probs: [B, K, V]; forbidden tokens become -inf.
            given: the same as the models gave it.
            room: tokens that each hypothesis may still have besides ends of sentences, [B, K] or
                [B, 1].
        """
        rooms = room.expand(log_probs.shape[:2]).tolist()
        for row, beam, progress in self:
            if not progress.missing:
                continue
            left, allowed = rooms[row][beam] - 1, list(progress.after)
            if progress.prefix or progress.otherwise.missing > left:
                allowed = [token for token in allowed if progress.after[token].missing <= left]
                if not progress.missing_here:  # the next sentence needs all that is left
                    allowed.append(self._separator)
                log_probs[row, beam] = -torch.inf
            log_probs[row, beam, allowed] = given[row, beam, allowed]

    def advance(self, parents: Tensor | None, tokens: Tensor) -> None:
        """Note the tokens [B, K] that were chosen, after beams ``parents`` [B, K] (None: same)."""
        chosen = tokens.tolist()
        origins = None if parents is None else parents.tolist()
        for row, beams in enumerate(self.rows):
            if not beams:
                continue
            # Before the first token there is one hypothesis, from which all go on.
            origin = range(len(chosen[row])) if origins is None else origins[row]
            beams = [beams[min(beam, len(beams) - 1)] for beam in origin]
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


class TermSelector(BeamSelector):
    """Beam search in which the beam is shared out by how much of its terms a hypothesis has.

    Candidates are the 2K best continuations, and of every hypothesis the best one and those that
    go on with a term. They are ranked among those with as many tokens of the terms, and the best
    of each rank are taken in turn, beginning with those that have most of them.

    Args:
        tracker: how far the hypotheses are.
    """

    def __init__(self, tracker: TermTracker) -> None:
        super().__init__()
        self._tracker = tracker

    def select(self, scores: StepScores, totals: Tensor, step: int) -> Candidates:
        """Return the candidates after the scores of a step, of beams with totals [B, K]."""
        log_probs = scores.of_all(*totals.shape).log_probs.expand(-1, totals.size(1), -1)
        found = super().select(scores, totals, step)
        assert found.parents is not None
        for row, beams in enumerate(self._tracker.rows):
            if not beams:
                continue
            columns = found.totals[row, 0], found.tokens[row, 0], found.parents[row, 0]
            sums = {
                (parent, token): total
                for total, token, parent in zip(*(c.tolist() for c in columns), strict=True)
            }
            sums |= _further(beams, log_probs[row], totals[row])
            ranked = _shared_out(beams, sums)[: len(columns[0])]
            for column, values in zip(columns, zip(*ranked, strict=True), strict=False):
                column[: len(values)] = torch.tensor(values, dtype=column.dtype)
            columns[0][len(ranked) :] = -torch.inf
        return found


def _further(
    beams: Sequence[Progress], log_probs: Tensor, totals: Tensor
) -> dict[tuple[int, int], float]:
    """Return the sums of each beam's best token and of those that its terms need next.

    Args:
        beams: how far they are; one before the first token.
        log_probs: [K, V].
        totals: [K].
    """
    best = log_probs.argmax(1).tolist()
    pairs = [
        (beam, token)
        for beam, progress in enumerate(beams)
        for token in dict.fromkeys([best[beam], *progress.after])
    ]
    index = torch.tensor(pairs, device=totals.device)
    sums = totals[index[:, 0]] + log_probs[index[:, 0], index[:, 1]]
    return dict(zip(pairs, sums.tolist(), strict=True))


def _shared_out(
    beams: Sequence[Progress], sums: dict[tuple[int, int], float]
) -> list[tuple[float, int, int]]:
    """Return total, token and parent of the candidates that are possible, in their order."""
    by_missing: dict[int, list[tuple[float, int, int]]] = defaultdict(list)
    for (parent, token), total in sums.items():
        if total > -torch.inf:
            missing = beams[parent].advance(token).missing
            by_missing[missing].append((total, token, parent))
    ranked = []
    for missing, own in by_missing.items():
        own.sort(key=lambda candidate: (-candidate[0], candidate[2], candidate[1]))
        ranked += [(rank, missing, candidate) for rank, candidate in enumerate(own)]
    return [candidate for *_, candidate in sorted(ranked, key=lambda entry: entry[:2])]
