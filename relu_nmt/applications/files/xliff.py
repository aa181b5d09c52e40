"""XLIFF 1.2 and 2. Units without a translation get one, which is marked for review."""

import re
from collections.abc import Iterator
from dataclasses import replace

from relu_nmt.applications.files import formats
from relu_nmt.applications.files.aligned_words import AlignedText
from relu_nmt.applications.files.document import ReadSource
from relu_nmt.applications.files.html import MarkedTextReader
from relu_nmt.applications.files.markup import (
    CDATA,
    Piece,
    Vocabulary,
    XmlFormat,
    check_xml,
    names,
)
from relu_nmt.applications.files.segments import Segment, Span

_OPENING = names("bpt bx sc sm")
_CLOSING = names("ept ex ec em")
_NAMING = ("xliff", "file")  # elements that name the languages, in versions 2 and 1.2
_LANGUAGES = (("srcLang", "trgLang"), ("source-language", "target-language"))
_FINAL = names("final signed-off")
_UNTRANSLATED = names("new needs-translation initial")
_STATE = re.compile(r"""\s(?:state|subState|state-qualifier)\s*=\s*(?:"[^"]*"|'[^']*')""")
_KEPT = re.compile(
    r"""mtype\s*=\s*["']protected["']|ctype\s*=\s*["']x-(?:html-)?(?:code|kbd|samp|tt|var)["']"""
    r"|(?:&lt;|<)(?:code|kbd|samp|tt|var)\b"
)
"""Markup of text that is not translated."""
_LINE_BREAK = re.compile(
    r"""(?:ctype|subType)\s*=\s*["'](?:xlf:)?(?:lb|x-br|x-html-br)["']|(?:&lt;|<)br\b"""
)


