"""Words of a translation, each with the source word that it is aligned to.

A protected text, which is not translated, is one word. It stands in the translation once: where the
model wrote it, or else in the place that the alignment gives it.
"""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from relu_nmt.applications.files.segments import Protected, Segment, Span
from relu_nmt.translation.search.symbol_texts import WITHOUT_SPACES

Link = tuple[Span, Span]  # a source word, and the target word that it is aligned to
_MARKS = "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0900-\u0dff\u200c\u200d"
"""Marks that belong to the letter before them."""
# In scripts without spaces between words, a tag may stand between any two letters.
_UNSPACED = WITHOUT_SPACES.pattern
_LETTER = rf"(?:(?!{_UNSPACED})[\w{_MARKS}])"
_WORD = re.compile(rf"{_UNSPACED}|{_LETTER}+(?:[-'’‑·.]{_LETTER}+)*|\S")
# Scores of a word in a run. It is aligned to the tag's words, to other words or to no word, or it
# is not allowed.
INSIDE = 1.0
ELSEWHERE = -1.0
UNKNOWN = -0.3
BLOCKED = float("-inf")


@dataclass(frozen=True)
class AlignedText:
    """A translated text with the links of its words to words of the source."""

    text: str
    links: Sequence[Link] = ()


@dataclass
class Word:
    """A word or mark of a translation."""

    before: str  # white space in front of the word
    text: str
    source: int | None = None  # number of its source word. None: unknown.
    protected: Protected | None = None  # the text that it stands for, if that is not translated


def word_spans(text: str, protected: Iterable[Span] = ()) -> list[Span]:
    """Return the places of words and marks. Each protected text is one word.

    Example:
        >>> word_spans("Ein T-Shirt.")
        [(0, 3), (4, 11), (11, 12)]
    """
    spans = []
    position = 0
    for begin, end in protected:
        spans += [match.span() for match in _WORD.finditer(text, position, begin)]
        spans.append((begin, end))
        position = end
    return spans + [match.span() for match in _WORD.finditer(text, position)]


def literal_pattern(text: str, around: Sequence[str] = ("", "")) -> str:
    """Return a pattern that finds a text, but not as part of a longer word.

    ``around`` are the characters before and behind the text in the source. On a side with a letter,
    the text may be part of a word, such as the code in ``<code>dict</code>s``.
    """
    before = r"(?<!\w)" if text[0].isalnum() and not around[0].isalnum() else ""
    behind = r"(?!\w)" if text[-1].isalnum() and not around[1].isalnum() else ""
    return before + re.escape(text) + behind


def source_spans(segment: Segment) -> list[Span]:
    """Return the places of the words of a segment. Each protected text is one word."""
    return word_spans(segment.text, (entry.span for entry in segment.protected))


