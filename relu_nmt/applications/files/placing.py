"""Inline markup of a translation: tags and protected texts placed by the alignment of words.

A translation is a list of words, each with the number of the source word that it stands for. A pair
of tags goes around the run of words that agrees best with the words of its source. An empty tag
goes before the word that it preceded. No tag is placed within a word, unless the word was kept with
the tags in it, such as H<sub>2</sub>O. Pairs nest as they did.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
# Scores of a word in a run: aligned to the tag's words, to other words, to none, and not allowed.
INSIDE = 1.0
ELSEWHERE = -1.0
UNKNOWN = -0.3
BLOCKED = float("-inf")


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
    """A tag of a translation around ``words[begin:end]``, or before or inside ``words[begin]``."""

    tag: Tag
    begin: int
    end: int
    children: list["Placed"] = field(default_factory=list)
    is_inside: bool = False


def word_spans(text: str) -> list[Span]:
    """Return the places of words and marks.

    Example:
        >>> word_spans("Ein T-Shirt.")
        [(0, 3), (4, 11), (11, 12)]
    """
    return _words_around(text, [])


def literal_pattern(text: str, around: Sequence[str] = ("", "")) -> str:
    """Return a pattern of a text that is no part of a longer word.

    ``around`` are the characters before and behind it in the source. Where one of them is a letter,
    the text may be part of a word, such as the code in ``<code>dict</code>s``.
    """
    before = r"(?<!\w)" if text[0].isalnum() and not around[0].isalnum() else ""
    behind = r"(?!\w)" if text[-1].isalnum() and not around[1].isalnum() else ""
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
    if not source_words:
        return []
    links = []
    for number, word in enumerate(target_words):
        links.append((source_words[number * len(source_words) // len(target_words)], word))
    return links


def aligned_words(segment: Segment, translation: Translation) -> list[Word]:
    """Return the words of a translation, with their source words and each protected text once."""
    source = source_spans(segment)
    target = _target_spans(segment, translation.text)
    # Let each link vote for the source word of a target word.
    votes: list[Counter[int]] = [Counter() for _ in target]
    for source_span, target_span in translation.links:
        for number in _overlapping(target, target_span):
            votes[number].update(_overlapping(source, source_span))
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
        pattern = literal_pattern(segment.text[entry.begin : entry.end], around)
        patterns[pattern] = None
    if not patterns:
        return _words_around(text, [])
    return _words_around(text, [match.span() for match in re.finditer("|".join(patterns), text)])


def _overlapping(spans: Sequence[Span], span: Span) -> range:
    """Return the numbers of the sorted spans that overlap a span."""
    begin, end = span
    first = bisect_left(spans, (begin, begin))
    if first and spans[first - 1][1] > begin:
        first -= 1
    return range(first, max(first, bisect_left(spans, (end, end))))


def _with_protected(segment: Segment, source: Sequence[Span], words: Sequence[Word]) -> list[Word]:
    """Return the words with each protected text of the source once: kept, copied or left out."""
    entries: dict[str, list[Word]] = defaultdict(list)
    for entry in segment.protected:
        text = segment.text[entry.begin : entry.end]
        number = bisect_left(source, (entry.begin, entry.end))
        entries[text].append(Word(" ", text, number, entry))
    places: dict[str, list[int]] = defaultdict(list)
    for place, word in enumerate(words):
        places[word.text].append(place)
    kept: dict[int, Word] = {}
    missing = []
    left_out: set[int] = set()
    for text, waiting in entries.items():
        free = places[text]
        ordinary = _ordinary_words(segment, source, text)
        unsure = []
        for entry_word in waiting:
            aligned = [place for place in free if words[place].source == entry_word.source]
            if aligned:
                kept[aligned[0]] = entry_word
                free.remove(aligned[0])
            else:
                unsure.append(entry_word)
        for entry_word in unsure:
            likely = [place for place in free if words[place].source not in ordinary]
            if likely:
                kept[likely[0]] = entry_word
                free.remove(likely[0])
            else:
                missing.append(entry_word)
        # The same text may also be an ordinary word. More of them are too many.
        left_out.update(free[len(ordinary) :])
    remaining = []
    for place, word in enumerate(words):
        if place in kept:
            kept[place].before = word.before
        if place not in left_out:
            remaining.append(kept.get(place, word))
    for entry_word in missing:
        _copy_protected(remaining, entry_word, len(source))
    return remaining


def _ordinary_words(segment: Segment, source: Sequence[Span], text: str) -> set[int]:
    """Return the numbers of the source words with a text that is protected only elsewhere."""
    protected = [(entry.begin, entry.end) for entry in segment.protected]
    ordinary: set[int] = set()
    for match in re.finditer(literal_pattern(text), segment.text):
        if not _overlapping(protected, match.span()):
            ordinary.update(_overlapping(source, match.span()))
    return ordinary


def _copy_protected(words: list[Word], copied: Word, num_source: int) -> None:
    """Put a protected text in place of the words aligned to it, or behind the word before it."""
    assert copied.source is not None
    scores = []
    for word in words:
        if word.protected:
            scores.append(BLOCKED)
        elif word.source is None:
            scores.append(UNKNOWN)
        else:
            scores.append(INSIDE if word.source == copied.source else ELSEWHERE)
    begin, end = best_run(scores)
    if begin == end:
        begin = end = gap_before(
            places_by_source(words), range(len(words)), copied.source, num_source
        )
    if begin < len(words):
        copied.before = words[begin].before
    if begin == end == 0 and words:
        words[0].before = words[0].before or " "
    words[begin:end] = [copied]


# ------------------------------------------------------------------------- runs of tags


def best_run(scores: Sequence[float]) -> tuple[int, int]:
    """Return begin and end of the shortest run with the highest sum, (0, 0) if none is above 0.

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
    """Return the number of the word before which a tag stands that preceded a source word.

    Without an aligned word the tag stands behind the source word before it, or else at its share
    of the text. With ``is_behind`` that word comes first. ``run`` are the words around the tag, and
    ``places`` the words of each source word.
    """
    before = [number for number in places.get(source, ()) if number in run]
    behind = [number + 1 for number in places.get(source - 1, ()) if number in run]
    if behind and (is_behind or not before):
        return behind[-1]
    if before:
        return before[0]
    return run.start + round(len(run) * source / max(1, num_source))


