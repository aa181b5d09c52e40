"""Where the tokens of a line stand in its text."""

import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from relu_nmt.tokenization.pipeline import TextPipeline

WINDOW = 16
"""Letters, of text and tokens together, that are left out at once where both differ."""


class Span(NamedTuple):
    """Characters ``begin`` to ``end - 1`` of a text; none if both are the same."""

    begin: int
    end: int


def token_spans(text: str, tokens: Sequence[str], pipeline: TextPipeline) -> list[Span]:
    """Return where each token stands in the text, in time that grows with the length of both.

    Both are read once, side by side. Spaces, case, compatibility forms and invisible characters
    make no difference, nor do marks of subwords and escapes. A token that is not found gets the
    text between its neighbours. A symbol of the model gets nothing.

    Args:
        text: a line.
        tokens: the tokens that the pipeline makes of it.
        pipeline: the text steps.

    Example:
        >>> text, moses = "Don't  go.", TextPipeline("en", "moses", lowercase=True)
        >>> spans = token_spans(text, moses.encode(text), moses)
        >>> [text[begin:end] for begin, end in spans]
        ['Don', "'t", 'go', '.']
    """
    pieces = pipeline.letters(tokens)
    places = [
        (letter, place)
        for place, written in enumerate(pipeline.written(text))
        for character in written
        for letter in folded(character)
    ]
    owners = [
        (letter, index)
        for index, piece in enumerate(pieces)
        for character in piece or ""
        for letter in folded(character)
    ]
    found: dict[int, Span] = {}
    for i, j in _same("".join(p[0] for p in places), "".join(o[0] for o in owners)):
        place, index = places[i][1], owners[j][1]
        found[index] = Span(found[index].begin if index in found else place, place + 1)
    _widen(text, pieces, found)
    return _all_spans(text, pieces, found)


@lru_cache(maxsize=2**16)
def folded(character: str) -> str:
    """Return a character without case and compatibility form; nothing if it is invisible."""
    plain = unicodedata.normalize("NFKD", character).casefold()
    letters = unicodedata.normalize("NFKD", plain)
    return "".join(c for c in letters if unicodedata.category(c) not in ("Cc", "Cf", "Zs"))


def _same(written: str, read: str) -> Iterator[tuple[int, int]]:
    """Yield the indices of equal letters; where both differ, the fewest are left out."""
    i = j = 0
    while i < len(written) and j < len(read):
        if written[i] == read[j]:
            yield i, j
            i, j = i + 1, j + 1
        else:
            i, j = next(_meetings(written, read, i, j), (i + 1, j + 1))


def _meetings(written: str, read: str, i: int, j: int) -> Iterator[tuple[int, int]]:
    """Yield the next places where three letters are equal, or else one, the nearest first."""
    for run in (3, 1):
        for skipped in range(1, WINDOW + 1):
            for there in range(j, j + skipped + 1):
                here = i + skipped - (there - j)
                letters = written[here : here + run]
                if len(letters) == run and letters == read[there : there + run]:
                    yield here, there


def _widen(text: str, pieces: Sequence[str | None], found: dict[int, Span]) -> None:
    """Give tokens what stands next to them and belongs to no other, such as invisible letters."""
    missing = [0]  # tokens that were not found, up to each
    for index, piece in enumerate(pieces):
        missing.append(missing[-1] + (bool(piece) and index not in found))
    for before, behind in pairwise([None, *found, None]):
        first = 0 if before is None else before + 1
        if missing[len(pieces) if behind is None else behind] > missing[first]:
            continue
        begin = 0 if before is None else found[before].end
        end = len(text) if behind is None else found[behind].begin
        gap = text[begin:end]
        words = gap.split()
        if before is not None and words and gap.startswith(words[0]):
            found[before] = found[before]._replace(end=begin + len(words.pop(0)))
        if behind is not None and words and gap.endswith(words[-1]):
            found[behind] = found[behind]._replace(begin=end - len(words[-1]))


def _all_spans(text: str, pieces: Sequence[str | None], found: dict[int, Span]) -> list[Span]:
    """Return a span for each token; one that was not found gets what lies between its neighbours.

    A token without letters gets nothing, and a further byte of a character what the first has.
    """
    behind = [len(text)]
    for index in reversed(range(len(pieces))):
        behind.append(found[index].begin if index in found else behind[-1])
    behind.reverse()
    spans: list[Span] = []
    between: dict[int, Span] = {}
    last = 0
    for index, piece in enumerate(pieces):
        begin = min(last, behind[index + 1])
        if index in found:
            spans.append(found[index])
            last = found[index].end
        elif piece is None and spans:
            spans.append(spans[-1])
        elif not piece:
            begin = max(begin, spans[-1].begin) if spans else begin
            spans.append(Span(begin, begin))
        else:
            if begin not in between:
                between[begin] = _stripped(text, begin, behind[index + 1])
            spans.append(between[begin])
    return spans


def _stripped(text: str, begin: int, end: int) -> Span:
    """Return a part of the text without the spaces around it; at least its begin."""
    inner = text[begin:end].lstrip()
    if not inner:
        return Span(begin, begin)
    begin = end - len(inner)
    return Span(begin, begin + len(inner.rstrip()))
