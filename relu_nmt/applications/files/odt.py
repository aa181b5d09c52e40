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