def placed_tags(segment: Segment, words: Sequence[Word]) -> list[Placed]:
    """Return the runs of all tags of a segment in its translation."""
    spans = source_spans(segment)
    placer = _Placer(spans, words, segment.text)
    return placer.place(segment.tags, range(len(spans)), range(len(words)))


class _Placer:
    """Places tags around the words of a translation, from outer tags to inner ones."""

    def __init__(self, spans: Sequence[Span], words: Sequence[Word], text: str) -> None:
        self._spans = spans
        self._begins = [begin for begin, _ in spans]
        self._middles = [(begin + end) / 2 for begin, end in spans]
        self._words = words
        self._places = places_by_source(words)
        self._text = text

    def place(self, tags: Sequence[Tag], inside: range, allowed: range) -> list[Placed]:
        """Return the runs of sibling tags.

        ``inside`` are the source words of the tag around them, ``allowed`` its run of words.
        """
        free = list(allowed)
        pairs: list[Placed] = []
        empties = []
        kept: list[int] = []
        # Place tags inside words last, since a pair around one of these words takes it.
        for tag in sorted(tags, key=lambda tag: self._word_around(tag, allowed) is not None):
            number = self._word_around(tag, [*kept, *free])
            if number is not None:
                pairs.append(Placed(tag, number, number, is_inside=True))
                kept.append(number)
                free = [other for other in free if other != number]
                continue
            source = self._source_words(tag)
            if not source:
                empties.append(tag)
                continue
            runs = [allowed]
            if source != inside or len(free) < len(allowed):
                runs = self._runs(tag, source, free) or [self._share(source, inside, allowed, free)]
            pairs.append(self._pair(tag, source, runs[0]))
            for run in runs[1:]:
                pairs.append(Placed(tag, run.start, run.stop))
            for run in runs:
                free = [number for number in free if number not in run]
        return pairs + [self._empty(tag, inside, allowed, pairs) for tag in empties]

    def _source_words(self, tag: Tag) -> range:
        """Return the numbers of the words of a tag: the whole word for a part of a word."""
        first = bisect_left(self._middles, tag.begin)
        words = range(first, bisect_left(self._middles, tag.end))
        if not words and self._text[tag.begin : tag.end].strip():
            first = max(0, bisect_right(self._begins, tag.begin) - 1)
            words = range(first, first + 1)
        return words

    def _word_around(self, tag: Tag, allowed: Iterable[int]) -> int | None:
        """Return the word that has a tag inside, such as H<sub>2</sub>O, if it was kept."""
        source = bisect_right(self._begins, tag.begin) - 1
        if source < 0:
            return None
        begin, end = self._spans[source]
        is_at_edge = (tag.begin, tag.end) in ((begin, begin), (begin, end), (end, end))
        if tag.end > end or is_at_edge:
            return None
        for number in allowed:
            word = self._words[number]
            if word.source == source and word.text == self._text[begin:end]:
                return number
        return None

    def _runs(self, tag: Tag, source: range, free: Sequence[int]) -> list[range]:
        """Return the runs of a pair that are aligned to it: one, or several if it may repeat."""
        scores = [BLOCKED] * len(self._words)
        for number in free:
            scores[number] = self._score(self._words[number], source)
        runs: list[range] = []
        # A pair that has fewer words than it had may have other ones elsewhere.
        missing = len(source)
        while missing > 0 and (tag.repeats or not runs):
            begin, end = best_run(scores)
            if begin == end or (runs and max(scores[begin:end]) < INSIDE):
                break
            runs.append(range(begin, end))
            scores[begin:end] = [BLOCKED] * (end - begin)
            missing -= end - begin
        return runs

    def _score(self, word: Word, source: range) -> float:
        if word.source is None:
            return UNKNOWN
        # Marks and short words decide less, since the alignment of such words is less sure.
        weight = 1.0 if len(word.text) > 1 else 0.5
        return weight * (INSIDE if word.source in source else ELSEWHERE)

    def _share(self, source: range, inside: range, allowed: range, free: Sequence[int]) -> range:
        """Return the word at the tag's share of the text, for a tag without aligned words."""
        if not free:
            return range(allowed.stop, allowed.stop)
        share = (source.start - inside.start) / max(1, len(inside))
        number = free[min(int(len(free) * share), len(free) - 1)]
        return range(number, number + 1)

    def _pair(self, tag: Tag, source: range, run: range) -> Placed:
        return Placed(tag, run.start, run.stop, self.place(tag.children, source, run))

    def _empty(self, tag: Tag, inside: range, allowed: range, siblings: Sequence[Placed]) -> Placed:
        """Return the place of a tag without words, which is not within a sibling."""
        source = bisect_left(self._begins, tag.begin)
        if source <= inside.start:
            gap = allowed.start
        elif source >= inside.stop:
            gap = allowed.stop
        else:
            is_behind = is_attached(tag, self._text)
            gap = gap_before(self._places, allowed, source, inside.stop, is_behind)
        for sibling in siblings:
            if sibling.begin < gap < sibling.end:
                gap = sibling.begin
        return self._pair(tag, range(0), range(gap, gap))


