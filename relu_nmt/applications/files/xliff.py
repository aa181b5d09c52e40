"""XLIFF 1.2 and 2: units without a translation, which then waits for its review."""

import re
from collections.abc import Iterator
from dataclasses import replace

from relu_nmt.applications.files import formats
from relu_nmt.applications.files.aligned_words import Translation
from relu_nmt.applications.files.document import ReadSource
from relu_nmt.applications.files.markup import (
    MarkupReader,
    Piece,
    Vocabulary,
    XmlFormat,
    attribute,
    check_xml,
    names,
)
from relu_nmt.applications.files.segments import Segment, Span

_OPENING = names("bpt bx sc")
_CLOSING = names("ept ex ec")
_FINAL = names("final signed-off")
_UNTRANSLATED = names("new needs-translation initial")
_STATE = re.compile(r"""\s(?:state|subState|state-qualifier)\s*=\s*(?:"[^"]*"|'[^']*')""")


class _Reader(MarkupReader):
    """Finds the units of a file."""

    def units(self, retranslate: bool) -> Iterator[Segment | None]:
        """Yield the units to translate."""
        end_untranslated = -1
        for number, piece in enumerate(self.pieces):
            if piece.kind != "open" or number < end_untranslated:
                continue
            if self.is_untranslated(piece):
                end_untranslated = self.partners[number]
            elif piece.name in ("trans-unit", "segment"):
                yield self._unit(number, retranslate)

    def is_untranslated(self, piece: Piece) -> bool:
        """Return True for an element that its author wants to keep."""
        is_protected = attribute(self.source, piece, "mtype") == "protected"
        return is_protected or super().is_untranslated(piece)

    def _unit(self, number: int, retranslate: bool) -> Segment | None:
        """Return a unit as a segment, or None if its translation is to stay."""
        tag = self.pieces[number]
        parts = self._parts(range(number + 1, self.partners[number]))
        if "source" not in parts or self._stays(tag, parts.get("target"), retranslate):
            return None
        first, last = parts["source"]
        opening = self.pieces[first]
        spaces = [attribute(self.source, piece, "xml:space") for piece in (tag, opening)]
        self.keeps_spaces = "preserve" in spaces
        self.found_segments = []
        self.read(range(first + 1, last), is_text=True)
        segment = next(filter(None, self.found_segments), None)
        if segment is None:
            return None
        _, last_before = parts.get("seg-source", parts["source"])
        target = self.pieces[last_before].end, self.pieces[last_before].end
        if "target" in parts:
            target = self._span(parts["target"])
        # Copy the spaces and tags at both ends of the source.
        before = self._before(tag, opening, target) + self.source[opening.end : segment.span[0]]
        behind = self.source[segment.span[1] : self.pieces[last].begin]
        return replace(segment, span=(tag.begin, target[1]), note=(before, behind))

    def _before(self, tag: Piece, opening: Piece, target: Span) -> str:
        """Return a unit up to the content of its target, in a state to be reviewed."""
        head = self.source[tag.begin : tag.end]
        between = self.source[tag.end : target[0]]
        match = re.match(r"<target[^>]*>", self.source[slice(*target)])
        new_tag = match[0].replace("/>", ">") if match else "<target>"
        if head.startswith("<segment"):
            head = _with_state(head, "translated")
        else:
            new_tag = _with_state(new_tag, "needs-review-translation")
        if match is None:
            # Indent the target as the source.
            space = self.source[tag.end : opening.begin]
            new_tag = space[len(space.rstrip()) :] + new_tag
        return head + between + new_tag

    def _span(self, numbers: Span) -> Span:
        first, last = numbers
        return self.pieces[first].begin, self.pieces[last].end

    def _stays(self, tag: Piece, target: Span | None, retranslate: bool) -> bool:
        """Return True for a unit that is final or has a translation."""
        state = attribute(self.source, tag, "state")
        has_target = False
        if target is not None:
            state = attribute(self.source, self.pieces[target[0]], "state") or state
            has_target = self.text_of(range(*target)).strip() != ""
        is_final = state in _FINAL or attribute(self.source, tag, "approved") == "yes"
        return is_final or (has_target and state not in _UNTRANSLATED and not retranslate)

    def _parts(self, numbers: range) -> dict[str, Span]:
        """Return the numbers of the first and last piece of each element of a unit."""
        parts: dict[str, Span] = {}
        number = numbers.start
        while number < numbers.stop:
            end = self.partners.get(number, number)
            parts.setdefault(self.pieces[number].name, (number, end))
            number = end + 1
        return parts

    def add_inline(self, number: int, end: int) -> int:
        """Add an inline element. Two empty ones may be the beginning and end of a pair."""
        piece = self.pieces[number]
        element = self._span((number, end))
        if piece.name in _OPENING:
            self.builder.open(self._key(piece), [element])
        elif piece.name in _CLOSING:
            self.builder.close(self._key(piece), [element])
        else:
            return super().add_inline(number, end)
        return end

    def _key(self, piece: Piece) -> str:
        """Return the name that both ends of a pair have."""
        for name in ("rid", "startRef", "id"):
            value = attribute(self.source, piece, name)
            if value:
                return f"pair {value}"
        return "pair"


@formats.register("xliff")
class XliffFormat(XmlFormat):
    """Files of translators."""

    reads = frozenset({"retranslate"})
    keeps_equal = False
    vocabulary = Vocabulary(inline=names("g pc mrk"), only_in=names("source"))

    def segments(self, source: str) -> Iterator[Segment | None]:
        """Yield the units that are not translated, in order."""
        check_xml(source)
        return _Reader(source, self.vocabulary).units(self.options.retranslate)

    def rendered(self, segment: Segment, translation: Translation, source: ReadSource) -> str:
        """Return a unit up to the end of its target."""
        before, behind = segment.note
        return f"{before}{super().rendered(segment, translation, source)}{behind}</target>"


def _with_state(tag: str, state: str) -> str:
    """Return an opening tag with another state."""
    return f'{_STATE.sub("", tag).removesuffix(">")} state="{state}">'
