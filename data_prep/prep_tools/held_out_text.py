"""Held-out documents in the text to train on: found by runs of words, and cut out.

The comparison uses the running text of the source side, not pairs. "Thank you." stands in every
second debate, so that removing all pairs of valid and test would punch holes into unrelated
documents. Also, a held-out document with other sentence boundaries has no pair in common with its
copy.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence

from prep_tools.documents import Document, pairs_of
from prep_tools.letters import has_letters, whole_text, words

GRAM = 8
"""Words in a row that are compared as one, or characters of a script without spaces."""
SHARE = 0.3
"""Share of the grams of the shorter document in one stretch that makes it a copy. Different
documents of the published valid set of Europarl share at most 1.6%."""
FEWEST_GRAMS = 20
"""Fewest grams of a copy, or all grams of a shorter document. Most formulas are shorter."""
ENOUGH_GRAMS = 50
"""Number of grams that always makes a copy: no formula has 57 words."""
GAP = 50
"""Most other words inside a stretch (about two sentences)."""


def _words(document: Document) -> tuple[list[str], list[int]]:
    """Return the normalized words of the source side, and the pair number of each word."""
    all_words: list[str] = []
    owners: list[int] = []
    for number, (source, _) in enumerate(document.pairs):
        of_pair = words(source)
        if of_pair and not has_letters(source):  # numbers, all of which are one word otherwise
            of_pair = whole_text(source).split()
        all_words += of_pair
        owners += [number] * len(of_pair)
    return all_words, owners


def _grams(text: Sequence[str]) -> list[int]:
    """Return hashes of the word n-grams in their order. A shorter text is one n-gram."""
    if not text:
        return []
    return [hash(tuple(text[n : n + GRAM])) for n in range(max(1, len(text) - GRAM + 1))]


@dataclasses.dataclass
class _Stretch:
    """A part of a document that a held-out document may hold.

    Attributes:
        first: position of its first gram in the document.
        last: position of its last gram.
        grams: the different grams of it that the held-out document has.
    """

    first: int
    last: int
    grams: set[int]


class HeldOutText:
    """The source text of held-out documents.

    A stretch of a document is a copy of a held-out one if the two share at least ``SHARE`` of the
    n-grams of the shorter one (and ``FEWEST_GRAMS``), or ``ENOUGH_GRAMS``. So the search finds
    copies that are a part of either document. Time is linear in the text, memory in the held-out
    text alone.

    Args:
        documents: the documents of valid and test.
    """

    def __init__(self, documents: Iterable[Document]) -> None:
        self._holders: dict[int, list[int]] = defaultdict(list)
        self._sizes: list[int] = []
        for number, document in enumerate(documents):
            grams = set(_grams(_words(document)[0]))
            self._sizes.append(len(grams))
            for gram in grams:
                self._holders[gram].append(number)

    def find(self, document: Document) -> list[tuple[int, int, int]]:
        """Return the stretches of a document that are held out.

        Returns:
            For each the number of the held-out document, the first pair that it touches, and the
            pair after the last one.
        """
        text, owners = _words(document)
        grams = _grams(text)
        stretches: dict[int, list[_Stretch]] = {}
        for position, gram in enumerate(grams):
            for holder in self._holders.get(gram, ()):
                of_holder = stretches.setdefault(holder, [])
                if not of_holder or position - of_holder[-1].last > GRAM + GAP:
                    of_holder.append(_Stretch(position, position, set()))
                of_holder[-1].last = position
                of_holder[-1].grams.add(gram)
        if not stretches:
            return []
        size = len(set(grams))
        copies = []
        for holder, of_holder in stretches.items():
            shorter = min(size, self._sizes[holder])
            needed = min(shorter, max(FEWEST_GRAMS, min(SHARE * shorter, ENOUGH_GRAMS)))
            for stretch in of_holder:
                if len(stretch.grams) >= needed:
                    end = min(stretch.last + GRAM, len(text)) - 1
                    copies.append((holder, owners[stretch.first], owners[end] + 1))
        return copies


def _pieces(document: Document, removed: set[int]) -> list[Document]:
    """Return the contiguous pieces of a document between the removed pairs."""
    pieces: list[list[tuple[str, str]]] = [[]]
    for number, pair in enumerate(document.pairs):
        if number not in removed:
            pieces[-1].append(pair)
        elif pieces[-1]:
            pieces.append([])
    return [Document(f"{document.name}/{n}", tuple(p)) for n, p in enumerate(pieces) if p]


def without_held_out(
    documents: Iterable[Document], held_out: Sequence[Document], fewest: int
) -> tuple[list[Document], dict[str, int]]:
    """Cut held-out documents out of the training documents. All others stay whole.

    A held-out stretch in the middle cuts a document in two.

    Args:
        documents: training documents.
        held_out: documents of valid and test.
        fewest: fewest pairs of a piece that is kept.

    Returns:
        The documents, and counts of found and left out documents.
    """
    text = HeldOutText(held_out)
    remaining: list[Document] = []
    found_holders: set[int] = set()
    left_out = cut = pairs = 0
    for document in documents:
        stretches = text.find(document)
        if not stretches:
            remaining.append(document)
            continue
        removed: set[int] = set()
        for holder, first, end in stretches:
            found_holders.add(holder)
            removed.update(range(first, end))
        pieces = [p for p in _pieces(document, removed) if len(p.pairs) >= fewest]
        remaining += pieces
        pairs += len(document.pairs) - len(pairs_of(pieces))
        if pieces:
            cut += 1
        else:
            left_out += 1
    return remaining, {
        "held-out documents found": len(found_holders),
        "training documents left out": left_out,
        "training documents cut": cut,
        "pairs left out": pairs,
    }
