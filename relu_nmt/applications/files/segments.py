"""Segments: the texts of a document without their markup, and the tags at their places."""

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from relu_nmt.errors import DataError

MOST_CHARACTERS = 100_000  # longest segment. No real paragraph is longer.
MOST_TAGS = 2_000
MOST_NESTED = 50  # most levels of nested tags
Span = tuple[int, int]  # characters ``begin`` to ``end - 1`` of a text
_SPACE = re.compile(r"[ \t\r\n\f]+")
KEPT_SPACE = re.compile(r"\r?\n[ \t\r\n]*|[ \t]{2,}|\t")
"""White space other than a single space, for formats that show it as it is."""
_BEFORE_NOTE = re.compile(r"(?:[^\W\d_]{4}|[^\w\s])\Z")
"""Text before a note's number. A word of up to three letters is a unit, as in m<sup>2</sup>."""
_NOTES = ("sup", "html sup")  # names of pairs that may be the number of a note
_LINKS = ("a", "html a", "[")  # pairs that divide words where they touch, as links of a menu do
_PROTECTED = re.compile(
    r"""
    (?:https?|ftp)://[^\s<>"']*[^\s<>"'.,;:!?)\]]      # addresses of pages
  | \bwww\.[\w-]+\.[^\s<>"']*[^\s<>"'.,;:!?)\]]
  | (?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+           # and of people
  | \$\{[\w.]+\} | \{\{[^{}\n]*\}\} | [%\#]?\{[\w.!:%\#-]*\}  # ${x}, {{ x }}, {name}, %{name}
  | \{%[^{}\n]*%\} | <%[^<>\n]*%>                        # {% if x %}, <%= x %>
  | (?<![\w@.])@[A-Za-z_]\w*                             # @count
  | %(?:\([\w.-]+\)|\d+\$)?[-+\#0]*(?:\d*|\*)(?:\.(?:\d+|\*))?      # %s, %(n)d, %*d
    (?:hh?|ll?|[zjtL])?[diouxXeEfFgGcrsa](?![^\W_])
  | %(?:\d+|n)(?![^\W_%]) | %[A-Z][A-Z_]+%                   # Qt's %1, %NAME%
  | (?<![\w$])\$[A-Za-z_]\w*                             # $x
  | &(?:[A-Za-z][\w.-]*|\#\d+|\#x[\da-fA-F]+);           # references to entities
    """,
    re.VERBOSE,
)


@dataclass(eq=False)
class Tag:
    """Markup within a segment: a pair around ``text[begin:end]``, or an empty tag at ``begin``."""

    begin: int
    end: int
    opening: Sequence[Span] = ()  # spans of the source: the opening tag, or the whole empty tag
    closing: Sequence[Span] = ()  # spans of the source: the closing tag
    repeats: bool = False  # a pair may become several, as ``<b>`` may
    # An empty tag stands for a space, as a line break does. A tag without a source divides words
    # that touch there, and stands for a space only behind other markup.
    is_space: bool = False
    is_spaced: bool = False  # a tag without words has a space on both sides
    style: str = ""  # form of the text within, as a format writes it
    may_be_note: bool = False  # the text within a pair may be the number of a note
    keeps_text: bool = False  # the text within a pair is not translated
    start: "Tag | None" = None  # for an empty tag that ends a span, the tag that begins the span
    children: list["Tag"] = field(default_factory=list)  # tags within the pair


@dataclass(frozen=True)
class Protected:
    """A text within a segment that is not translated: ``text[begin:end]``."""

    begin: int
    end: int
    # Spans of the source with it, and with the marks of a code span. Without them the text itself
    # is written.
    source: Sequence[Span] = ()

    @property
    def span(self) -> Span:
        """Place in the text of the segment."""
        return self.begin, self.end


@dataclass(frozen=True)
class Segment:
    """A text to translate, such as a paragraph, and its markup."""

    text: str  # with single spaces
    span: Span  # characters of the source that a translation replaces
    tags: Sequence[Tag] = ()  # inline markup in order. Tags within tags are their children.
    protected: Sequence[Protected] = ()  # texts that are not translated, in order
    note: Any = ""  # value that the format needs to write the segment


