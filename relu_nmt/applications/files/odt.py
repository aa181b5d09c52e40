"""OpenDocument text: paragraphs and headings of the content, headers and footers."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from relu_nmt.applications.files import formats
from relu_nmt.applications.files.container import ZipFormat
from relu_nmt.applications.files.document import Document
from relu_nmt.applications.files.markup import (
    MarkupReader,
    Piece,
    Vocabulary,
    XmlFormat,
    attribute,
    attributes_of,
    names,
)
from relu_nmt.applications.files.segments import Span

_BEHIND_SPACE = re.compile(r"<text:(?:s|tab|line-break)\b[^<>]*/>(?:</?text:span\b[^<>]*>)*\Z")


class _Reader(MarkupReader):
    def add_text(self, piece: Piece) -> None:
        """Add text. Keep its first space also behind an element for a space or line break."""
        text = self.source[piece.begin : piece.end]
        first_word = piece.begin + len(text) - len(text.lstrip())
        begin = max(0, piece.begin - 500)
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

    def language_edits(self, source: str, tag: Piece) -> Iterator[tuple[Span, str]]:
        """Yield the language, the script and the country of a style."""
        language = attribute(source, tag, "fo:language")
        translated = self.languages.after_translation(language)
        if translated == language:
            return
        main, *further = translated.split("-")
        new_values = {
            "fo:language": main,
            "fo:script": next((part for part in further if len(part) == 4), "none"),
            "fo:country": further[-1] if further and len(further[-1]) == 2 else "none",
            "style:rfc-language-tag": translated,
        }
        for name, span in attributes_of(source, tag):
            if name in new_values:
                yield span, new_values[name]


@formats.register("odt")
class OdtFormat(ZipFormat):
    """OpenDocument text."""

    def documents(self, parts: Mapping[str, bytes]) -> dict[str, Document]:
        reader = OdtPart(self.options, self.languages)
        documents = {"content.xml": reader.read(parts["content.xml"])}
        if "styles.xml" in parts:
            documents["styles.xml"] = reader.read(parts["styles.xml"])
        return documents
