"""The places of tokens in their text."""

import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

from relu_nmt.tokenization.pipeline import TextPipeline

WINDOW = 16
"""Most letters of text and tokens together to skip at once where they differ."""
Span = tuple[int, int]
"""Characters ``begin`` to ``end - 1`` of a text; empty if ``begin == end``."""


def token_spans(text: str, tokens: Sequence[str], pipeline: TextPipeline) -> list[Span]:
    """Return the place of each token in the text, in time linear in the length of both.

    Text and tokens are read once, side by side. Spaces, case, compatibility forms, invisible
    characters, marks of subwords and escapes make no difference. A token that is not found gets
    the text between its neighbours. A symbol of the model gets an empty span.

    Example:
        >>> text, moses = "Don't  go.", TextPipeline("en", "moses", lowercase=True)
        >>> spans = token_spans(text, moses.encode(text), moses)
        >>> [text[begin:end] for begin, end in spans]
        ['Don', "'t", 'go', '.']
    """
    # List the letters of the text with their places, and those of the tokens with their tokens.
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
    # Match the letters, and give each token the places of its letters.
    found: dict[int, Span] = {}
    for i, j in _same("".join(p[0] for p in places), "".join(o[0] for o in owners)):
        place, index = places[i][1], owners[j][1]
        found[index] = (found[index][0] if index in found else place, place + 1)
    # Give adjacent text to found tokens, then a place to every token.
    _widen(text, pieces, found)
    return _all_spans(text, pieces, found)


@lru_cache(maxsize=2**16)
def folded(character: str) -> str:
    """Return a character without case and compatibility form; "" if it is invisible."""
    plain = unicodedata.normalize("NFKD", character).casefold()
    letters = unicodedata.normalize("NFKD", plain)
    return "".join(c for c in letters if unicodedata.category(c) not in ("Cc", "Cf", "Zs"))


def _same(written: str, read: str) -> Iterator[tuple[int, int]]:
    """Yield the indices of equal letters; where the texts differ, skip the fewest letters."""
    i = j = 0
    while i < len(written) and j < len(read):
        if written[i] == read[j]:
            yield i, j
            i, j = i + 1, j + 1
        else:
            i, j = next(_meetings(written, read, i, j), (i + 1, j + 1))


def _meetings(written: str, read: str, i: int, j: int) -> Iterator[tuple[int, int]]:
    """Yield the next indices with three equal letters, nearest first; then those with one."""
    # Prefer a meeting of three letters, as single letters meet by chance.
    for run in (3, 1):
        for skipped in range(1, WINDOW + 1):
            for there in range(j, j + skipped + 1):
                here = i + skipped - (there - j)
                letters = written[here : here + run]
                if len(letters) == run and letters == read[there : there + run]:
                    yield here, there


def _widen(text: str, pieces: Sequence[str | None], found: dict[int, Span]) -> None:
    """Extend tokens by adjacent characters of no other token, such as invisible letters."""
    missing = [0]  # running count of tokens that were not found
    for index, piece in enumerate(pieces):
        missing.append(missing[-1] + (bool(piece) and index not in found))
    # Look at the text between each two found tokens, unless a missing token may own it.
    for before, behind in pairwise([None, *found, None]):
        first = 0 if before is None else before + 1
        if missing[len(pieces) if behind is None else behind] > missing[first]:
            continue
        begin = 0 if before is None else found[before][1]
        end = len(text) if behind is None else found[behind][0]
        # Words that touch a token become part of it.
        gap = text[begin:end]
        words = gap.split()
        if before is not None and words and gap.startswith(words[0]):
            found[before] = (found[before][0], begin + len(words.pop(0)))
        if behind is not None and words and gap.endswith(words[-1]):
            found[behind] = (end - len(words[-1]), found[behind][1])


def _all_spans(text: str, pieces: Sequence[str | None], found: dict[int, Span]) -> list[Span]:
    """Return a span for each token: its own, or the text between its neighbours' spans."""
    # Find the begin of the next found token behind each token.
    behind = [len(text)]
    for index in reversed(range(len(pieces))):
        behind.append(found[index][0] if index in found else behind[-1])
    behind.reverse()
    # Go through the tokens, and remember the end of the last found one.
    spans: list[Span] = []
    between: dict[int, Span] = {}
    last = 0
    for index, piece in enumerate(pieces):
        begin = min(last, behind[index + 1])
        if index in found:
            spans.append(found[index])
            last = found[index][1]
        elif piece is None and spans:
            # Repeat the span of the character's first byte.
            spans.append(spans[-1])
        elif not piece:
            # Place the empty span no further left than the last token.
            begin = max(begin, spans[-1][0]) if spans else begin
            spans.append((begin, begin))
        else:
            # Share the text between two found tokens among all missing ones.
            if begin not in between:
                # Leave out the spaces around it.
                inner = text[begin : behind[index + 1]].lstrip()
                first = behind[index + 1] - len(inner) if inner else begin
                between[begin] = (first, first + len(inner.rstrip()))
            spans.append(between[begin])
    return spans
