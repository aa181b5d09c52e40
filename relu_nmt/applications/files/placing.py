"""Inline markup of a translation: tags placed by the alignment of words.

A translation is a list of words, each with the number of the source word that it stands for. A pair
of tags goes around the run of words that is aligned best to the source words of the pair. An empty
tag goes before the word that it preceded. A tag is inside a word only if the source has it there
and the translation keeps the word, such as H<sub>2</sub>O. Pairs nest as in the source.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from relu_nmt.applications.files.aligned_words import (
    BLOCKED,
    ELSEWHERE,
    INSIDE,
    UNKNOWN,
    Word,
    best_run,
    gap_before,
    places_by_source,
    source_spans,
)
from relu_nmt.applications.files.segments import Segment, Span, Tag


@dataclass(frozen=True)
class Placed:
    """A tag of a translation around ``words[begin:end]``, or before or inside ``words[begin]``."""

    tag: Tag
    begin: int
    end: int
    children: list["Placed"] = field(default_factory=list)
    is_inside: bool = False


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
        # Place tags inside words last, since a pair around such a word has priority.
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
            pairs += [Placed(tag, run.start, run.stop) for run in runs[1:]]
            for run in runs:
                free = [number for number in free if number not in run]
        return pairs + [self._empty(tag, inside, allowed, pairs) for tag in empties]

    def _source_words(self, tag: Tag) -> range:
        """Return the numbers of a tag's words. A tag around part of a word gets the whole word."""
        first = bisect_left(self._middles, tag.begin)
        words = range(first, bisect_left(self._middles, tag.end))
        if not words and self._text[tag.begin : tag.end].strip():
            first = max(0, bisect_right(self._begins, tag.begin) - 1)
            words = range(first, first + 1)
        return words

    def _word_around(self, tag: Tag, allowed: Iterable[int]) -> int | None:
        """Return the kept word that has the tag inside, such as H<sub>2</sub>O. None: no word."""
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
        """Return the runs of words for a pair: one run, or several if the pair may repeat."""
        scores = [BLOCKED] * len(self._words)
        for number in free:
            scores[number] = self._score(self._words[number], source)
        runs: list[range] = []
        # While a pair has fewer words than in the source, look for a further run.
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
        # Words of one letter and marks count half, since their alignment is less certain.
        weight = 1.0 if len(word.text) > 1 else 0.5
        return weight * (INSIDE if word.source in source else ELSEWHERE)

    def _share(self, source: range, inside: range, allowed: range, free: Sequence[int]) -> range:
        """Return the word at the tag's share of the text, for a tag without aligned words.

        The run is empty if another tag already has the only word that the tag could get.
        """
        aligned = [place for place in self._places.get(source.start, ()) if place in allowed]
        if not free or (len(source) == 1 and aligned):
            gap = aligned[-1] + 1 if aligned else allowed.stop
            while gap < allowed.stop and gap not in free:
                gap += 1
            return range(gap, gap)
        share = (source.start - inside.start) / max(1, len(inside))
        number = free[min(int(len(free) * share), len(free) - 1)]
        return range(number, number + 1)

    def _pair(self, tag: Tag, source: range, run: range) -> Placed:
        return Placed(tag, run.start, run.stop, self.place(tag.children, source, run))

    def _empty(self, tag: Tag, inside: range, allowed: range, siblings: Sequence[Placed]) -> Placed:
        """Return the place of a tag without words, outside of all siblings."""
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
    """Return True for an empty tag that touches only the word before it, as a reference does."""
    before = text[: tag.begin][-1:]
    behind = text[tag.begin :][:1]
    return before.strip() != "" and not behind.isalnum() and not tag.is_spaced


# ------------------------------------------------------------------------- the marked text


@dataclass
class PlainText:
    """Text of a translation, and the style of the tag around it."""

    text: str
    style: str


def marked_parts(segment: Segment, words: Sequence[Word]) -> list[Span | PlainText]:
    """Return the words of a translation as texts, between spans of the source such as tags."""
    spans = source_spans(segment)
    placer = _Placer(spans, words, segment.text)
    placed = placer.place(segment.tags, range(len(spans)), range(len(words)))
    page = _Page(segment.text, spans, words)
    page.write(placed, range(len(words)), "")
    return page.with_spans_in_order()