class SegmentBuilder:
    """Collects the text and the tags of one segment in the order of the source.

    Markup before the first word or pair stays outside the segment, as do empty tags behind the last
    word. Pairs have names, by which their ends find them. Pairs that cross become empty tags.
    """

    def __init__(self) -> None:
        self.without_end: set[Span] = set()  # opening tags of pairs that have no end
        self.text = ""
        self._tags: list[Tag] = []  # outside all open pairs
        self._open: list[tuple[str, Tag]] = []  # pairs without an end yet, from outer to inner
        self._starts: dict[str, Tag] = {}  # empty tags that begin spans, by the spans' names
        self._protected: list[Protected] = []
        self._text_spans: list[Span] = []
        self._begin: int | None = None  # of the segment in the source
        self._num_tags = 0
        # The last tag, while no text follows. White space on both sides of it is noted there.
        self._last_empty: Tag | None = None
        self._last_opened: Tag | None = None
        self._is_behind_link = False
        self._divides = False  # whether a word that follows is another word

    def add_text(self, text: str, span: Span, is_whole: bool = False) -> None:
        """Add text of the source. White space becomes one space.

        With ``is_whole`` the span cannot be cut, since it includes the tags around the text.
        """
        without_hyphens = text.replace("\u00ad", "")  # places to divide a word
        plain = _SPACE.sub(" ", without_hyphens)
        if not self.text or self.text.endswith(" "):
            last_tag = self._last_empty or self._last_opened
            if last_tag is not None and plain.startswith(" "):
                last_tag.is_spaced = True
            plain = plain.lstrip()
        if plain:
            self._divide_before(plain)
            self._last_empty = None
            self._last_opened = None
        if plain.strip():
            # Leave white space at both ends of the segment in the source.
            begin, end = span
            if not is_whole:
                if self._begin is None:
                    begin += len(text) - len(text.lstrip())
                end -= len(text) - len(text.rstrip())
            self._add_text_span((begin, end))
        self.text += plain
        if len(self.text) > MOST_CHARACTERS:
            raise DataError(f"a paragraph has more than {MOST_CHARACTERS:,} characters; divide it")

    def add_protected(self, text: str, source: Sequence[Span]) -> None:
        """Add text that is not translated. The spans of the source are written in its place."""
        plain = _SPACE.sub(" ", text).strip()
        if not plain:
            self.add_empty(source, is_first=len(source) > 1)
            return
        self._count()
        self._divide_before(plain)
        begin = len(self.text)
        self.text += plain
        self._protected.append(Protected(begin, len(self.text), source))
        self._add_text_span((source[0][0], source[-1][1]))

    def add_empty(
        self,
        source: Sequence[Span],
        is_space: bool = False,
        is_first: bool = False,
        start: Tag | None = None,
    ) -> None:
        """Add a tag without words. A tag before the first word stays outside the segment.

        With ``is_first`` it belongs to the segment in any case, because it shares its source with
        a text. With ``is_space`` it stands for a space, but not directly behind another space.
        """
        if self._begin is None and not is_first:
            return
        self._count()
        is_space = is_space and not self.text.endswith(" ")
        if is_space and self.text:
            self.text += " "
        position = len(self.text)
        tag = Tag(position, position, source, is_space=is_space, start=start)
        self._siblings.append(tag)
        self._last_empty = None if is_space else tag
        self._begin_at(source)

    def divide(self) -> None:
        """Divide the word before this place from a word that touches it."""
        self._divides = True

    def open(
        self,
        name: str,
        source: Sequence[Span],
        repeats: bool = False,
        style: str = "",
        may_be_note: bool = False,
        keeps_text: bool = False,
    ) -> None:
        """Begin a pair of tags."""
        self._count()
        if self._is_behind_link and name in _LINKS:
            self.divide()
        begin = len(self.text)
        tag = Tag(begin, begin, source, repeats=repeats, style=style, keeps_text=keeps_text)
        tag.may_be_note = may_be_note or name in _NOTES
        self._open.append((name, tag))
        self._last_empty = None
        self._last_opened = tag
        self._begin_at(source)

    def is_open(self, name: str) -> bool:
        """Return True if a pair with this name has begun."""
        return any(name == open_name for open_name, _ in self._open)

    def is_innermost(self, name: str) -> bool:
        """Return True if the innermost open pair has this name."""
        return bool(self._open) and self._open[-1][0] == name

    @property
    def keeps_text(self) -> bool:
        """True within a pair whose text is not translated."""
        return any(tag.keeps_text for _, tag in self._open)

    def divide_innermost(self, name: str) -> None:
        """Divide the innermost pair into two pairs. The inner pair gets the name."""
        marks, inner = self._open.pop()
        [(begin, end)] = inner.opening
        middle = end - len(name)
        inner.opening = [(middle, end)]
        outer = Tag(inner.begin, inner.begin, [(begin, middle)], repeats=True)
        self._open += [(marks[len(name) :], outer), (name, inner)]
        self._count()

    def close(self, name: str, source: Sequence[Span], may_overlap: bool = False) -> None:
        """End the innermost open pair with this name. If there is none, the tag is an empty tag.

        Open pairs within this pair become empty tags. With ``may_overlap`` they stay, and both tags
        of this pair become empty tags.
        """
        numbers = [i for i, (open_name, _) in enumerate(self._open) if open_name == name]
        if not numbers or (may_overlap and self._overlaps(numbers[-1])):
            if numbers:
                self._make_empty(numbers[-1])
            self.add_empty(source, is_first=len(source) > 1, start=self._starts.pop(name, None))
            return
        if self._last_empty is not None and self.text.endswith(" "):
            self._last_empty.is_spaced = True
        while not self.is_innermost(name):
            self._make_empty(len(self._open) - 1)
        _, tag = self._open.pop()
        tag.end = len(self.text)
        tag.closing = source
        if tag.keeps_text:
            self._protect(tag)
            return
        tag.is_spaced = tag.is_spaced and tag.begin == tag.end
        self._is_behind_link = self._is_behind_link or name in _LINKS
        # A tag of unparsed text has several spans, and its text has them, too.
        if tag.may_be_note and len(source) == 1 and self._is_note(tag):
            self._take_out(tag)
        self._siblings.append(tag)
        self._last_empty = tag if tag.begin == tag.end else None

    def finish(self, note: Any = "") -> Segment | None:
        """Return the segment, or None if it has no letter to translate."""
        if self._begin is None:
            return None
        while self._open:
            self._make_empty(len(self._open) - 1)
        text = self.text.rstrip()
        protected = [*self._protected, *placeholders(text, self._protected)]
        protected.sort(key=attrgetter("begin"))
        if not has_words(text, protected):
            return None
        self._count(len(protected) - len(self._protected))
        while self._tags and self._stays(self._tags[-1], len(text)):
            self._tags.pop()
        spans = list(self._text_spans)
        for tag in all_tags(self._tags):
            tag.begin = min(tag.begin, len(text))
            tag.end = min(tag.end, len(text))
            spans += [*tag.opening, *tag.closing]
        end = max(end for _, end in spans)
        return Segment(text, (self._begin, end), self._tags, protected, note)

    @property
    def is_behind_word(self) -> bool:
        """True if a space here would not follow another space."""
        return self.text[-1:].strip() != "" or self._last_empty is not None

    @property
    def _siblings(self) -> list[Tag]:
        """The list of tags in the innermost open pair, or of the segment."""
        return self._open[-1][1].children if self._open else self._tags

    def _begin_at(self, source: Sequence[Span]) -> None:
        if self._begin is None and source:
            self._begin = source[0][0]

    def _add_text_span(self, span: Span) -> None:
        self._begin_at([span])
        self._text_spans.append(span)

    def _divide_before(self, text: str) -> None:
        """Add a space without a source if a divided word continues with this text."""
        if self._divides and self.text[-1:].strip() and text[0].isalnum():
            self.text += " "
            position = len(self.text)
            self._siblings.append(Tag(position, position, is_space=True))
        self._divides = False
        self._is_behind_link = False

    def _count(self, number: int = 1) -> None:
        """Refuse a segment with more tags and protected texts than any paragraph has."""
        self._num_tags += number
        if self._num_tags > MOST_TAGS or len(self._open) > MOST_NESTED:
            raise DataError(
                f"a paragraph has more than {MOST_TAGS:,} tags and placeholders, "
                f"or more than {MOST_NESTED} nested tags"
            )

    def _make_empty(self, number: int) -> None:
        """Turn an open pair into an empty tag. The tags in the pair follow it as its siblings."""
        name, tag = self._open.pop(number)
        self._starts[name] = tag
        self.without_end.update(tag.opening)
        siblings = self._open[number - 1][1].children if number else self._tags
        siblings.extend([tag, *tag.children])
        tag.children = []

    def _overlaps(self, number: int) -> bool:
        """Return True if a pair within an open pair has no end yet.

        Tags of HTML within code do not count, since they may have no end at all.
        """
        is_code = self._open[number][1].keeps_text
        inner_names = [name for name, _ in self._open[number + 1 :]]
        return any(not is_code or not name.startswith("html ") for name in inner_names)

    def _protect(self, tag: Tag) -> None:
        """Turn a pair with a text that stays into a protected text."""
        text = html.unescape(self.text[tag.begin :])
        is_divided = any(not child.opening for child in all_tags(tag.children))
        self._divides = is_divided and text.startswith(" ")
        self._take_out(tag)
        self.add_protected(text, tag.opening)

    def _is_note(self, tag: Tag) -> bool:
        """Return True for a note's number that touches the word or mark before it."""
        before = self.text[: tag.begin]
        number = self.text[tag.begin :].strip()
        if not number or any(map(str.isalpha, number)) or not before or before[-1].isspace():
            return False
        return number.startswith("[") or _BEFORE_NOTE.search(before) is not None

    def _take_out(self, tag: Tag) -> None:
        """Turn a pair into a tag without words, and remove its text from the segment."""
        # A tag of unparsed text stands between the marks of this text.
        first = len(tag.opening) // 2
        last = len(tag.closing) // 2
        begin = tag.opening[first][0]
        whole = begin, tag.closing[last][1]
        tag.opening = [*tag.opening[:first], whole, *tag.closing[last + 1 :]]
        tag.closing = ()
        tag.children = []
        tag.end = tag.begin
        self.text = self.text[: tag.begin]
        while self._text_spans and self._text_spans[-1][0] >= begin:
            self._text_spans.pop()
        while self._protected and self._protected[-1].begin >= tag.begin:
            self._protected.pop()

    def _stays(self, tag: Tag, end: int) -> bool:
        """Return True for an empty tag behind the last word that shares no span with a text."""
        is_last = bool(tag.opening) and not tag.closing and tag.begin >= end
        return is_last and (tag.opening[0][0], tag.opening[-1][1]) not in self._text_spans


