"""OpenDocument text: paragraphs and headings of the content, headers and footers."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from relu_nmt.applications.files import formats
from relu_nmt.applications.files.container import ZipFormat
from relu_nmt.applications.files.document import FileFormat
from relu_nmt.applications.files.markup import MarkupReader, Piece, Vocabulary, XmlFormat, names
from relu_nmt.applications.files.segments import Span

_BEHIND_SPACE = re.compile(r"<text:(?:s|tab|line-break)\b[^<>]*/>(?:</?text:span\b[^<>]*>)*\Z")
_MOST_BEFORE = 500  # characters before a text or tag in which its surroundings are sought
_LANGUAGES = {"western": "fo:{}", "asian": "style:{}-asian", "complex": "style:{}-complex"}
"""Attributes for the languages of the kinds of scripts."""
_MODES = {
    "rtl": {"lr-tb": "rl-tb", "lr": "rl", "": "rl-tb"},
    "ltr": {"rl-tb": "lr-tb", "rl": "lr"},
}
"""Writing modes of the new direction, by the modes of the old direction."""
_MIRRORED = {"left": "right", "start": "right", "end": "left", "right": "left", "": "right"}
"""Alignments for the new direction. LibreOffice means left by start in both directions."""
_DIRECTED = names("style:paragraph-properties style:page-layout-properties style:table-properties")
_DIRECTED |= names("style:section-properties style:graphic-properties style:table-cell-properties")
_DEFAULT_STYLE = re.compile(r"""<style:default-style\s[^<>]*family=["']paragraph["'][^<>]*>\s*\Z""")


class _Reader(MarkupReader):
    """Finds the segments of paragraphs, in which elements may stand for spaces."""

    def add_text(self, piece: Piece) -> None:
        """Add text. Keep its first space also behind an element for a space or line break."""
        first_word = piece.end - len(piece.text.lstrip())
        begin = max(0, piece.begin - _MOST_BEFORE)
        if first_word > piece.begin and _BEHIND_SPACE.search(self.source, begin, piece.begin):
            self.builder.add_empty([(piece.begin, first_word)], is_space=True)
            piece = replace(piece, begin=first_word)
        super().add_text(piece)


class OdtPart(XmlFormat):
    """A part with content."""

    reader = _Reader
    vocabulary = Vocabulary(
        inline=names("text:span text:a text:meta text:ruby text:ruby-base text:ruby-text"),
        repeating=names("text:span"),
        spaces=names("text:s text:tab text:line-break"),
        skipped=names("text:tracked-changes office:scripts office:font-face-decls"),
        only_in=names("text:p text:h svg:title svg:desc"),
    )

    def language_edits(self, tag: Piece) -> Iterator[tuple[Span, str]]:
        """Yield the languages and the direction of a style."""
        if ":language" in tag.text:
            yield from self._renaming_edits(tag)
        new = self.languages.new_direction
        if new and tag.name in _DIRECTED:
            begin = max(0, tag.begin - _MOST_BEFORE)
            is_default = new == "rtl" and _DEFAULT_STYLE.search(tag.source, begin, tag.begin)
            for name, values in (("style:writing-mode", _MODES[new]), ("fo:text-align", _MIRRORED)):
                value = tag.attribute(name)
                if value in values and (value or is_default):
                    yield tag.attribute_edit(name, values[value])

    def _renaming_edits(self, tag: Piece) -> Iterator[tuple[Span, str]]:
        """Yield the language, the script and the country of a style for its kind of script."""
        by_script = {kind: _language(tag, kind) for kind in _LANGUAGES}
        kind = self.languages.script_kind
        translated = self.languages.in_target_script(by_script)
        if translated == by_script[kind]:
            return
        main, *further = translated.split("-")
        new_values = {
            "language": main,
            "script": next((part for part in further if len(part) == 4), "none"),
            "country": further[-1] if further and len(further[-1]) == 2 else "none",
        }
        for key, value in new_values.items():
            name = _LANGUAGES[kind].format(key)
            if value != "none" or tag.attribute(name):
                yield tag.attribute_edit(name, value)
        name = _LANGUAGES[kind].format("rfc-language-tag").replace("fo:", "style:")
        if tag.attribute(name):
            yield tag.attribute_edit(name, translated)


def _language(tag: Piece, kind: str) -> str:
    """Return the language of a style, and its country, for a kind of scripts."""
    parts = [tag.attribute(_LANGUAGES[kind].format(x)) for x in ("language", "country")]
    return "-".join(part for part in parts if part not in ("", "none"))


@formats.register("odt")
class OdtFormat(ZipFormat):
    """OpenDocument text."""

    def parts_with_text(self, parts: Mapping[str, bytes]) -> Iterator[tuple[str, FileFormat]]:
        part_format = OdtPart(self.options, self.languages)
        yield "content.xml", part_format
        if "styles.xml" in parts:
            yield "styles.xml", part_format
