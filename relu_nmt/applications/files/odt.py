"""OpenDocument text: paragraphs and headings of the content, headers and footers."""

from collections.abc import Mapping

from relu_nmt.applications.files import formats
from relu_nmt.applications.files.container import ZipFormat
from relu_nmt.applications.files.document import TextDocument
from relu_nmt.applications.files.markup import MarkupReader, Vocabulary, XmlFormat, names
from relu_nmt.applications.files.segments import Segment

ODT = Vocabulary(
    inline=names("text:span text:a text:meta text:ruby text:ruby-base text:ruby-text"),
    repeating=names("text:span"),
    empty=names(
        "text:s text:tab text:line-break text:soft-page-break text:note text:annotation "
        "text:bookmark text:bookmark-start text:bookmark-end text:reference-mark "
        "text:reference-mark-start text:reference-mark-end text:change text:change-start "
        "text:change-end text:page-number text:page-count text:date text:time text:bookmark-ref "
        "text:reference-ref text:note-ref text:sequence text:title text:author-name text:chapter "
        "text:file-name text:toc-mark text:toc-mark-start text:toc-mark-end text:user-field-get "
        "text:alphabetical-index-mark text:hidden-text text:placeholder text:text-input "
        "office:annotation office:annotation-end draw:frame draw:a draw:custom-shape draw:g "
        "draw:line draw:rect draw:control"
    ),
    spaces=names("text:s text:tab text:line-break"),
    skipped=names("text:tracked-changes office:scripts office:font-face-decls"),
    only_in=names("text:p text:h svg:title svg:desc"),
)


class OdtPart(XmlFormat):
    """A part with content."""

    def segments(self, source: str) -> list[Segment]:
        """Return the segments of a part in reading order."""
        return MarkupReader(source, ODT).segments()


@formats.register("odt")
class OdtFormat(ZipFormat):
    """OpenDocument text."""

    def documents(self, parts: Mapping[str, bytes]) -> dict[str, TextDocument]:
        """Return the parts that have text, in reading order (KeyError: one is missing)."""
        reader = OdtPart(self.options)
        styles = [name for name in ["styles.xml"] if name in parts]
        return {name: reader.read(parts[name]) for name in ["content.xml", *styles]}