def placeholders(text: str, occupied: Sequence[Protected] = ()) -> list[Protected]:
    """Return the placeholders and addresses in a text outside the protected texts.

    Example:
        >>> text = "Hello {name}, %(n)d new at http://a.org/b."
        >>> [text[entry.begin : entry.end] for entry in placeholders(text)]
        ['{name}', '%(n)d', 'http://a.org/b']
    """
    protected = []
    for match in _PROTECTED.finditer(text):
        begin, end = match.span()
        if all(end <= entry.begin or entry.end <= begin for entry in occupied):
            protected.append(Protected(begin, end))
    return protected


def has_words(text: str, protected: Sequence[Protected] = ()) -> bool:
    """Return True if a text has a letter outside the protected texts."""
    position = 0
    for entry in protected:
        if any(map(str.isalpha, text[position : entry.begin])):
            return True
        position = entry.end
    return any(map(str.isalpha, text[position:]))


def all_tags(tags: Sequence[Tag]) -> list[Tag]:
    """Return tags and all tags within them, in the order of the source."""
    ordered: list[Tag] = []
    for tag in tags:
        ordered += [tag, *all_tags(tag.children)]
    return ordered


def plain_segment(text: str, span: Span, note: Any = "") -> Segment | None:
    """Return a segment of text without markup, or None if the text has no letter."""
    builder = SegmentBuilder()
    builder.add_text(text, span)
    return builder.finish(note)


