"""Where the tokens of a line stand in its text."""

import html
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

MARKS = ("\u2581", "@@")
"""What SentencePiece and subword-nmt add to pieces of words."""


class Span(NamedTuple):
    """Characters ``begin`` to ``end - 1`` of a text; none if both are the same."""

    begin: int
    end: int


def token_spans(text: str, tokens: Sequence[str]) -> list[Span]:
    """Return where each token stands in the text.

    Spaces, case, marks of subwords and Moses' escapes make no difference. A token that is not
    found, such as an unknown word, gets what lies between its neighbours; a symbol of the model
    gets nothing.

    Args:
        text: a line.
        tokens: the same as tokens, in order.

    Example:
        >>> text, tokens = "Don't  go.", "d@@ on &apos;t go .".split()
        >>> [text[begin:end] for begin, end in token_spans(text, tokens)]
        ['D', 'on', "'t", 'go', '.']
    """
    places = [place for place, letter in enumerate(text) if not letter.isspace()]
    pieces = [_letters(token) for token in tokens]
    owners = [index for index, piece in enumerate(pieces) for _ in piece]
    written, read = "".join(_folded(text[place]) for place in places), "".join(pieces)
    found: list[list[int]] = [[] for _ in tokens]
    for here, there, size in _matching(written, read):
        for offset in range(size):
            found[owners[there + offset]].append(places[here + offset])
    spans: list[Span | None] = [Span(own[0], own[-1] + 1) if own else None for own in found]
    return [
        span if span is not None else _between(text, spans, index)
        for index, span in enumerate(spans)
    ]


def _letters(token: str) -> str:
    """Return the token as it stands in a text, without what tokenisers add."""
    for mark in MARKS:
        token = token.removeprefix(mark).removesuffix(mark)
    return "".join(_folded(letter) for letter in html.unescape(token) if not letter.isspace())


def _folded(letter: str) -> str:
    """Return the letter in lower case, if that is one letter too."""
    lower = letter.lower()
    return lower if len(lower) == 1 else letter


def _matching(written: str, read: str) -> Sequence[tuple[int, int, int]]:
    if written == read:
        return [(0, 0, len(read))]
    return SequenceMatcher(None, written, read, autojunk=False).get_matching_blocks()


def _between(text: str, spans: Sequence[Span | None], index: int) -> Span:
    """Return what lies between the tokens around one that was not found, without its spaces."""
    before = [span.end for span in spans[:index] if span is not None]
    behind = [span.begin for span in spans[index + 1 :] if span is not None]
    begin, end = max(before, default=0), min(behind, default=len(text))
    inner = text[begin:end]
    if not inner.strip():
        return Span(begin, begin)
    begin += len(inner) - len(inner.lstrip())
    return Span(begin, begin + len(inner.strip()))