def is_attached(tag: Tag, text: str) -> bool:
    """Return True for an empty tag that touches the word before it alone, as a reference does."""
    before = text[: tag.begin][-1:]
    behind = text[tag.begin :][:1]
    return before.strip() != "" and not behind.isalnum()


# ------------------------------------------------------------------------- the marked text


def _begins_with_space(placed: Placed) -> bool:
    """Return True for a pair that begins with a tag that stands for a space."""
    for child in placed.children:
        if child.begin == placed.begin and (child.tag.is_space or _begins_with_space(child)):
            return True
    return False


@dataclass
class PlainText:
    """Text of a translation, and the style of the tag around it."""

    text: str
    style: str


def marked_parts(segment: Segment, words: Sequence[Word]) -> list[Span | PlainText]:
    """Return the words of a translation as texts, between spans of the source such as tags."""
    page = _Page(segment, words)
    page.write(placed_tags(segment, words), range(len(words)), "")
    return page.parts


class _Page:
    """The parts of a translation, which grows from left to right."""

    def __init__(self, segment: Segment, words: Sequence[Word]) -> None:
        self.parts: list[Span | PlainText] = []
        self._source_text = segment.text
        self._source_spans = source_spans(segment)
        self._words = words
        self._is_behind_space = False

    def write(self, placed: Sequence[Placed], run: range, style: str) -> None:
        """Write a run of words with the tags in it. The first word's space is written before."""
        empties = defaultdict(list)
        inside = defaultdict(list)
        pairs = {}
        for tag in placed:
            if tag.is_inside:
                inside[tag.begin].append(tag.tag)
            elif tag.begin < tag.end:
                pairs[tag.begin] = tag
            else:
                empties[tag.begin].append(tag)
        number = run.start
        while number < run.stop:
            is_spaced = number in pairs and _begins_with_space(pairs[number])
            self._write_gap(empties[number], number, run, style, is_spaced)
            if number in pairs:
                self._write_tag(pairs[number], style)
                number = pairs[number].end
            else:
                self._write_word(self._words[number], inside[number], style)
                number += 1
        self._write_gap(empties[run.stop], run.stop, run, style)

    def _write_gap(
        self,
        empties: Sequence[Placed],
        number: int,
        run: range,
        style: str,
        is_spaced: bool = False,
    ) -> None:
        """Write the empty tags before a word, and the space there, which a tag may stand for.

        With ``is_spaced`` the tag stands in the pair that begins here.
        """
        space = ""
        is_spaced = is_spaced or self._is_behind_space
        if run.start < number < run.stop and not is_spaced:
            space = self._words[number].before
        has_space = number == run.start or space != ""
        behind = []
        for placed in empties:
            if placed.tag.is_space:
                space = ""
            if placed.tag.is_space or not is_attached(placed.tag, self._source_text):
                behind.append(placed)
            else:
                self._write_tag(placed, style)
        if number > run.start and any(placed.tag.is_spaced for placed in behind):
            space = space or " "
        self._write_text(space, style)
        for placed in behind:
            self._write_tag(placed, style)
            self._is_behind_space = placed.tag.is_space
            if placed.tag.is_spaced and has_space and number < run.stop:
                self._write_text(" ", style)

    def _write_tag(self, placed: Placed, style: str) -> None:
        """Write a tag and its words."""
        self.parts += placed.tag.opening
        run = range(placed.begin, placed.end)
        self.write(placed.children, run, placed.tag.style or style)
        self.parts += placed.tag.closing

    def _write_word(self, word: Word, inside: Sequence[Tag], style: str) -> None:
        """Write a word with the tags inside it, or the source of a protected text."""
        if word.protected is not None and word.protected.source is not None:
            self.parts.append(word.protected.source)
            return
        if not inside:
            self._write_text(word.text, style)
            return
        assert word.source is not None, "the word was kept"
        self._write_letters(self._source_spans[word.source], inside, style)

    def _write_letters(self, span: Span, tags: Sequence[Tag], style: str) -> None:
        """Write characters of the source with the tags in them."""
        position, end = span
        for tag in tags:
            self._write_text(self._source_text[position : tag.begin], style)
            self.parts += tag.opening
            self._write_letters((tag.begin, tag.end), tag.children, tag.style or style)
            self.parts += tag.closing
            position = tag.end
        self._write_text(self._source_text[position:end], style)

    def _write_text(self, text: str, style: str) -> None:
        """Write text, which continues a text of the same style."""
        self._is_behind_space = self._is_behind_space and not text
        last = self.parts[-1] if self.parts else None
        if isinstance(last, PlainText) and last.style == style:
            last.text += text
        elif text:
            self.parts.append(PlainText(text, style))