def tagged_segment(
    source: str, span: Span, tags: re.Pattern[str], note: str = ""
) -> Segment | None:
    """Return a text with tags as a segment, or None if the text has no letter.

    :func:`add_tag` tells what a match of ``tags`` is.
    """
    builder = SegmentBuilder()
    for text_span, match in split_at(tags, source, span):
        builder.add_text(source[slice(*text_span)], text_span)
        if match is not None:
            add_tag(builder, match, [match.span()])
    return builder.finish(note)


def split_at(
    pattern: re.Pattern[str], source: str, span: Span
) -> Iterator[tuple[Span, re.Match[str] | None]]:
    """Yield the place of each text before a match, and the match, which is None at the end."""
    position, end = span
    for match in pattern.finditer(source, position, end):
        yield (position, match.start()), match
        position = match.end()
    yield (position, end), None


def add_tag(
    builder: SegmentBuilder, match: re.Match[str], source: Sequence[Span], is_in_xml: bool = False
) -> None:
    """Add a tag by the groups of its match, all of which a pattern may lack.

    A tag with a ``name`` belongs to a pair, and ends it if it has a ``slash``. It is an empty tag
    if it has an ``end`` or is ``alone``. With ``divides`` it divides words. A ``kept`` name begins
    a pair whose text is not translated. A ``letter`` is text. All other matches are empty tags.
    White space and ``<br>`` stand for a space. With ``is_in_xml`` elements of XML may overlap the
    pairs.
    """
    groups = match.groupdict()
    kept = groups.get("kept")
    name = (kept or groups.get("name") or "").lower()
    pair = f"html {name}" if is_in_xml else name
    if groups.get("letter"):
        builder.add_text(match["letter"], match.span())
    elif not name or groups.get("end") or groups.get("alone"):
        is_space = match[0].isspace() or name == "br"
        builder.add_empty(source, is_space=is_space, is_first=len(source) > 1)
    elif match["slash"]:
        builder.close(pair, source, may_overlap=is_in_xml)
    else:
        builder.open(pair, source, keeps_text=kept is not None)
    if groups.get("divides"):
        builder.divide()
