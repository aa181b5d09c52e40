"""Inline markup of a translation: tags and protected texts placed by the alignment of words.

A translation is a list of words, each with the number of the source word that it stands for. A pair
of tags goes around the run of words that agrees best with the words of its source. An empty tag
goes before the word that it preceded. No tag is placed within a word, and pairs nest as they did.
"""

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from relu_nmt.applications.files.segments import Protected, Segment, Span, Tag

Link = tuple[Span, Span]
"""Characters of a source word and of the target word that it is aligned to."""
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Scripts without spaces between words, where a tag may stand between any two letters."""
_MARKS = "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0900-\u0dff\u200c\u200d"
"""Marks that belong to the letter before them."""
_LETTER = rf"(?:(?![{_UNSPACED}])[\w{_MARKS}])"
_WORD = re.compile(rf"[{_UNSPACED}]|{_LETTER}+(?:[-'’‑·.]{_LETTER}+)*|\S")
INSIDE, ELSEWHERE, UNKNOWN, BLOCKED = 1.0, -1.0, -0.3, float("-inf")
"""Scores of a word in a run: aligned to the tag's words, to other words, to none; not allowed."""


@dataclass(frozen=True)
class Translation:
    """A translated text with the links of its words to words of the source."""

    text: str
    links: Sequence[Link] = ()


@dataclass
class Word:
    """A word or mark of a translation.

    Args:
        before: white space in front of the word.
        text: the word.
        source: number of its source word. None: unknown.
        protected: the text of the source that the word stands for, if it is not translated.
    """

    before: str
    text: str
    source: int | None = None
    protected: Protected | None = None


@dataclass(frozen=True)
class Placed:
    """A tag of a translation around ``words[begin:end]``, or before ``words[begin]``."""

    tag: Tag
    begin: int
    end: int
    children: list["Placed"] = field(default_factory=list)


def word_spans(text: str, protected: Sequence[str] = ()) -> list[Span]:
    """Return the places of words and marks. Each protected text is one word.

    Example:
        >>> word_spans("Ein T-Shirt.")
        [(0, 3), (4, 11), (11, 12)]
    """
    pattern = "|".join(map(literal_pattern, sorted(set(protected), key=len, reverse=True)))
    literals = re.finditer(pattern, text) if pattern else ()
    return _words_around(text, [match.span() for match in literals])


def literal_pattern(text: str) -> str:
    """Return a pattern of a protected text that is no part of a longer word."""
    before = r"(?<!\w)" if text[0].isalnum() else ""
    behind = r"(?!\w)" if text[-1].isalnum() else ""
    return before + re.escape(text) + behind


def source_spans(segment: Segment) -> list[Span]:
    """Return the places of the words of a segment. Each protected text is one word."""
    return _words_around(segment.text, [(entry.begin, entry.end) for entry in segment.protected])


def _words_around(text: str, protected: Sequence[Span]) -> list[Span]:
    """Return the places of the protected texts, and of the words between them."""
    spans = []
    position = 0
    for begin, end in protected:
        spans += [match.span() for match in _WORD.finditer(text, position, begin)]
        spans.append((begin, end))
        position = end
    return spans + [match.span() for match in _WORD.finditer(text, position)]


# ------------------------------------------------------------------------- aligned words


