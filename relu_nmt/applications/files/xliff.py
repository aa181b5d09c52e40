"""XLIFF 1.2 and 2: units without a translation, which then waits for its review."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from relu_nmt.applications.files import formats
from relu_nmt.applications.files.markup import (
    MarkupReader,
    Piece,
    Vocabulary,
    XmlFormat,
    attribute,
    names,
)
from relu_nmt.applications.files.placing import Translation, Writer
from relu_nmt.applications.files.segments import Segment, SegmentBuilder, Span

XLIFF = Vocabulary(
    inline=names("g pc mrk"),
    only_in=names("source"),
)
_GROUPS = names("file group unit trans-unit")
_OPENING, _CLOSING = names("bpt bx sc"), names("ept ex ec")
_FINAL, _UNTRANSLATED = names("final signed-off"), names("new needs-translation initial")
_STATE = re.compile(r"""\s(?:state|subState|state-qualifier)\s*=\s*(?:"[^"]*"|'[^']*')""")

_LINE_END = re.compile(r"\r?\n\s*")


@dataclass(frozen=True)
class _Unit:
    """The places of the parts of a unit."""

    tag: Span  # opening tag of the unit
    source: Span
    content: Span  # content of the source
    words: Span  # the content without what stands around its words
    target: Span  # empty without a target


@formats.register("xliff")
class XliffFormat(XmlFormat):
    """Files of translators."""

    reads = frozenset({"retranslate"})
    keeps_equal = False

    def segments(self, source: str) -> list[Segment]:
        """Return the units that are not translated, in order."""
        return list(_Reader(source, XLIFF).units(self.options.retranslate))

    def rendered(self, segment: Segment, translation: Translation, writer: Writer) -> str:
        """Return a unit up to the end of its target, in a state to be reviewed."""
        unit = segment.note
        head, before = writer.source(unit.tag), writer.source((unit.tag[1], unit.target[0]))
        opening = re.match(r"<target[^>]*>", writer.source(unit.target))
        target = opening[0].replace("/>", ">") if opening else "<target>"
        if head.startswith("<segment"):
            head = _with_state(head, "translated")
        else:
            target = _with_state(target, "needs-review-translation")
        if opening is None:
            space = writer.source((unit.tag[1], unit.source[0]))
            target = space[len(space.rstrip()) :] + target
        # Copy what stands around the words, such as spaces.
        text = super().rendered(segment, translation, writer)
        text = writer.source((unit.content[0], unit.words[0])) + text
        text += writer.source((unit.words[1], unit.content[1]))
        return f"{head}{before}{target}{text}</target>"


def _with_state(tag: str, state: str) -> str:
    """Return an opening tag with another state."""
    return f'{_STATE.sub("", tag).removesuffix(">")} state="{state}">'


class _Reader(MarkupReader):
    """Finds the units of a file."""

    _keeps_lines = False

    def units(self, retranslate: bool) -> Iterator[Segment]:
        """Yield the units to translate."""
        end_untranslated = -1
        for number, piece in enumerate(self.pieces):
            if piece.kind != "open" or number < end_untranslated:
                continue
            if piece.name in ("file", "group", "unit", "trans-unit") and self.is_untranslated(
                piece
            ):
                end_untranslated = self.partners[number]
            elif piece.name in ("trans-unit", "segment"):
                segment = self._unit(number, retranslate)
                if segment is not None:
                    yield segment

    def is_untranslated(self, piece: Piece) -> bool:
        """Return True for an element that its author wants to keep."""
        is_protected = attribute(self.source, piece, "mtype") == "protected"
        return is_protected or super().is_untranslated(piece)

    def _unit(self, number: int, retranslate: bool) -> Segment | None:
        """Return a unit as a segment, or None if its translation is to stay."""
        tag = self.pieces[number]
        parts = self._parts(range(number + 1, self.partners[number]))
        if "source" not in parts:
            return None
        begin, end = parts["source"]
        first, last = parts.get("target", (number, number))
        state = attribute(self.source, self.pieces[first], "state")
        state = state or attribute(self.source, tag, "state")
        is_final = state in _FINAL or attribute(self.source, tag, "approved") == "yes"
        has_target = bool(self.text_of(range(first, last)).strip())
        is_done = has_target and state not in _UNTRANSLATED and not retranslate
        if is_final or is_done:
            return None
        spaces = [attribute(self.source, piece, "xml:space") for piece in (tag, self.pieces[begin])]
        self._keeps_lines = "preserve" in spaces
        self.found_segments = []
        self.read(range(begin + 1, end), is_text=True)
        if not self.found_segments:
            return None
        [segment] = self.found_segments
        behind = self.pieces[parts.get("seg-source", parts["source"])[1]].end
        target = behind, behind
        if "target" in parts:
            target = self.pieces[first].begin, self.pieces[last].end
        content = self.pieces[begin].end, self.pieces[end].begin
        source = self.pieces[begin].begin, self.pieces[end].end
        unit = _Unit(tag.span, source, content, segment.span, target)
        return replace(segment, span=(tag.begin, target[1]), note=unit)

    def _parts(self, numbers: range) -> dict[str, Span]:
        """Return the numbers of the first and last piece of each element of a unit."""
        parts: dict[str, Span] = {}
        number = numbers.start
        while number < numbers.stop:
            end = self.partners.get(number, number)
            parts.setdefault(self.pieces[number].name, (number, end))
            number = end + 1
        return parts

    def add_inline(self, builder: SegmentBuilder, number: int, end: int, inner: list[range]) -> int:
        """Add an inline element. Two empty ones may be the beginning and end of a pair."""
        piece = self.pieces[number]
        element = piece.begin, self.pieces[end].end
        key = self._key(piece)
        if piece.name in _OPENING:
            builder.open(key, element)
        elif piece.name in _CLOSING:
            builder.close(key, element)
        else:
            return super().add_inline(builder, number, end, inner)
        return end

    def _add_text(self, builder: SegmentBuilder, piece: Piece) -> None:
        """Add text. The lines of a unit that preserves its spaces stay lines."""
        position = piece.begin
        if self._keeps_lines:
            for match in _LINE_END.finditer(self.source, piece.begin, piece.end):
                super()._add_text(builder, Piece("text", position, match.start()))
                builder.add_empty(match.span(), is_space=True)
                position = match.end()
        super()._add_text(builder, Piece("text", position, piece.end))

    def _key(self, piece: Piece) -> str:
        """Return the name that both ends of a pair have."""
        values = dict.fromkeys(["rid", "startRef", "id"])
        key = next(filter(None, (attribute(self.source, piece, name) for name in values)), "")
        return f"pair {key}"