def proportional_links(source: str, target: str) -> list[Link]:
    """Link words at the same share of all words, and marks at the same share of all marks.

    For models whose attention has no weights.
    """
    links = []
    for are_marks in (False, True):
        source_spans = _words_or_marks(source, are_marks)
        target_spans = _words_or_marks(target, are_marks)
        if source_spans:
            for number, span in enumerate(target_spans):
                links.append((source_spans[number * len(source_spans) // len(target_spans)], span))
    return sorted(links, key=lambda link: link[1])


def _words_or_marks(text: str, are_marks: bool) -> list[Span]:
    return [span for span in word_spans(text) if _is_mark(text[slice(*span)]) == are_marks]


def aligned_words(segment: Segment, translation: AlignedText) -> list[Word]:
    """Return the words of a translation, with their source words and each protected text once."""
    source = source_spans(segment)
    target = _target_spans(segment, translation.text)
    # A mark, such as a full stop, does not stand for a word, nor a word for a mark. A protected
    # symbol may, as "&" stands for "and".
    protected = {entry.span for entry in segment.protected}
    protected_texts = {segment.text[slice(*span)] for span in protected}
    marks = {span for span in source if _is_mark(segment.text[slice(*span)])}
    # Let each link vote for the source word of a target word.
    votes: list[Counter[int]] = [Counter() for _ in target]
    for source_span, target_span in translation.links:
        for number in _overlapping(target, target_span):
            begin, end = target[number]
            text = translation.text[begin:end]
            is_mark = _is_mark(text)
            is_symbol = is_mark and text in protected_texts
            for source_number in _overlapping(source, source_span):
                word_span = source[source_number]
                is_same_kind = (word_span in marks) == is_mark
                if is_same_kind or is_symbol or word_span in protected:
                    votes[number][source_number] += 1
    words = []
    position = 0
    for (begin, end), counts in zip(target, votes, strict=True):
        word = Word(translation.text[position:begin], translation.text[begin:end])
        if counts:
            [(word.source, _)] = counts.most_common(1)
        words.append(word)
        position = end
    return _with_protected(segment, source, words)


def _target_spans(segment: Segment, text: str) -> list[Span]:
    """Return the places of the words of a translation. Each protected text is one word."""
    patterns: dict[str, None] = {}
    for entry in sorted(segment.protected, key=lambda entry: entry.begin - entry.end):
        around = segment.text[: entry.begin][-1:], segment.text[entry.end :][:1]
        pattern = literal_pattern(segment.text[slice(*entry.span)], around)
        patterns[pattern] = None
    pattern = "|".join(patterns) or "(?!)"
    return word_spans(text, (match.span() for match in re.finditer(pattern, text)))


def _overlapping(spans: Sequence[Span], span: Span) -> range:
    """Return the numbers of the sorted spans that overlap a span."""
    begin, end = span
    first = bisect_left(spans, (begin, begin))
    if first and spans[first - 1][1] > begin:
        first -= 1
    return range(first, max(first, bisect_left(spans, (end, end))))


def _with_protected(segment: Segment, source: Sequence[Span], words: Sequence[Word]) -> list[Word]:
    """Return the words with each protected text once: keep it, copy it, or drop further copies."""
    entries_by_text: dict[str, list[Word]] = defaultdict(list)
    for entry in segment.protected:
        text = segment.text[slice(*entry.span)]
        number = bisect_left(source, entry.span)
        entries_by_text[text].append(Word(" ", text, number, entry))
    numbers_by_text: dict[str, list[int]] = defaultdict(list)
    for number, word in enumerate(words):
        numbers_by_text[word.text].append(number)
    sources_of_none: set[int | None] = {None}
    for entries in entries_by_text.values():
        sources_of_none.update(entry.source for entry in entries)
    kept: dict[int, Word] = {}
    missing: list[Word] = []
    left_out: set[int] = set()
    for text, entries in entries_by_text.items():
        ordinary = _ordinary_words(segment, source, text)
        kept_here, missing_here = _kept_words(entries, numbers_by_text[text], words, ordinary)
        kept |= kept_here
        missing += missing_here
        # Drop further copies, except ordinary words and translations of other words.
        further = [number for number in numbers_by_text[text] if number not in kept_here]
        num_ordinary = len(ordinary)
        if text.isalpha() or len(text) == 1:
            unexplained = [n for n in further if words[n].source in sources_of_none]
            num_ordinary = max(0, num_ordinary - (len(further) - len(unexplained)))
            further = unexplained
        left_out.update(further[num_ordinary:])
    remaining = []
    for number, word in enumerate(words):
        if number in kept:
            kept[number].before = word.before
        if number not in left_out:
            remaining.append(kept.get(number, word))
    for entry_word in missing:
        _copy_protected(remaining, entry_word, segment.text, len(source))
    return remaining


def _kept_words(
    entries: Sequence[Word], numbers: Sequence[int], words: Sequence[Word], ordinary: set[int]
) -> tuple[dict[int, Word], list[Word]]:
    """Return which of the words with these numbers stand for protected texts, and missing texts.

    The ``entries`` are protected texts of one spelling, which the words share. Words that are
    aligned to an entry come first, then words that stand for no ordinary source word.
    """
    kept: dict[int, Word] = {}
    missing = list(entries)
    for is_aligned in (True, False):
        for entry in list(missing):
            for number in numbers:
                source = words[number].source
                fits = source == entry.source or (not is_aligned and source not in ordinary)
                if fits and number not in kept:
                    kept[number] = entry
                    missing.remove(entry)
                    break
    return kept, missing


def _ordinary_words(segment: Segment, source: Sequence[Span], text: str) -> set[int]:
    """Return the numbers of the source words with this text that are not protected."""
    protected = [entry.span for entry in segment.protected]
    ordinary: set[int] = set()
    for match in re.finditer(literal_pattern(text), segment.text):
        if not _overlapping(protected, match.span()):
            ordinary.update(_overlapping(source, match.span()))
    return ordinary


def _copy_protected(words: list[Word], copied: Word, source: str, num_source: int) -> None:
    """Put a protected text in place of its aligned words, or else at :func:`gap_before`.

    In a gap it touches marks as it does in the source, and words of scripts without spaces.
    """
    assert copied.source is not None and copied.protected is not None
    scores = []
    for word in words:
        # A mark does not stand for a protected text with letters.
        is_other_mark = _is_mark(word.text) and word.text not in copied.text
        if word.protected:
            scores.append(BLOCKED)
        elif word.source is None or (is_other_mark and not _is_mark(copied.text)):
            scores.append(UNKNOWN)
        else:
            scores.append(INSIDE if word.source == copied.source else ELSEWHERE)
    begin, end = best_run(scores)
    if begin < end:
        copied.before = words[begin].before
        words[begin:end] = [copied]
        return
    gap = gap_before(places_by_source(words), range(len(words)), copied.source, num_source)
    if gap > 0:
        last = words[gap - 1].text
        before = source[: copied.protected.begin][-1:]
        if (_is_mark(before) and _is_mark(last)) or re.search(rf"{_UNSPACED}\Z", last):
            copied.before = ""
    if gap < len(words):
        following = words[gap]
        behind = source[copied.protected.end :][:1]
        if _is_mark(behind) and _is_mark(following.text):
            following.before = ""
        elif gap == 0:
            following.before = following.before or " "
    words.insert(gap, copied)


def _is_mark(text: str) -> bool:
    """Return True for a text with neither a letter nor a digit, other than a space."""
    return text.strip() != "" and not any(map(str.isalnum, text))


def best_run(scores: Sequence[float]) -> tuple[int, int]:
    """Return begin and end of the run with the highest sum, (0, 0) if no sum is above 0.

    Example:
        >>> best_run([-1, 1, -0.5, 1, -1])
        (1, 4)
    """
    best = (0, 0)
    best_sum = 0.0
    begin = 0
    total = 0.0
    for number, score in enumerate(scores):
        if total <= 0:
            begin = number
            total = 0.0
        total += score
        if total > best_sum:
            best = begin, number + 1
            best_sum = total
    return best


def places_by_source(words: Sequence[Word]) -> dict[int | None, list[int]]:
    """Return the numbers of the words that are aligned to each source word."""
    places: dict[int | None, list[int]] = defaultdict(list)
    for number, word in enumerate(words):
        places[word.source].append(number)
    return places


def gap_before(
    places: Mapping[int | None, Sequence[int]],
    run: range,
    source: int,
    num_source: int,
    is_behind: bool = False,
) -> int:
    """Return the number of the word before which to put a tag that preceded a source word.

    The tag goes before the first word that is aligned to the source word. If there is none, it goes
    behind the last word aligned to the previous source word, or else to its share of the text. With
    ``is_behind`` the previous source word is tried first. ``run`` are the allowed words, and
    ``places`` the words of each source word.
    """
    before = [number for number in places.get(source, ()) if number in run]
    behind = [number + 1 for number in places.get(source - 1, ()) if number in run]
    if behind and (is_behind or not before):
        return behind[-1]
    if before:
        return before[0]
    return run.start + round(len(run) * source / max(1, num_source))