def proportional_links(source: str, target: str) -> list[Link]:
    """Return links by position, for models whose attention has no weights."""
    source_words = word_spans(source)
    target_words = word_spans(target)
    links = []
    for number, word in enumerate(target_words):
        if source_words:
            links.append((source_words[number * len(source_words) // len(target_words)], word))
    return links


def aligned_words(segment: Segment, translation: Translation) -> list[Word]:
    """Return the words of a translation, with their source words and each protected text once."""
    source = source_spans(segment)
    protected_texts = [segment.text[entry.begin : entry.end] for entry in segment.protected]
    target = word_spans(translation.text, protected_texts)
    aligned = _aligned(source, target, translation.links)
    words = []
    position = 0
    for (begin, end), number in zip(target, aligned, strict=True):
        before = translation.text[position:begin]
        words.append(Word(before, translation.text[begin:end], number))
        position = end
    return _with_protected(segment, source, words)


def _aligned(
    source: Sequence[Span], target: Sequence[Span], links: Sequence[Link]
) -> list[int | None]:
    """Return for each target word the source word with most links to it."""
    votes: list[Counter[int]] = [Counter() for _ in target]
    for source_span, target_span in links:
        for number in _overlapping(target, target_span):
            for source_number in _overlapping(source, source_span):
                votes[number][source_number] += 1
    return [counts.most_common(1)[0][0] if counts else None for counts in votes]


def _overlapping(spans: Sequence[Span], span: Span) -> range:
    """Return the numbers of the sorted spans that overlap a span."""
    begin, end = span
    first = bisect_left(spans, (begin, begin))
    if first and spans[first - 1][1] > begin:
        first -= 1
    return range(first, max(first, bisect_left(spans, (end, end))))


def _with_protected(segment: Segment, source: Sequence[Span], words: list[Word]) -> list[Word]:
    """Return the words with each protected text of the source once: found, copied or left out."""
    texts = {segment.text[entry.begin : entry.end] for entry in segment.protected}
    waiting: dict[str, list[tuple[int, Protected]]] = {text: [] for text in texts}
    for entry in segment.protected:
        number = bisect_left(source, (entry.begin, entry.end))
        waiting[segment.text[entry.begin : entry.end]].append((number, entry))
    # Take those that the translation has. Leave out those that it has too often.
    remaining = []
    for word in words:
        if word.text in texts:
            if not waiting[word.text]:
                continue
            word.source, word.protected = waiting[word.text].pop(0)
        remaining.append(word)
    for text, runs in waiting.items():
        for number, entry in runs:
            _copy_protected(remaining, Word(" ", text, number, entry), len(source))
    return remaining


def _copy_protected(words: list[Word], copied: Word, num_source: int) -> None:
    """Put a protected text in place of the words aligned to it, or behind the word before it."""
    assert copied.source is not None
    scores = []
    for word in words:
        score = UNKNOWN if word.source is None else ELSEWHERE
        if word.source == copied.source:
            score = INSIDE
        scores.append(BLOCKED if word.protected else score)
    begin, end = best_run(scores)
    if begin == end:
        begin = end = gap_before(words, range(len(words)), copied.source, num_source)
    copied.before = words[begin].before if begin < len(words) else " "
    if begin == 0 and begin == end and words:
        words[0].before = words[0].before or " "
    words[begin:end] = [copied]


# ------------------------------------------------------------------------- runs of tags


def best_run(scores: Sequence[float]) -> tuple[int, int]:
    """Return begin and end of the shortest run with the highest sum, (0, 0) if none is above 0.

    Example:
        >>> best_run([-1, 1, -0.5, 1, -1])
        (1, 4)
    """
    best, best_sum = (0, 0), 0.0
    begin, total = 0, 0.0
    for number, score in enumerate(scores):
        if total <= 0:
            begin, total = number, 0.0
        total += score
        if total > best_sum:
            best, best_sum = (begin, number + 1), total
    return best


def gap_before(
    words: Sequence[Word], run: range, source: int, num_source: int, is_behind: bool = False
) -> int:
    """Return the number of the word before which a tag stands that preceded a source word.

    Without an aligned word the tag stands behind the source word before it, or else at its share
    of the text. With ``is_behind`` that word comes first. ``run`` are the words around the tag.
    """
    before = [number for number in run if words[number].source == source]
    behind = [number + 1 for number in run if words[number].source == source - 1]
    if behind and (is_behind or not before):
        return behind[-1]
    if before:
        return before[0]
    return run.start + round(len(run) * source / max(1, num_source))


def placed_tags(segment: Segment, words: Sequence[Word]) -> list[Placed]:
    """Return the runs of all tags of a segment in its translation."""
    spans = source_spans(segment)
    all_words = range(len(spans))
    return _Placer(spans, words, segment.text).place(segment.tags, all_words, [range(len(words))])


class _Placer:
    """Places tags around the words of a translation, from outer tags to inner ones."""

    def __init__(self, spans: Sequence[Span], words: Sequence[Word], text: str) -> None:
        self._begins = [begin for begin, _ in spans]
        self._words = words
        self._text = text

    def place(self, tags: Sequence[Tag], inside: range, allowed: Sequence[range]) -> list[Placed]:
        """Return the runs of sibling tags.

        ``inside`` are the source words of the tag around them, ``allowed`` its runs.
        """
        free = list(allowed)
        pairs: list[Placed] = []
        for tag in tags:
            if self._source_words(tag):
                placed = self._runs(tag, inside, free or [allowed[-1][len(allowed[-1]) :]])
                pairs += placed
                free = _without(free, placed)
        edges = [pair for pair in pairs if pair.begin < pair.end]
        empties = [tag for tag in tags if not self._source_words(tag)]
        return pairs + [self._empty(tag, inside, allowed, edges) for tag in empties]

    def _source_words(self, tag: Tag) -> range:
        return range(bisect_left(self._begins, tag.begin), bisect_left(self._begins, tag.end))

    def _runs(self, tag: Tag, inside: range, free: list[range]) -> list[Placed]:
        """Return the places of a pair: one run of words, or several if it may repeat."""
        source = self._source_words(tag)
        if source == inside and len(free) == 1:
            return [self._pair(tag, source, free[0])]
        scores = [BLOCKED] * len(self._words)
        for run in free:
            for number in run:
                scores[number] = self._score(self._words[number], source)
        begin, end = best_run(scores)
        if begin == end:
            return [self._pair(tag, source, self._share(source, inside, free))]
        pairs = [self._pair(tag, source, range(begin, end))]
        # A pair that has fewer words than it had may have other ones elsewhere.
        missing = len(source) - (end - begin)
        while tag.repeats and missing > 0:
            scores[begin:end] = [BLOCKED] * (end - begin)
            begin, end = best_run(scores)
            if begin == end or max(scores[begin:end]) < INSIDE:
                break
            pairs.append(Placed(tag, begin, end))
            missing -= end - begin
        return pairs

    def _score(self, word: Word, source: range) -> float:
        if word.source is None:
            return UNKNOWN
        # Marks and short words decide less than others, as their alignment is less sure.
        weight = 1.0 if len(word.text) > 1 else 0.5
        return weight * (INSIDE if word.source in source else ELSEWHERE)

    def _share(self, source: range, inside: range, free: Sequence[range]) -> range:
        """Return the word at the tag's share of the text, for a tag without aligned words."""
        numbers = [number for run in free for number in run]
        if not numbers:
            return range(free[0].start, free[0].start)
        share = (source.start - inside.start) / max(1, len(inside))
        number = numbers[min(int(len(numbers) * share), len(numbers) - 1)]
        return range(number, number + 1)

    def _pair(self, tag: Tag, source: range, run: range) -> Placed:
        return Placed(tag, run.start, run.stop, self.place(tag.children, source, [run]))

    def _empty(
        self, tag: Tag, inside: range, allowed: Sequence[range], siblings: Sequence[Placed]
    ) -> Placed:
        """Return the place of a tag without words, which is not within a sibling."""
        source = bisect_left(self._begins, tag.begin)
        run = range(allowed[0].start, allowed[-1].stop)
        if source <= inside.start:
            gap = run.start
        elif source >= inside.stop:
            gap = run.stop
        else:
            is_behind = is_attached(tag, self._text)
            gap = gap_before(self._words, run, source, inside.stop, is_behind)
        for sibling in siblings:
            if sibling.begin < gap < sibling.end:
                gap = sibling.begin
        return self._pair(tag, range(0), range(gap, gap))


def is_attached(tag: Tag, text: str) -> bool:
    """Return True for an empty tag that touches the word before it alone, as a reference does."""
    before, behind = text[: tag.begin][-1:], text[tag.begin :][:1]
    return before.strip() != "" and behind.strip() == ""


def _without(free: Sequence[range], placed_tags_before: Sequence[Placed]) -> list[range]:
    """Return runs of words without those that tags have taken."""
    runs = list(free)
    for placed in placed_tags_before:
        parts = []
        for run in runs:
            parts.append(range(run.start, min(run.stop, placed.begin)))
            parts.append(range(max(run.start, placed.end), run.stop))
        runs = [run for run in parts if len(run)]
    return runs


# ------------------------------------------------------------------------- the written markup


class Writer(ABC):
    """Writes the parts of a translation in a format."""

    @abstractmethod
    def source(self, span: Span) -> str:
        """Return a part of the source, such as a tag, with its translated attributes."""

    @abstractmethod
    def text(self, text: str, style: str) -> str:
        """Return plain text in the form of the format. ``style`` is that of the tag around it."""


def rendered(segment: Segment, translation: Translation, writer: Writer) -> str:
    """Return a translation in the form of the format, with all tags and protected texts."""
    words = aligned_words(segment, translation)
    return render_words(segment, words, writer)


def render_words(segment: Segment, words: Sequence[Word], writer: Writer) -> str:
    """Return words of a translation with the tags of a segment."""
    placed = placed_tags(segment, words)
    page = _Page(segment, words, writer)
    page.write(placed, range(len(words)), "")
    page.flush("")
    return "".join(page.parts)


class _Page:
    """The source of a translation, which grows from left to right."""

    def __init__(self, segment: Segment, words: Sequence[Word], writer: Writer) -> None:
        self.parts: list[str] = []
        self._segment = segment
        self._words = words
        self._writer = writer
        self._plain = ""

    def flush(self, style: str) -> None:
        """Write the plain text that waits for the end of its stretch."""
        if self._plain:
            self.parts.append(self._writer.text(self._plain, style))
        self._plain = ""

    def write(self, placed: Sequence[Placed], run: range, style: str) -> None:
        """Write a run of words with the tags in it. The first word's space is written before."""
        empties: dict[int, list[Placed]] = {}
        pairs: dict[int, Placed] = {}
        for tag in placed:
            if tag.begin < tag.end:
                pairs[tag.begin] = tag
            else:
                empties.setdefault(tag.begin, []).append(tag)
        number = run.start
        while number < run.stop:
            self._write_gap(empties.get(number, []), number, run, style)
            if number in pairs:
                self._write_tag(pairs[number], style)
                number = pairs[number].end
            else:
                self._write_word(self._words[number], style)
                number += 1
        self._write_gap(empties.get(run.stop, []), run.stop, run, style)

    def _write_gap(self, empties: Sequence[Placed], number: int, run: range, style: str) -> None:
        """Write the empty tags before a word, and the space there, which a tag may stand for."""
        space = self._words[number].before if run.start < number < run.stop else ""
        has_space = number == run.start or space != ""
        behind = []
        for placed in empties:
            if placed.tag.is_space:
                space = ""
            if placed.tag.is_space or not is_attached(placed.tag, self._segment.text):
                behind.append(placed)
            else:
                self._write_tag(placed, style)
        if number > run.start and any(placed.tag.is_spaced for placed in behind):
            space = space or " "
        self._plain += space
        for placed in behind:
            self._write_tag(placed, style)
            if placed.tag.is_spaced and has_space and number < run.stop:
                self._plain += " "

    def _write_tag(self, placed: Placed, style: str) -> None:
        """Write a tag and what is in it."""
        inner = placed.tag.style or style
        self._write_source(placed.tag.opening, style)
        self.write(placed.children, range(placed.begin, placed.end), inner)
        self._write_source(placed.tag.closing, inner)

    def _write_source(self, spans: Sequence[Span], style: str) -> None:
        self.flush(style)
        self.parts += map(self._writer.source, spans)

    def _write_word(self, word: Word, style: str) -> None:
        if word.protected is None or word.protected.source is None:
            self._plain += word.text
        else:
            self._write_source([word.protected.source], style)
