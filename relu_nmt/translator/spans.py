"""Spans of tokens and words in their text, and the aligned words of a line."""

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.search.symbol_texts import WITHOUT_SPACES

WINDOW = 16  # most letters to skip at once, of text and tokens together, where they differ
Span = tuple[int, int]  # characters ``begin`` to ``end - 1`` of a text. Empty if ``begin == end``.
WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")
"""A word of letters and digits, with apostrophes and hyphens inside, or another character."""


@dataclass(frozen=True)
class WordAlignment:
    """The words of a line and of its translation, without white space, and the aligned pairs."""

    source: list[Span]  # characters of each word of the line, in order
    target: list[Span]  # characters of each word of the translation, in order
    links: list[tuple[int, int]]  # numbers of a source word and a target word that align


def align_words(
    source: tuple[str, Sequence[Span]], target: tuple[str, Sequence[Span]], alignment: np.ndarray
) -> WordAlignment:
    """Return the words of two texts, and the pairs of words with aligned tokens.

    ``source`` and ``target`` are a text and the span of each of its tokens. ``alignment`` [T] int64
    is the source token of each target token. A number outside the source aligns with nothing.
    """
    source_text, source_spans = source
    target_text, target_spans = target
    source_words = word_spans(source_text, source_spans)
    target_words = word_spans(target_text, target_spans)
    source_numbers = _numbers_of_characters(source_text, source_words)
    target_numbers = _numbers_of_characters(target_text, target_words)
    links: set[tuple[int, int]] = set()
    for (begin, end), position in zip(target_spans, alignment.tolist(), strict=True):
        if not 0 <= position < len(source_spans):
            continue
        source_begin, source_end = source_spans[position]
        read = set(source_numbers[source_begin:source_end]) - {-1}
        written = set(target_numbers[begin:end]) - {-1}
        links.update(itertools.product(read, written))
    return WordAlignment(source_words, target_words, sorted(links))


def word_spans(text: str, tokens: Iterable[Span] = ()) -> list[Span]:
    """Return the span of each word. Text of a script without spaces is cut at the tokens.

    Example:
        >>> text = "I don't, 你好吗"
        >>> [text[begin:end] for begin, end in word_spans(text, [(9, 11), (11, 12)])]
        ['I', "don't", ',', '你好', '吗']
    """
    # Treat accents and invisible joiners as letters, since they are parts of words.
    letters = ""
    for character in text:
        is_part = unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf")
        letters += "x" if is_part else character
    begins = sorted({begin for begin, _ in tokens})
    words: list[Span] = []
    for match in WORD.finditer(letters):
        begin, end = match.span()
        cuts = [begin, end]
        if WITHOUT_SPACES.search(text, begin, end):
            cuts[1:1] = [cut for cut in begins if begin < cut < end]
        words += pairwise(cuts)
    return words


def _numbers_of_characters(text: str, words: Sequence[Span]) -> list[int]:
    """Return the number of each character's word, -1 for white space."""
    numbers = [-1] * len(text)
    for number, (begin, end) in enumerate(words):
        numbers[begin:end] = [number] * (end - begin)
    return numbers


def token_spans(text: str, tokens: Sequence[str], pipeline: TextPipeline) -> list[Span]:
    """Return the span of each token in the text, in time linear in the length of both.

    Text and tokens are read once, side by side. Spaces, case, compatibility forms, invisible
    characters, marks of subwords and escapes make no difference. A token that is not found gets
    the text between the spans of its neighbors. A symbol of the model gets an empty span.

    Example:
        >>> text, moses = "Don't  go.", TextPipeline("en", "moses", lowercase=True)
        >>> spans = token_spans(text, moses.encode(text), moses)
        >>> [text[begin:end] for begin, end in spans]
        ['Don', "'t", 'go', '.']
    """
    # List the letters of the text with their positions, and the letters of tokens with indices.
    pieces = pipeline.characters_of_tokens(tokens)
    text_letters, positions = _letters(pipeline.characters_of_text(text))
    token_letters, indices = _letters(pieces)
    # Match the letters, and give each token the positions of its letters.
    spans: dict[int, Span] = {}
    for i, j in _same(text_letters, token_letters):
        index = indices[j]
        position = positions[i]
        begin = spans[index][0] if index in spans else position
        spans[index] = (begin, position + 1)
    # Give every token a span. Tokens with letters in the text also get adjacent text.
    return _all_spans(text, pieces, spans)


