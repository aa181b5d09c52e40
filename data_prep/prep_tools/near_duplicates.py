"""Lines of a held-out set that training has seen, word for word or nearly so."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import ceil

from prep_tools.letters import letters

GRAM = 5
"""Letters in a row that are compared as one."""
_FEWEST_SHARED = 8
"""Rare grams that two lines must share to be compared; more make the search slower again."""


def shingles(text: str) -> frozenset[str]:
    """Return the runs of five letters of a line, its ends included.

    Args:
        text: a line as :func:`prep_tools.letters.letters` gives it.
    """
    padded = f"{'<' * (GRAM - 1)}{text}{'>' * (GRAM - 1)}"
    return frozenset(padded[n : n + GRAM] for n in range(len(padded) - GRAM + 1))


class SeenLines:
    """The lines of one language that training has seen.

    A line counts as seen if its letters are those of one of them, or if its runs of letters
    overlap with those of one of them by at least ``threshold`` (Jaccard: shared over all).

    The search is exact. Two sets whose Jaccard index is at least t share one of the
    ``size - ceil(t * size) + 1`` rarest members of either, and k of as many and k - 1 more (prefix
    filtering). Only the lines with k of those in common are compared. The rare members of the
    lines that are asked for are kept, and the training lines are read once, so that memory does
    not grow with these.

    Args:
        lines: the training lines.
        threshold: share of common runs from which a line counts as seen, over 0; from 1, only
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
        """Say of each line whether training has seen it, reading the training lines once."""
        texts = [letters(line) for line in lines]
        wanted = _Wanted(dict.fromkeys(texts), self.threshold)
        for line in self._lines:
            wanted.compare(letters(line))
        return [text in wanted.seen for text in texts]


class _Wanted:
    """Lines that are looked for among others.

    Attributes:
        seen: those that were found.
    """

    def __init__(self, texts: Iterable[str], threshold: float) -> None:
        self.seen: set[str] = set()
        self._threshold = threshold
        self._sets = {text: shingles(text) for text in texts}
        self._counts = Counter(gram for members in self._sets.values() for gram in members)
        self._holders: dict[str, list[str]] = defaultdict(list)
        for text, members in self._sets.items() if threshold < 1 else ():
            for gram in self._rarest(members):
                self._holders[gram].append(text)

    def _needed(self, members: frozenset[str]) -> int:
        """Return how many members a set that overlaps enough must share."""
        # The small subtraction keeps a product such as 0.55 * 20 = 11.000000000000002 at 11.
        return ceil(self._threshold * len(members) - 1e-9)

    def _rarest(self, members: frozenset[str]) -> list[str]:
        """Return the rarest members, as many as the search needs."""
        needed = self._needed(members)
        ordered = sorted(members, key=lambda gram: (self._counts[gram], gram))
        return ordered[: len(members) - needed + min(_FEWEST_SHARED, needed)]

    def compare(self, text: str) -> None:
        """Note which of the wanted lines this one is, or nearly is."""
        if text in self._sets:
            self.seen.add(text)
        if self._threshold >= 1:
            return
        members = shingles(text)
        needed = self._needed(members)
        if sum(gram in self._counts for gram in members) < needed:
            return
        shared = Counter(
            other for gram in self._rarest(members) for other in self._holders.get(gram, ())
        )
        for other, count in shared.items():
            others = self._sets[other]
            if (
                count >= min(_FEWEST_SHARED, needed, self._needed(others))
                and other not in self.seen
                and len(members & others) >= self._threshold * len(members | others) - 1e-9
            ):
                self.seen.add(other)