class _Page:
    """The parts of a translation, which grows from left to right."""

    def __init__(self, text: str, spans: Sequence[Span], words: Sequence[Word]) -> None:
        self._parts: list[Span | PlainText | Tag] = []
        self._source_text = text
        self._source_spans = spans
        self._words = words
        self._is_behind_space = False

    def write(self, placed: Sequence[Placed], run: range, style: str) -> None:
        """Write a run of words with the tags in it, but not the space before the first word."""
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
            is_spaced = number in pairs and self._begins_with_space(pairs[number])
            self._write_gap(empties[number], number, run, style, is_spaced)
            if number in pairs:
                self._write_tag(pairs[number], style)
                number = pairs[number].end
            else:
                self._write_word(self._words[number], inside[number], style)
                number += 1
        self._write_gap(empties[run.stop], run.stop, run, style)

    def with_spans_in_order(self) -> list[Span | PlainText]:
        """Return the parts. The end of a span changes places with a later start of the span."""
        numbers = {part: n for n, part in enumerate(self._parts) if isinstance(part, Tag)}
        for end, number in numbers.items():
            start = end.start
            if start is not None and numbers.get(start, -1) > number:
                self._parts[numbers[start]] = end
                self._parts[number] = start
        parts: list[Span | PlainText] = []
        for part in self._parts:
            parts += part.opening if isinstance(part, Tag) else [part]
        return parts

    def _begins_with_space(self, placed: Placed) -> bool:
        """Return True for a pair that begins with a tag that stands for a space."""
        for child in placed.children:
            is_space = self._stands_for_space(child) or self._begins_with_space(child)
            if child.begin == placed.begin and is_space:
                return True
        return False

    def _stands_for_space(self, placed: Placed) -> bool:
        """Return True for a tag instead of a space. Words are divided only behind other markup."""
        is_behind_text = bool(self._parts) and isinstance(self._parts[-1], PlainText)
        return placed.tag.is_space and (bool(placed.tag.opening) or not is_behind_text)

    def _write_gap(
        self,
        empties: Sequence[Placed],
        number: int,
        run: range,
        style: str,
        is_spaced: bool = False,
    ) -> None:
        """Write the empty tags before a word, and the space there, unless a tag stands for it.

        With ``is_spaced`` the pair that begins here has a tag for the space.
        """
        space = ""
        is_spaced = is_spaced or self._is_behind_space
        if run.start < number < run.stop and not is_spaced:
            space = self._words[number].before
        has_space = number == run.start or space != ""
        # A tag that touches the word before, such as a reference, comes before the space.
        behind = []
        for placed in empties:
            if placed.tag.is_space or not is_attached(placed.tag, self._source_text):
                behind.append(placed)
            else:
                self._write_tag(placed, style)
        if any(map(self._stands_for_space, behind)):
            space = ""
        if number > run.start and any(placed.tag.is_spaced for placed in behind):
            space = space or " "
        self._write_text(space, style)
        for placed in behind:
            self._write_tag(placed, style)
            self._is_behind_space = placed.tag.is_space
            if placed.tag.is_spaced and has_space and number < run.stop:
                self._write_text(" ", style)

    def _write_tag(self, placed: Placed, style: str) -> None:
        self._parts += [placed.tag] if placed.tag.opening else []
        run = range(placed.begin, placed.end)
        self.write(placed.children, run, placed.tag.style or style)
        self._parts += placed.tag.closing

    def _write_word(self, word: Word, inside: Sequence[Tag], style: str) -> None:
        """Write a word with the tags inside it, or the source of a protected text."""
        if word.protected is not None and word.protected.source:
            self._parts += word.protected.source
            self._is_behind_space = False
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
            self._parts += [tag] if tag.opening else []
            self._write_letters((tag.begin, tag.end), tag.children, tag.style or style)
            self._parts += tag.closing
            position = tag.end
        self._write_text(self._source_text[position:end], style)

    def _write_text(self, text: str, style: str) -> None:
        """Write text. It continues the last text if this has the same style."""
        self._is_behind_space = self._is_behind_space and not text
        last = self._parts[-1] if self._parts else None
        if isinstance(last, PlainText) and last.style == style:
            last.text += text
        elif text:
            self._parts.append(PlainText(text, style))