class _Reader(MarkedTextReader):
    """Finds the units to translate. Each gets a target behind its source."""

    def __init__(self, source: str, vocabulary: Vocabulary) -> None:
        super().__init__(source, vocabulary)
        root = next(piece for piece in self.pieces if piece.kind in ("open", "empty"))
        self.prefix, _, _ = root.name.rpartition("xliff")
        if self.prefix:
            self.pieces = [
                replace(piece, name=piece.name.removeprefix(self.prefix)) for piece in self.pieces
            ]

    def units(self, retranslate: bool) -> Iterator[Segment | None]:
        """Yield the units to translate."""
        for number, piece in enumerate(self.pieces):
            if piece.kind == "open" and piece.name in ("trans-unit", "segment"):
                yield self._unit(number, retranslate)

    def _unit(self, number: int, retranslate: bool) -> Segment | None:
        """Return a unit as a segment, or None if it is not to be translated."""
        tag = self.pieces[number]
        elements = self._elements(range(number + 1, self.partners[number]))
        if "source" not in elements or self.inherited(number, "translate") == "no":
            return None
        target = elements.get("target")
        if self._stays(tag, target, retranslate):
            return None
        # Read the divided source of XLIFF 1.2, since the target needs its marks of sentences.
        first, last = elements["source"]
        if "seg-source" in elements and self.text_of(range(*elements["seg-source"])).strip():
            first, last = elements["seg-source"]
        self.keeps_spaces = self.inherited(first, "xml:space") == "preserve"
        self.found_segments = []
        self.read(range(first + 1, last), is_text=True)
        segment = next(filter(None, self.found_segments), None)
        if segment is None:
            return None
        return self._with_target(segment, tag, (first, last), target)

    def _with_target(
        self, segment: Segment, tag: Piece, source: Span, target: Span | None
    ) -> Segment:
        """Return a segment that replaces a unit, from its tag to the end of its target.

        ``source`` and ``target`` are the numbers of the first and last piece of these elements.
        """
        opening, closing = (self.pieces[number] for number in source)
        if target is not None:
            begin, end = self.span_of(*target)
            new_tag = self.pieces[target[0]].text.removesuffix("/>").removesuffix(">") + ">"
        else:
            # Indent the target like the source.
            begin = end = closing.end
            space = self.source[tag.end : opening.begin]
            new_tag = f"{space[len(space.rstrip()) :]}<{self.prefix}target>"
        head = tag.text
        if tag.name == "segment":
            head = _with_state(head, "translated")
        else:
            new_tag = _with_state(new_tag, "needs-review-translation")
        before, behind = self._around(segment, opening, closing)
        head += self.source[tag.end : begin] + new_tag
        note = head + before, f"{behind}</{self.prefix}target>"
        return replace(segment, span=(tag.begin, end), note=note)

    def _around(self, segment: Segment, opening: Piece, closing: Piece) -> tuple[str, str]:
        """Return the spaces and tags before and behind the segment in its element."""
        begin, end = segment.span
        before = self.source[opening.end : begin]
        behind = self.source[end : closing.begin]
        text = self.source[begin:end]
        if text.startswith(CDATA):
            text = text.removeprefix(CDATA)
            before += text[: len(text) - len(text.lstrip())]
        if text.endswith("]]>"):
            text = text.removesuffix("]]>")
            behind = text[len(text.rstrip()) :] + behind
        return before, behind

    def _stays(self, tag: Piece, target: Span | None, retranslate: bool) -> bool:
        """Return True for a unit that is final or has a translation."""
        state = tag.attribute("state")
        has_target = False
        if target is not None:
            state = self.pieces[target[0]].attribute("state") or state
            has_target = self.text_of(range(*target)).strip() != ""
        is_final = state in _FINAL or tag.attribute("approved") == "yes"
        return is_final or (has_target and state not in _UNTRANSLATED and not retranslate)

    def _elements(self, numbers: range) -> dict[str, Span]:
        """Return the numbers of the first and last piece of each element of a unit, by its name."""
        elements: dict[str, Span] = {}
        for first, last in self.children(numbers):
            elements.setdefault(self.pieces[first].name, (first, last))
        return elements

    def add_inline(self, number: int, end: int) -> int:
        """Add an inline element. Two empty elements may begin and end a pair."""
        piece = self.pieces[number]
        element = self.span_of(number, end)
        is_pair = piece.name in self.vocabulary.inline
        markup = self._markup(number, piece.span if is_pair else element)
        is_kept = _KEPT.search(markup) is not None
        if piece.name in _OPENING:
            keeps_text = is_kept or self.is_untranslated(piece)
            self.builder.open(self._key(piece), [element], keeps_text=keeps_text)
        elif piece.name in _CLOSING:
            self.builder.close(self._key(piece), [element], may_overlap=True)
        elif is_pair and is_kept:
            self.builder.add_protected(self.text_of(range(number + 1, end)), [element])
        elif not is_pair and _LINE_BREAK.search(markup):
            self.builder.add_empty([element], is_space=True)
        else:
            return super().add_inline(number, end)
        return end

    def _markup(self, number: int, element: Span) -> str:
        """Return an element with the markup that it stands for."""
        text = self.source[slice(*element)]
        key = re.search(r"""\sdataRef(?:Start)?\s*=\s*["']([^"']+)""", text)
        if key:
            while number > 0 and self.pieces[number].name != "unit":
                number = self.parents[number]
            data = re.compile(rf"""data\s[^>]*\bid=["']{re.escape(key[1])}["'][^>]*>([^<]*)""")
            match = data.search(self.source, self.pieces[max(0, number)].begin, element[0])
            text += match[1] if match else ""
        return text

    def _key(self, piece: Piece) -> str:
        """Return a name that is the same for both ends of a pair."""
        values = map(piece.attribute, ("rid", "startRef", "id"))
        return f"pair {next(filter(None, values), '')}"


@formats.register("xliff")
class XliffFormat(XmlFormat):
    """Files of translators."""

    reads = frozenset({"retranslate"})
    keeps_equal = False
    vocabulary = Vocabulary(inline=names("g pc mrk"), only_in=names("source"))

    def segments(self, source: str) -> Iterator[Segment | None]:
        """Return the units that are not translated, in order."""
        check_xml(source)
        return _Reader(source, self.vocabulary).units(self.options.retranslate)

    def language_edits(self, tag: Piece) -> Iterator[tuple[Span, str]]:
        """Yield the language of the targets if it is missing."""
        if tag.kind != "open" or not tag.name.endswith(_NAMING):
            return
        places = dict(tag.attributes())
        for source_name, target_name in _LANGUAGES:
            begin, end = places.get(target_name, (tag.end - 1, tag.end - 1))
            if begin == end and tag.attribute(source_name):
                language = self.languages.tag
                is_new = target_name not in places
                yield (begin, end), f' {target_name}="{language}"' if is_new else language

    def rendered(self, segment: Segment, translation: AlignedText, source: ReadSource) -> str:
        """Return a unit up to the end of its target."""
        before, behind = segment.note
        return f"{before}{super().rendered(segment, translation, source)}{behind}"


def _with_state(tag: str, state: str) -> str:
    return f'{_STATE.sub("", tag).removesuffix(">")} state="{state}">'
