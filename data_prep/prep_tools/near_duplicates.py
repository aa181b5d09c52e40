"""Lines of a held-out set that training has seen, word for word or nearly so."""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import ceil

_NOT_WORD = re.compile(r"[^\w\s]+|_")
_DIGITS = re.compile(r"\d+")


def normalize(line: str) -> str:
    """Return the line without what may differ between copies: case, punctuation, numbers.

    Example:
        >>> normalize("See “Table 12”, page 3!")
        'see table 0 page 0'
    """
    return " ".join(_DIGITS.sub("0", _NOT_WORD.sub(" ", line.lower())).split())


def shingles(normalized: str) -> frozenset[str]:
    """Return the word pairs of a line, its ends included (so that one word gives two pairs).

    A text without spaces (Chinese, Japanese) is cut into characters instead of words.
    """
    words: Sequence[str] = normalized.split()
    if len(words) <= 2 and len(normalized) > 20:
        words = normalized
    padded = ["<", *words, ">"]
    return frozenset(f"{a} {b}" for a, b in itertools.pairwise(padded))


class SeenLines:
    """The lines of one language that training has seen.

    A line counts as seen if, normalised, it equals one of them, or if its word pairs overlap
    with those of one of them by at least ``threshold`` (Jaccard: shared over all).

    The search is exact: two sets whose Jaccard index is at least t share one of the
    ``size - ceil(t * size) + 1`` rarest members of either (prefix filtering), so only the lines
    that hold one of those few are compared.

    Args:
        lines: the training lines.
        threshold: share of common word pairs from which a line counts as seen, over 0, up to 1.

    Example:
        >>> seen = SeenLines(["The dog sleeps in the old house."], threshold=0.6)
        >>> "the dog sleeps in the old houses" in seen, "A cat sleeps." in seen
        (True, False)
    """

    def __init__(self, lines: Iterable[str], threshold: float) -> None:
        self.threshold = threshold
        self._exact = {normalize(line) for line in lines}
        self._sets = [shingles(line) for line in sorted(self._exact)]
        self._counts = Counter(shingle for members in self._sets for shingle in members)
        self._holders: dict[str, list[int]] = defaultdict(list)
        for number, members in enumerate(self._sets):
            for shingle in self._rarest(members):
                self._holders[shingle].append(number)

    def _rarest(self, members: frozenset[str]) -> list[str]:
        """Return the rarest members, as many as the threshold needs."""
        ordered = sorted(members, key=lambda shingle: (self._counts[shingle], shingle))
        # The small subtraction keeps a product such as 0.55 * 20 = 11.000000000000002 at 11.
        return ordered[: len(members) - ceil(self.threshold * len(members) - 1e-9) + 1]

    def __contains__(self, line: str) -> bool:
        normalized = normalize(line)
        if normalized in self._exact:
            return True
        members = shingles(normalized)
        candidates = {
            number for shingle in self._rarest(members) for number in self._holders.get(shingle, ())
        }
        return any(
            len(members & other) >= self.threshold * len(members | other) - 1e-9
            for other in (self._sets[number] for number in candidates)
        )
