"""Terms that a translation must not contain, found in the letters that it has written so far.

The symbols of a translation need not divide it where words begin and end. Of the banned term
"man", "ma" may end one symbol and "n" begin the next, so terms are letters here, and not tokens.
The :class:`Ending` of a hypothesis is the beginning of a term that it has written, such as "ma".
:meth:`BannedTerms.forbidden` finds the symbols that would complete a term: all that begin with "n"
and end the word there.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from relu_nmt.translation.search import symbol_texts
from relu_nmt.translation.search.forced_terms import TermProgress, TermTracker
from relu_nmt.translation.search.step_rules import OutputBudget, StepRule, forbid, states_of_parents


class Ending(NamedTuple):
    """The end of a hypothesis, as far as banned terms depend on it."""

    # The longest end of the text that begins a banned term, or is a term with an open last word.
    written: str = ""
    is_open: bool = False  # the last word may go on
    is_forced: bool = False  # the last symbol was forced, so a banned term may end in it


class Forbidden(NamedTuple):
    """Symbols that an ending forbids."""

    ends_term: bool  # the ending is a term: only symbols that go on with its last word are allowed
    completing: Tensor  # symbols that complete a term, int64 [n]
    # Symbols that write a term whose last word may go on, int64 [m]. They are forbidden if the
    # symbol after them has to end that word.
    almost: Tensor


class BannedTerms:
    """Terms that are banned from a translation, as an automaton that is built on demand.

    With ``match_case`` a term in other capitals is allowed. With ``inside_words`` parts of words
    are banned as well.
    """

    def __init__(
        self,
        texts: symbol_texts.SymbolTexts,
        terms: Iterable[str],
        match_case: bool = False,
        inside_words: bool = False,
    ) -> None:
        self._match_case = match_case
        self._symbols = texts.exact if match_case else texts.in_lower_case
        self._inside_words = inside_words
        # The remainders of the terms, by their beginnings.
        self._remainders: dict[str, list[str]] = defaultdict(list)
        spellings: set[str] = set()
        for term in terms:
            spellings |= texts.spellings(term, match_case)
        for term in spellings:
            for size in range(len(term)):
                beginning = term[:size]
                remainder = term[size:]
                self._remainders[beginning].append(remainder)
                # A space may stand before punctuation.
                is_inside = remainder[0] == " " or symbol_texts.is_letter(remainder[0])
                if size and symbol_texts.is_letter(beginning[-1]) and not is_inside:
                    self._remainders[beginning + " "].append(remainder)
            if symbol_texts.is_letter(term[-1]) and not inside_words:
                self._remainders[term].append("")
        # Symbols that end an open word.
        self.word_ends = torch.from_numpy(np.flatnonzero(~texts.continues))
        self._next: dict[tuple[Ending, int], Ending] = {}
        self._forbidden: dict[Ending, Forbidden] = {}

    def __bool__(self) -> bool:
        return bool(self._remainders)

    def occur_in(self, text: str) -> bool:
        """Return whether a text has a banned term."""
        text = symbol_texts.compact(text if self._match_case else symbol_texts.without_case(text))
        for term in self._remainders.get("", ()):
            begin = text.find(term)
            while begin >= 0:
                around = text[:begin][-1:], text[begin + len(term) :][:1]
                if self._inside_words or self._is_whole(term, around):
                    return True
                begin = text.find(term, begin + 1)
        return False

    @staticmethod
    def _is_whole(term: str, around: tuple[str, str]) -> bool:
        """Return whether no letter beside a term goes on with its first or last word."""
        for letter, neighbor in zip((term[0], term[-1]), around, strict=True):
            if neighbor and symbol_texts.is_letter(letter) and symbol_texts.is_letter(neighbor):
                return False
        return True

    def advance(self, ending: Ending, symbol: int) -> Ending:
        """Return the ending with one more symbol."""
        key = ending, symbol
        if key not in self._next:
            text = symbol_texts.compact(ending.written + self._symbols.texts[symbol])
            is_open = ending.is_open
            if text:
                is_open = symbol_texts.is_letter(text[-1])
            self._next[key] = Ending("", is_open)
            for begin in range(len(text)):
                if text[begin:] in self._remainders and self._may_begin(ending, text, begin):
                    self._next[key] = Ending(text[begin:], is_open)
                    break
        return self._next[key]

    def _may_begin(self, ending: Ending, text: str, begin: int) -> bool:
        """Return whether a term may begin at an index of a text that begins with the ending."""
        if self._inside_words or not symbol_texts.is_letter(text[begin]):
            return True
        if begin:
            return not symbol_texts.is_letter(text[begin - 1])
        return bool(ending.written) or not ending.is_open

    def forbidden(self, ending: Ending) -> Forbidden:
        """Return the symbols that an ending forbids."""
        if ending not in self._forbidden:
            self._forbidden[ending] = self._forbidden_after(ending)
        return self._forbidden[ending]

    def _forbidden_after(self, ending: Ending) -> Forbidden:
        written = ending.written
        ends_term = False
        completing: set[int] = set()
        almost: set[int] = set()
        if not written:
            for term in self._remainders[""]:
                self._find(ending, "", term, completing, almost)
        else:
            # Terms that begin in the next symbol do not depend on the letters before it.
            next_terms = self.forbidden(Ending(is_open=ending.is_open))
            completing.update(next_terms.completing.tolist())
            almost.update(next_terms.almost.tolist())
        for begin in range(len(written)):
            beginning = written[begin:]
            if not self._may_begin(ending, written, begin):
                continue
            for remainder in self._remainders.get(beginning, ()):
                if remainder:
                    self._find(ending, beginning, remainder, completing, almost)
                else:
                    ends_term = not ending.is_forced
        return Forbidden(
            ends_term,
            torch.tensor(sorted(completing), dtype=torch.int64),
            torch.tensor(sorted(almost), dtype=torch.int64),
        )

    def _find(
        self, ending: Ending, beginning: str, remainder: str, completing: set[int], almost: set[int]
    ) -> None:
        """Add the symbols that write the remainder of a term."""
        parts = [remainder]
        if beginning:
            parts = [symbol_texts.END + remainder]
            if symbol_texts.is_letter(remainder[0]) and not symbol_texts.is_letter(beginning[-1]):
                parts.append(f"{symbol_texts.END} {remainder}")
        for part in parts:
            for symbol, before, after in self._symbols.find(part):
                if not beginning and not self._is_begin(ending, before, remainder[0]):
                    continue
                if self._inside_words or not symbol_texts.is_letter(remainder[-1]):
                    completing.add(symbol)
                elif after == symbol_texts.END:
                    almost.add(symbol)
                elif not symbol_texts.is_letter(after):
                    completing.add(symbol)

    def _is_begin(self, ending: Ending, before: str, first: str) -> bool:
        """Return whether a term with this first letter may stand behind a letter of a symbol."""
        if self._inside_words or not symbol_texts.is_letter(first):
            return True
        if before == symbol_texts.END:
            return not ending.is_open
        return not symbol_texts.is_letter(before)


class TermBans(StepRule):
    """Forbids every symbol that would complete a banned term of its sentence.

    ``num_forced`` [B] are the numbers of tokens of the forced beginnings. The ``tracker`` follows
    the forced terms, which may contain banned terms.
    """

    def __init__(
        self,
        banned: Sequence[BannedTerms | None],
        num_forced: Sequence[int],
        num_beams: int,
        budget: OutputBudget,
        tracker: TermTracker | None,
    ) -> None:
        self._banned = list(banned)
        self._num_forced = list(num_forced)
        self._budget = budget
        self._tracker = tracker
        self._num_tokens = 0
        # The ending of each beam, [B][K].
        self._endings = [[Ending()] * num_beams if terms else [] for terms in banned]

    def _may_be_last(self, step: int, log_probs: Tensor) -> list[list[bool]]:
        """Return for each beam, [B][K], whether the token after the next one may be forced."""
        shape = log_probs.shape[:2]
        last = self._budget.ends_next(step, log_probs).expand(shape).tolist()
        if self._tracker is not None:
            rooms = self._budget.tokens_left(step, log_probs).expand(shape).tolist()
            for row, beam, progress in self._tracker:
                last[row][beam] |= progress.num_missing > max(0, rooms[row][beam] - 3)
        return last

    def apply(self, log_probs: Tensor, step: int) -> None:
        """Forbid symbols that would end a banned term, unless forced terms complete it."""
        last = self._may_be_last(step, log_probs)
        # Treat beams with the same ending together.
        groups: dict[tuple[int, Ending, bool], list[tuple[int, int]]] = defaultdict(list)
        for row, endings in enumerate(self._endings):
            for beam, ending in enumerate(endings):
                groups[id(self._banned[row]), ending, last[row][beam]].append((row, beam))
        for (_, ending, is_last_ending), hypotheses in groups.items():
            terms = self._banned[hypotheses[0][0]]
            assert terms is not None, "it has endings"
            forbidden = terms.forbidden(ending)
            forbid(log_probs, hypotheses, forbidden.completing)
            if is_last_ending:
                forbid(log_probs, hypotheses, forbidden.almost)
            if forbidden.ends_term:
                forbid(log_probs, hypotheses, terms.word_ends)
                if self._tracker is not None:
                    self._tracker.forbid_ends(hypotheses, terms.word_ends)

    def advance(self, parents: Tensor, tokens: Tensor) -> None:
        """Append the tokens [B, K] to beams ``parents`` [B, K], before the forced terms advance."""
        chosen = tokens.tolist()
        forced: list[list[TermProgress]] = [[] for _ in self._endings]
        if self._tracker is not None:
            forced = states_of_parents(self._tracker.rows, parents)
        for row, endings in enumerate(states_of_parents(self._endings, parents)):
            terms = self._banned[row]
            is_prefix = self._num_tokens < self._num_forced[row]
            advanced = []
            for beam, ending in enumerate(endings):
                assert terms is not None, "it has endings"
                token = chosen[row][beam]
                ending = terms.advance(ending, token)
                if is_prefix or (forced[row] and forced[row][beam].ends_with(token)):
                    ending = ending._replace(is_forced=True)
                advanced.append(ending)
            self._endings[row] = advanced
        self._num_tokens += 1

    def keep(self, rows: Tensor, mask: np.ndarray) -> None:
        self._banned = list(itertools.compress(self._banned, mask))
        self._endings = list(itertools.compress(self._endings, mask))
        self._num_forced = list(itertools.compress(self._num_forced, mask))
