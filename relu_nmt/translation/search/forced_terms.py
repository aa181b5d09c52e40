"""Terms that a translation must or must not have, and the progress of each hypothesis.

Reference: Post and Vilar 2018, "Fast lexically constrained decoding with dynamic beam allocation
for neural machine translation", section 3, in the form of Hu et al. 2019, "Improved lexically
constrained decoding for translation and monolingual rewriting", as in fairseq's ``--constraints``:
the beam is divided among hypotheses with equally many tokens of the terms
(:func:`share_among_terms`). Three things differ. Where terms overlap, all readings of a
hypothesis are followed. No term goes missing, as the longest output leaves room for all. Terms are
whole words, unless asked otherwise. Sentences that are translated together have their own terms.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from relu_nmt.translation.base import NextTokenScores
from relu_nmt.translation.search.selection import Candidates
from relu_nmt.translation.search.step_rules import OutputBudget, StepRule, forbid, states_of_parents
from relu_nmt.translation.search.symbol_texts import SymbolTexts

Term = tuple[int, ...]
WORD_END: Term = (-1,)
"""Rest of a written term whose last word may go on. The term counts once the word ends."""
MOST_READINGS = 32
"""Most readings that are followed. Only terms with many overlaps have more."""


class Reading(NamedTuple):
    """One way to find the terms in a hypothesis."""

    left: tuple[Term, ...]  # the terms not yet begun
    remainder: Term = ()  # rest of the begun term. (): no term is begun, and the reading is free

    @property
    def is_begun(self) -> bool:
        """Return True if a term is begun and tokens of it are missing."""
        return self.remainder not in ((), WORD_END)

    @property
    def num_missing(self) -> int:
        """The tokens of all terms that are not yet written."""
        return sum(map(len, self.left)) + (len(self.remainder) if self.is_begun else 0)


@dataclass(frozen=True)
class ForcedTerms:
    """Terms that a translation must contain without overlaps.

    Args:
        terms: token ids of each term. A term that is given twice must occur twice.
        ordered: the terms come in this order.
        prefix: token ids with which the translation begins. The prefix may contain terms.
        later: the terms of each later sentence. ``terms`` then belong to the first sentence.
            Empty: there is one sentence, or terms may be in any sentence.
        texts: texts of the symbols, for terms of whole words. None: terms may be parts of words.
    """

    terms: tuple[Term, ...] = ()
    ordered: bool = True
    prefix: Term = ()
    later: tuple["ForcedTerms", ...] = ()
    texts: SymbolTexts | None = None

    @cached_property
    def start(self) -> "TermProgress":
        """The progress before the first token."""
        return TermProgress(self, self.prefix, (Reading(self.terms),))

    @cached_property
    def num_tokens(self) -> int:
        """All tokens of terms and prefixes. 0: nothing is forced."""
        # A prefix of the first sentence may leave its last word open.
        spaces = self.num_spaces(Reading(self.terms), is_open=True)
        number = sum(map(len, self.terms)) + len(self.prefix) + spaces
        return number + sum(sentence.num_tokens for sentence in self.later)

    def continues(self, token: int) -> bool:
        """Return whether a token goes on with an open word."""
        return self.texts is not None and bool(self.texts.continues[token])

    def stays_open(self, token: int) -> bool:
        """Return whether the last word may go on behind a token."""
        return self.texts is not None and bool(self.texts.stays_open[token])

    def num_spaces(self, reading: Reading, is_open: bool) -> int:
        """Return how many tokens must end a word before the terms that a reading still needs."""
        if self.texts is None:
            return 0
        left = reading.left
        if reading.is_begun:
            is_open = self.stays_open(reading.remainder[-1])
        if not self.ordered:  # begin with a term that needs no space
            left = tuple(sorted(left, key=lambda term: self.continues(term[0]) == is_open))
        number = 0
        for term in left:
            number += int(is_open and self.continues(term[0]))
            is_open = self.stays_open(term[-1])
        return number


@dataclass(frozen=True)
class TermProgress:
    """How much of the forced terms a hypothesis has written.

    The progress is a state of an automaton that is built on demand. For the term "5 6" it has three
    states, which are sets of readings (terms left, remainder of the begun term)::

        start    {("5 6", -)}             --5--> begun, other --> start
        begun    {(-, "6"), ("5 6", -)}   --6--> written, 5 --> begun, other --> start
        written  {(-, -)}                 other --> written

    Terms of whole words have one more state. If the word may go on behind "6", the state after it
    is {(-, WORD_END), ("5 6", -)}: a token that continues the word leads to start, any other token
    to written.

    Args:
        terms: the terms of the current sentence and of the later ones.
        prefix: token ids of the prefix that are not yet written.
        readings: all readings of the sentence so far, at least a free one.
        is_open: the last word so far may go on, and the terms are whole words.

    Example:
        >>> start = ForcedTerms(((5, 6), (5,)), ordered=False).start
        >>> begun = start.advance(5)
        >>> [start.num_missing, begun.num_missing, begun.advance(6).num_missing]
        [3, 2, 1]
        >>> start.advance(5).advance(4).advance(5).advance(6).num_missing
        0
    """

    terms: ForcedTerms
    prefix: Term
    readings: tuple[Reading, ...]
    is_open: bool = False

    @cached_property
    def num_missing(self) -> int:
        """The fewest tokens that complete the terms."""
        later = self.terms.later
        return self.num_missing_here + sum(sentence.start.num_missing for sentence in later)

    @cached_property
    def num_missing_here(self) -> int:
        """The fewest tokens that complete the terms of the current sentence."""
        # Terms in the prefix count as written.
        progress = replace(self, prefix=())
        for token in self.prefix:
            progress = progress.advance(token)
        numbers = []
        for reading in progress.readings:
            spaces = self.terms.num_spaces(reading, progress.is_open)
            numbers.append(reading.num_missing + spaces)
        return len(self.prefix) + min(numbers)

    def _free_readings(self, continues: bool) -> tuple[Reading, ...]:
        """Return the free readings if the next token continues, or ends, the last word."""
        if continues:
            return tuple(reading for reading in self.readings if not reading.remainder)
        return tuple(Reading(reading.left) for reading in self.readings if not reading.is_begun)

    @cached_property
    def _after_other_token(self) -> dict[tuple[bool, bool], "TermProgress"]:
        return {}

    def after_other_token(
        self, continues: bool = False, stays_open: bool = False
    ) -> "TermProgress":
        """Return the progress after a token of no term.

        The token continues the open last word or ends it. The word stays open behind it or not.
        """
        if (continues, stays_open) not in self._after_other_token:
            readings = self._free_readings(continues)
            if readings != self.readings:
                readings = _best(readings)
            progress = self
            if readings != self.readings or stays_open != self.is_open:
                progress = replace(self, readings=readings, is_open=stays_open)
            self._after_other_token[continues, stays_open] = progress
        return self._after_other_token[continues, stays_open]

    @cached_property
    def next_states(self) -> dict[int, "TermProgress"]:
        """The progress after each token that the prefix or a term needs next."""
        # A prefix leaves one choice.
        if self.prefix:
            first = self.prefix[0]
            read = replace(self, prefix=()).advance(first)
            return {first: replace(read, prefix=self.prefix[1:])}
        # Each reading goes on with its begun term. A free reading begins a term at a new word.
        readings: dict[int, list[Reading]] = defaultdict(list)
        for reading in self.readings:
            if reading.is_begun:
                remainder = reading.remainder
                readings[remainder[0]].append(Reading(reading.left, remainder[1:]))
        for left, _ in self.after_other_token().readings:
            next_terms = left[:1] if self.terms.ordered else left
            for i, term in enumerate(next_terms):
                if not self._continues_word(term[0]):
                    readings[term[0]].append(Reading(left[:i] + left[i + 1 :], term[1:]))
        states = {}
        for token, advanced in readings.items():
            stays_open = self.terms.stays_open(token)
            new_readings = list(self._free_readings(self._continues_word(token)))
            for left, remainder in advanced:
                if stays_open and not remainder:
                    remainder = WORD_END
                new_readings.append(Reading(left, remainder))
            states[token] = replace(self, readings=_best(new_readings), is_open=stays_open)
        return states

    def _continues_word(self, token: int) -> bool:
        """Return whether a token goes on with the last word, so no term ends or begins there."""
        return self.is_open and self.terms.continues(token)

    @property
    def next_of_begun_terms(self) -> set[int]:
        """The tokens that go on with a begun term."""
        return {reading.remainder[0] for reading in self.readings if reading.is_begun}

    def ends_with(self, token: int) -> bool:
        """Return whether a token is part of the prefix, or the last token of a term."""
        if token not in self.next_states:
            return False
        if self.prefix:
            return True
        return any((token,) in (remainder, *left) for left, remainder in self.readings)

    def advance(self, token: int) -> "TermProgress":
        """Return the progress with one more token."""
        if token in self.next_states:
            return self.next_states[token]
        return self.after_other_token(self._continues_word(token), self.terms.stays_open(token))

    def next_sentence(self) -> "TermProgress":
        """Return the progress at the beginning of the next sentence."""
        if not self.terms.later:
            return self.after_other_token()
        first, *later = self.terms.later
        return replace(first, later=tuple(later)).start


def _best(readings: Sequence[Reading]) -> tuple[Reading, ...]:
    """Return the readings, the best first, without those that a free reading makes superfluous."""
    # Compare each reading with the free readings, in which no term is begun.
    unique = sorted(dict.fromkeys(readings), key=lambda reading: (reading.num_missing, reading))
    needs = [Counter(reading.left) for reading in unique]
    free = [i for i, reading in enumerate(unique) if not reading.remainder]
    best = []
    for i, reading in enumerate(unique):
        # Drop a reading if a free one needs no other terms: it has written the begun term already.
        is_free = not reading.remainder
        if not any(needs[j] <= needs[i] and not (is_free and needs[j] == needs[i]) for j in free):
            best.append(reading)
    first_free = next(reading for reading in best if not reading.remainder)
    best = best[:MOST_READINGS]
    return tuple(best if first_free in best else [*best, first_free])


class TermTracker(StepRule):
    """Forces the terms of a batch, and follows the progress of each hypothesis.

    ``rows`` [B][K] has the progress of each beam. It is empty for a sentence without terms.
    """

    def __init__(
        self, forced: Sequence[ForcedTerms | None], num_beams: int, budget: OutputBudget
    ) -> None:
        self._budget = budget
        self._separator = -1 if budget.sentences_left is None else budget.separator
        self._num_tokens = 0
        self.rows: list[list[TermProgress]] = []
        for terms in forced:
            self.rows.append([terms.start] * num_beams if terms and terms.num_tokens else [])
        self.model = torch.empty(0)

    def __iter__(self) -> Iterator[tuple[int, int, TermProgress]]:
        """Yield sentence, beam and progress of each hypothesis that has terms."""
        for row, beams in enumerate(self.rows):
            for beam, progress in enumerate(beams):
                yield row, beam, progress

    def save(self, log_probs: Tensor, step: int) -> None:
        self.model = log_probs.clone()

    def apply(self, log_probs: Tensor, step: int) -> None:
        """Allow the next tokens of terms, and only these if no others fit. Forbid early ends."""
        shape = log_probs.shape[:2]
        rooms = self._budget.tokens_left(step, log_probs).expand(shape).tolist()
        sentences_left = None
        if self._budget.sentences_left is not None:
            sentences_left = self._budget.sentences_left.expand(shape).tolist()
        for row, beam, progress in self:
            room = rooms[row][beam] - 1  # after the next token
            # Skip hypotheses with all terms, unless a token could undo one that then has no room.
            # At worst it goes on with the last word, so that the term before it does not count.
            worst = progress
            if not progress.prefix:
                worst = progress.after_other_token(progress.is_open, stays_open=True)
            if not progress.num_missing and worst.num_missing <= room:
                continue
            if progress.num_missing:
                log_probs[row, beam, self._budget.eos_index] = -torch.inf
            # Terms that may be in any sentence can wait for the last sentence.
            is_assigned = False
            if sentences_left is not None:
                is_assigned = sentences_left[row][beam] <= len(progress.terms.later) + 1
            if is_assigned and progress.num_missing_here:
                log_probs[row, beam, self._separator] = -torch.inf
            allowed = []
            for token, new_progress in progress.next_states.items():
                if new_progress.num_missing <= room:
                    allowed.append(token)
            # Allow only necessary tokens where any other token would leave too little room.
            if progress.prefix or progress.after_other_token().num_missing > room:
                if not progress.num_missing_here:  # the next sentence needs all remaining tokens
                    allowed.append(self._separator)
                log_probs[row, beam] = -torch.inf
            elif worst.num_missing > room:
                _leave_room(log_probs[row, beam], progress, room)
            # Restore the models' scores of terms, which other rules may have forbidden.
            log_probs[row, beam, allowed] = self.model[row, beam, allowed]

    def forbid_ends(self, hypotheses: Sequence[tuple[int, int]], word_ends: Tensor) -> None:
        """Forbid ``word_ends`` at pairs of sentence and beam, except to go on with a begun term."""
        for row, beam in hypotheses:
            tokens: list[int] = []
            if self.rows[row]:
                tokens = sorted(self.rows[row][beam].next_of_begun_terms)
            scores = self.model[row, beam, tokens]
            forbid(self.model, [(row, beam)], word_ends)
            self.model[row, beam, tokens] = scores

    def advance(self, parents: Tensor, tokens: Tensor) -> None:
        chosen = tokens.tolist()
        for row, beams in enumerate(states_of_parents(self.rows, parents)):
            advanced = []
            for progress, token in zip(beams, chosen[row], strict=False):
                # Ignore tokens of the context, which translate earlier sentences.
                if self._num_tokens < self._budget.context_sizes[row]:
                    advanced.append(progress)
                elif token == self._separator:
                    advanced.append(progress.next_sentence())
                else:
                    advanced.append(progress.advance(token))
            self.rows[row] = advanced
        self._num_tokens += 1

    def keep(self, rows: Tensor, mask: np.ndarray) -> None:
        self.rows = list(itertools.compress(self.rows, mask))


def _leave_room(log_probs: Tensor, progress: TermProgress, room: int) -> None:
    """Forbid tokens, in log_probs [V], after which terms need more than ``room`` tokens."""
    texts = progress.terms.texts
    assert texts is not None, "the ends of words matter"
    continues_word = texts.continues & progress.is_open
    for continues, stays_open in itertools.product((False, True), repeat=2):
        if progress.after_other_token(continues, stays_open).num_missing > room:
            forbidden = (continues_word == continues) & (texts.stays_open == stays_open)
            log_probs[torch.from_numpy(forbidden).to(log_probs.device)] = -torch.inf


def share_among_terms(
    candidates: Candidates, scores: NextTokenScores, totals: Tensor, tracker: TermTracker
) -> None:
    """Divide the beam, in place, among hypotheses that miss different numbers of term tokens.

    Candidates are the best continuations [B, 1, 2K], the best continuation of every hypothesis, and
    all continuations that go on with a term. Candidates that miss equally many term tokens form a
    group. The groups give their best candidate in turn, the group that misses fewest tokens first.
    """
    log_probs = scores.of_all_beams().log_probs
    for row, beams in enumerate(tracker.rows):
        if not beams:
            continue
        # Join plain candidates [2K] and candidates that continue terms: (parent, token) -> total.
        sums_of_row = candidates.totals[row, 0]
        tokens = candidates.tokens[row, 0]
        parents = candidates.parents[row, 0]
        pairs = zip(parents.tolist(), tokens.tolist(), strict=True)
        sums = dict(zip(pairs, sums_of_row.tolist(), strict=True))
        sums |= _further(beams, log_probs[row], totals[row])
        # Write the divided beam back. Unused entries are no hypotheses.
        ranked = _shared_out(beams, sums)[: len(tokens)]
        columns = (sums_of_row, tokens, parents)
        for column, values in zip(columns, zip(*ranked, strict=True), strict=False):
            column[: len(values)] = torch.tensor(values, dtype=column.dtype)
        sums_of_row[len(ranked) :] = -torch.inf


def _further(
    beams: Sequence[TermProgress], log_probs: Tensor, totals: Tensor
) -> dict[tuple[int, int], float]:
    """Return new totals, by beam and next token: each beam's best token and its term tokens."""
    best = log_probs.argmax(1).tolist()
    pairs = []
    for beam, progress in enumerate(beams):
        pairs += [(beam, token) for token in dict.fromkeys([best[beam], *progress.next_states])]
    index = torch.tensor(pairs, device=totals.device)
    sums = totals[index[:, 0]] + log_probs[index[:, 0], index[:, 1]]
    return dict(zip(pairs, sums.tolist(), strict=True))


def _shared_out(
    beams: Sequence[TermProgress], sums: dict[tuple[int, int], float]
) -> list[tuple[float, int, int]]:
    """Return total, token and parent of the possible candidates, in the order of choice."""
    # Group candidates by the number of term tokens that they miss.
    by_missing: dict[int, list[tuple[float, int, int]]] = defaultdict(list)
    for (parent, token), total in sums.items():
        if total > -torch.inf:
            missing = beams[parent].advance(token).num_missing
            by_missing[missing].append((total, token, parent))
    columns = []
    for _, candidates in sorted(by_missing.items()):
        # Sort by total, then by beam and token, so that ties are reproducible.
        candidates.sort(key=lambda candidate: (-candidate[0], candidate[2], candidate[1]))
        columns.append(candidates)
    # Take the groups' best candidates in turn, then their second best.
    ranks = itertools.zip_longest(*columns)
    return list(filter(None, itertools.chain.from_iterable(ranks)))
