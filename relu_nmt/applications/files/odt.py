"""OpenDocument text: paragraphs and headings of the content, headers and footers."""

from collections.abc import Mapping

from relu_nmt.applications.files import formats
from relu_nmt.applications.files.container import ZipFormat
from relu_nmt.applications.files.document import Document
from relu_nmt.applications.files.markup import Vocabulary, XmlFormat, names


class OdtPart(XmlFormat):
    """A part with content."""

    vocabulary = Vocabulary(
        inline=names("text:span text:a text:meta text:ruby text:ruby-base text:ruby-text"),
        repeating=names("text:span"),
        spaces=names("text:s text:tab text:line-break"),
        skipped=names("text:tracked-changes office:scripts office:font-face-decls"),
        only_in=names("text:p text:h svg:title svg:desc"),
    )


@formats.register("odt")
class OdtFormat(ZipFormat):
    """OpenDocument text."""

    def documents(self, parts: Mapping[str, bytes]) -> dict[str, Document]:
        """Return the parts that have text, in reading order (KeyError: one is missing)."""
        reader = OdtPart(self.options)
        documents = {"content.xml": reader.read(parts["content.xml"])}
        if "styles.xml" in parts:
            documents["styles.xml"] = reader.read(parts["styles.xml"])
        return documents
