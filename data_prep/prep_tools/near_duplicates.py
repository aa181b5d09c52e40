"""Lines of a held-out set that training has seen, word for word or nearly so."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from math import ceil

from prep_tools.letters import has_letters, letters, whole_text

GRAM = 5
"""Letters in a row that are compared as one."""
_FEWEST_SHARED = 8
"""Rare grams that two lines must share to be compared. A higher number is slower again."""
_WHOLE = "="
"""Mark before a line without letters, which is one gram. No letter is written so."""


def _compared(line: str) -> str:
    """Return the text to compare: a line's letters, or the whole line if it has no letters."""
    return letters(line) if has_letters(line) else f"{_WHOLE}{whole_text(line)}"


def shingles(text: str) -> frozenset[str]:
    """Return the runs of five letters of a line, its ends included.

    Args:
        text: the letters of a line (:func:`prep_tools.letters.letters`), or a whole line.
    """
    if text.startswith(_WHOLE):
        return frozenset([text])
    padded = f"{'<' * (GRAM - 1)}{text}{'>' * (GRAM - 1)}"
    return frozenset([padded[n : n + GRAM] for n in range(len(padded) - GRAM + 1)])


class SeenLines:
    """The lines of one language that training has seen.

    A line counts as seen if a training line has the same letters, or if the runs of letters of both
    overlap by at least ``threshold`` (Jaccard: shared over all). A line without letters must equal
    a training line.

    The search is exact. Two sets whose Jaccard index is at least t share one of the
    ``size - ceil(t * size) + 1`` rarest members of either. They also share k of the rarest members
    if k - 1 more are taken (prefix filtering). Only lines with k such members in common are
    compared. The search keeps the rare members of the held-out lines in memory and reads the
    training lines once, so that memory does not grow with these.

    Args:
        lines: the training lines.
        threshold: share of common runs from which a line counts as seen, over 0. From 1, only
            equal letters count.

    Example:
        >>> seen = SeenLines(["The dog sleeps in the old house."], threshold=0.6)
        >>> "the dog sleeps in the old houses" in seen, "A cat sleeps." in seen
        (True, False)
    """

    def __init__(self, lines: Iterable[str], threshold: float) -> None:
        self.threshold = threshold
        self._lines = list(lines)

    def __contains__(self, line: str) -> bool:
        return self.find([line])[0]

    def find(self, lines: Sequence[str]) -> list[bool]:
        """Return True for each line that training has seen, reading the training lines once."""
        texts = list(map(_compared, lines))
        search = _Wanted(dict.fromkeys(texts), self.threshold)
        for line in self._lines:
            search.compare(_compared(line))
        return [text in search.seen for text in texts]


class _Wanted:
    """Lines to find among others.

    Attributes:
        seen: the lines that were found.
    """

    def __init__(self, texts: Iterable[str], threshold: float) -> None:
        self.seen: set[str] = set()
        self._threshold = threshold
        self._texts = list(texts)
        self._distinct = frozenset(self._texts)
        self._sets: list[frozenset[str]] = []
        if threshold < 1:
            self._sets += map(shingles, self._texts)
        self._fewest = [min(_FEWEST_SHARED, self._needed(members)) for members in self._sets]
        # Number the grams from 1, the rarest first. No other grams of training lines match.
        counts = Counter(chain.from_iterable(self._sets))
        ordered = sorted(counts, key=lambda gram: (counts[gram], gram))
        self._ranks = {gram: rank for rank, gram in enumerate(ordered, 1)}
        # For each rank, list the lines that have this gram among their rarest ones.
        self._holders: list[list[int]] = [[] for _ in range(len(ordered) + 1)]
        for number, members in enumerate(self._sets):
            for rank in self._rarest(self._known(members), self._needed(members)):
                self._holders[rank].append(number)

    def _needed(self, members: frozenset[str]) -> int:
        """Return the fewest members that a set with enough overlap shares."""
        # The small subtraction keeps a product such as 0.55 * 20 = 11.000000000000002 at 11.
        return ceil(self._threshold * len(members) - 1e-9)

    def _known(self, members: frozenset[str]) -> list[int]:
        """Return the ranks of the members that wanted lines have, sorted."""
        return sorted(filter(None, map(self._ranks.get, members)))

    @staticmethod
    def _rarest(ranks: list[int], needed: int) -> list[int]:
        """Return the rarest known members of a set that must share ``needed`` of them."""
        return ranks[: len(ranks) - needed + min(_FEWEST_SHARED, needed)]

    def compare(self, text: str) -> None:
        """Find the wanted lines that this line equals, or nearly equals."""
        if text in self._distinct:
            self.seen.add(text)
        if self._threshold >= 1:
            return
        members = shingles(text)
        needed = self._needed(members)
        ranks = self._known(members)
        if len(ranks) < needed:
            return
        # Count the rare members that each wanted line shares, and compare the likely lines.
        holders = map(self._holders.__getitem__, self._rarest(ranks, needed))
        for number, count in Counter(chain.from_iterable(holders)).items():
            if count >= self._fewest[number] or count >= needed:
                of_line = self._sets[number]
                shared = len(members & of_line)
                union = len(members) + len(of_line) - shared
                if shared >= self._threshold * union - 1e-9:
                    self.seen.add(self._texts[number])