def _letters(texts: Iterable[str | None]) -> tuple[str, list[int]]:
    """Return the folded letters of all texts, and the number of the text for each letter."""
    letters: list[str] = []
    numbers: list[int] = []
    for number, text in enumerate(texts):
        for letter in itertools.chain.from_iterable(map(folded, text or "")):
            letters.append(letter)
            numbers.append(number)
    return "".join(letters), numbers


@lru_cache(maxsize=2**16)
def folded(character: str) -> str:
    """Return a character in lower case and plain form. "" if it is invisible."""
    plain = unicodedata.normalize("NFKD", character).casefold()
    letters = unicodedata.normalize("NFKD", plain)
    return "".join(c for c in letters if unicodedata.category(c) not in ("Cc", "Cf", "Zs"))


def _same(written: str, read: str) -> Iterator[tuple[int, int]]:
    """Yield the indices of equal letters. Where the texts differ, skip the fewest letters."""
    i = j = 0
    while i < len(written) and j < len(read):
        after = (i + 1, j + 1)
        if written[i] == read[j]:
            yield i, j
        else:
            after = next(_meetings(written, read, i, j), after)
        i, j = after


def _meetings(written: str, read: str, i: int, j: int) -> Iterator[tuple[int, int]]:
    """Yield the next indices with three equal letters, nearest first, then with one letter."""
    # Prefer three equal letters, since single letters are often equal by chance.
    for run in (3, 1):
        for skipped in range(1, WINDOW + 1):
            for next_j in range(j, j + skipped + 1):
                next_i = i + skipped - (next_j - j)
                letters = written[next_i : next_i + run]
                if len(letters) == run and letters == read[next_j : next_j + run]:
                    yield next_i, next_j


def _all_spans(text: str, pieces: Sequence[str | None], matched: dict[int, Span]) -> list[Span]:
    """Return a span for each token: the matched one, or the text between its neighbors' spans."""
    # Both ends of the text are neighbors, too.
    matched = {-1: (0, 0), **matched, len(pieces): (len(text), len(text))}
    gaps = list(pairwise(matched))
    # If no token in a gap has text, a word that touches a matched token joins its span.
    for before, behind in gaps:
        begin = matched[before][1]
        end = matched[behind][0]
        gap = text[begin:end]
        words = [] if any(pieces[before + 1 : behind]) else gap.split()
        if before >= 0 and words and gap.startswith(words[0]):
            matched[before] = (matched[before][0], begin + len(words.pop(0)))
        if behind < len(pieces) and words and gap.endswith(words[-1]):
            matched[behind] = (end - len(words[-1]), matched[behind][1])
    # List the matched tokens and those between them.
    spans: list[Span] = []
    for before, behind in gaps:
        if before >= 0:
            spans.append(matched[before])
        # Share the text among all missing tokens, without the spaces around it.
        end = matched[behind][0]
        begin = min(matched[before][1], end)
        inner = text[begin:end].lstrip()
        first = end - len(inner) if inner else begin
        for piece in pieces[before + 1 : behind]:
            if piece:
                spans.append((first, first + len(inner.rstrip())))
            elif piece is None and spans:
                # Repeat the span of the character's first byte.
                spans.append(spans[-1])
            else:
                # Place an empty span no further left than the last token.
                position = begin
                if spans:
                    position = max(begin, spans[-1][0])
                spans.append((position, position))
    return spans
