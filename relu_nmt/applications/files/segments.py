"""Segments: the texts of a document without their markup, and the tags at their places."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from relu_nmt.applications.files.protected import protected_spans
from relu_nmt.errors import DataError

MOST_CHARACTERS = 100_000
"""Longest segment. A longer one is no paragraph."""
MOST_TAGS = 2_000
MOST_NESTED = 50
"""Most tags within each other."""
Span = tuple[int, int]
"""Characters ``begin`` to ``end - 1`` of a text."""
_SPACE = re.compile(r"[ \t\r\n\f]+")


@dataclass(eq=False)
class Tag:
    """Markup within a segment: a pair around ``text[begin:end]``, or an empty tag at ``begin``.

    Args:
        opening: spans of the source that are the opening tag, or the whole empty tag.
        closing: spans of the source that are the closing tag.
        repeats: a pair may become several, as ``<b>`` may.
        is_space: an empty tag stands for a space, as a line break does.
        is_spaced: a tag without words has a space on both sides.
        style: what a format keeps of the tag for the text within.
        children: tags within the pair.
    """

    begin: int
    end: int
    opening: tuple[Span, ...] = ()
    closing: tuple[Span, ...] = ()
    is_pair: bool = False
    repeats: bool = False
    is_space: bool = False
    is_spaced: bool = False
    style: str = ""
    children: list["Tag"] = field(default_factory=list)


@dataclass(frozen=True)
class Protected:
    """A text within a segment that is not translated: ``text[begin:end]``.

    ``source`` is its span in the source, with the tags of a code span. None: the text itself.
    """

    begin: int
    end: int
    source: Span | None = None


@dataclass(frozen=True)
class Segment:
    """A text to translate, such as a paragraph, and what stands in it beside words.

    Args:
        text: the text with single spaces.
        span: characters of the source that a translation replaces.
        tags: inline markup in order. Tags within tags are their children.
        protected: texts that are not translated, in order.
        note: what the format remembers of the segment.
    """

    text: str
    span: Span
    tags: Sequence[Tag] = ()
    protected: Sequence[Protected] = ()
    note: Any = ""


class SegmentBuilder:
    """Collects the text and the tags of one segment in the order of the source."""

    def __init__(self) -> None:
        self._text = ""
        self._tags: list[Tag] = []
        self._open: list[tuple[str, Tag]] = []
        self._protected: list[Protected] = []
        self._spans: list[Span] = []
        self._num_tags = 0
        self._last_empty: Tag | None = None

    def add_text(self, text: str, span: Span, is_whole: bool = False) -> None:
        """Add text of the source. White space becomes one space.

        With ``is_whole`` the span cannot be divided: it is that of the tags around the text.
        """
        plain = _SPACE.sub(" ", text)
        if not self._text or self._text.endswith(" "):
            if self._last_empty is not None and plain.startswith(" "):
                self._last_empty.is_spaced = True
            plain = plain.lstrip()
        if plain:
            self._last_empty = None
        if plain.strip():
            # Leave white space at both ends of the segment in the source.
            begin, end = span
            if not is_whole:
                begin += 0 if self._spans else len(text) - len(text.lstrip())
                end -= len(text) - len(text.rstrip())
            self._spans.append((begin, end))
        self._text += plain
        if len(self._text) > MOST_CHARACTERS:
            raise DataError(f"a paragraph has more than {MOST_CHARACTERS:,} characters; divide it")

    def add_protected(self, text: str, span: Span) -> None:
        """Add text that is not translated, with the source that stands for it."""
        self._count()
        text = _SPACE.sub(" ", text).strip()
        begin = len(self._text)
        self._text += text
        self._protected.append(Protected(begin, len(self._text), span))
        self._spans.append(span)

    def add_empty(self, *source: Span, is_space: bool = False, is_first: bool = False) -> None:
        """Add a tag without words. Before the first word it stays where it is.

        With ``is_first`` it shares its source with a text, and cannot stay.
        """
        if not self._spans and not is_first:
            return
        if is_space and self._text and not self._text.endswith(" "):
            self._text += " "
        position = len(self._text)
        tag = Tag(position, position, source, is_space=is_space)
        self._append(tag)
        self._last_empty = None if is_space else tag
        self._spans.append((source[0][0], source[-1][1]))

    def open(self, name: str, *source: Span, repeats: bool = False, style: str = "") -> None:
        """Begin a pair of tags."""
        begin = len(self._text)
        tag = Tag(begin, begin, source, repeats=repeats, style=style)
        self._append(tag)
        self._open.append((name, tag))
        if source:
            self._spans.append((source[0][0], source[-1][1]))

    def is_open(self, name: str) -> bool:
        """Return True if a pair with this name has begun."""
        return any(name == open_name for open_name, _ in self._open)

    def is_innermost(self, name: str) -> bool:
        """Return True if the pair that has begun last has this name."""
        return bool(self._open) and self._open[-1][0] == name

    def close(self, name: str, *source: Span) -> None:
        """End the pair that has begun last with this name. Without one, the tag is empty."""
        names = [open_name for open_name, _ in self._open]
        if name not in names:
            return self.add_empty(*source)
        index = len(names) - 1 - names[::-1].index(name)
        # Tags that are still open have no end: their children stand beside them.
        for _, unclosed in self._open[index + 1 :]:
            self._dissolve(unclosed)
        tag = self._open[index][1]
        del self._open[index:]
        tag.end, tag.closing, tag.is_pair = len(self._text), source, True
        self._last_empty = tag if tag.begin == tag.end else None
        if source:
            self._spans.append((source[0][0], source[-1][1]))
        return None

    def _append(self, tag: Tag) -> None:
        siblings = self._open[-1][1].children if self._open else self._tags
        siblings.append(tag)
        self._last_empty = None
        self._count()

    def _count(self) -> None:
        """Refuse a segment with more tags and protected texts than any paragraph has."""
        self._num_tags += 1
        if self._num_tags > MOST_TAGS or len(self._open) > MOST_NESTED:
            raise DataError(
                f"a paragraph has more than {MOST_TAGS:,} tags, or {MOST_NESTED} within each other"
            )

    def _dissolve(self, tag: Tag) -> None:
        """Put the children of an unclosed tag behind it."""
        for siblings in (self._tags, *(parent.children for _, parent in self._open)):
            if tag in siblings:
                index = siblings.index(tag) + 1
                siblings[index:index] = tag.children
        tag.children = []

    def finish(self, note: str = "") -> Segment | None:
        """Return the segment, or None without a letter to translate."""
        for _, unclosed in self._open:
            self._dissolve(unclosed)
        self._leave_last_tags()
        text = self._text.rstrip()
        occupied = [(entry.begin, entry.end) for entry in self._protected]
        protected = [Protected(begin, end) for begin, end in protected_spans(text, occupied)]
        protected = sorted([*self._protected, *protected], key=lambda entry: entry.begin)
        if not has_words(text, protected):
            return None
        for tag in all_tags(self._tags):
            tag.begin = min(tag.begin, len(text))
            tag.end = min(tag.end, len(text))
        span = self._spans[0][0], max(end for _, end in self._spans)
        return Segment(text, span, self._tags, protected, note)

    def _leave_last_tags(self) -> None:
        """Leave empty tags behind the last word where they are."""
        end = len(self._text.rstrip())
        while self._tags and not self._tags[-1].is_pair and self._tags[-1].begin >= end:
            span = self._tags[-1].opening[0][0], self._tags[-1].opening[-1][1]
            if self._spans.count(span) > 1:  # a text shares its source
                break
            self._tags.pop()
            self._spans.remove(span)


def has_words(text: str, protected: Sequence[Protected] = ()) -> bool:
    """Return True if a text has a letter outside the texts that are protected."""
    occupied = {i for entry in protected for i in range(entry.begin, entry.end)}
    return any(letter.isalpha() and i not in occupied for i, letter in enumerate(text))


def all_tags(tags: Sequence[Tag]) -> list[Tag]:
    """Return tags and all tags within them, in the order of the source."""
    ordered: list[Tag] = []
    for tag in tags:
        ordered += [tag, *all_tags(tag.children)]
    return ordered


def plain_segment(text: str, span: Span, note: str = "") -> Segment | None:
    """Return a segment of text without markup, or None without a letter."""
    builder = SegmentBuilder()
    builder.add_text(text, span)
    return builder.finish(note)


def tagged_segment(source: str, span: Span, tags: re.Pattern[str]) -> Segment | None:
    """Return a text with tags as a segment, or None without a letter.

    Matches of ``tags`` with a ``name`` are tags of a pair, closing ones with a ``slash``. All other
    matches are empty tags, and white space stands for a space.
    """
    builder = SegmentBuilder()
    position, end = span
    for match in tags.finditer(source, position, end):
        builder.add_text(source[position : match.start()], (position, match.start()))
        position = match.end()
        if not match["name"] or match[0].endswith("/>"):
            builder.add_empty(match.span(), is_space=match[0].isspace())
        elif match["slash"]:
            builder.close(match["name"], match.span())
        else:
            builder.open(match["name"], match.span())
    builder.add_text(source[position:end], (position, end))
    return builder.finish()
