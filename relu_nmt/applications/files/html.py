"""Web pages: text between block elements, with inline elements as tags."""

import re

from relu_nmt.applications.files import formats
from relu_nmt.applications.files.markup import (
    MarkupFormat,
    MarkupReader,
    Piece,
    Vocabulary,
    attribute,
    names,
)

REPEATING = names("b bdi bdo big cite del dfn em font i ins mark q s small span strike strong sub")
REPEATING |= names("sup u")
HTML = Vocabulary(
    inline=REPEATING | names("a abbr acronym data label rb rp rt ruby time"),
    repeating=REPEATING,
    empty=names("br img input wbr svg math audio video object iframe canvas"),
    spaces=names("br"),
    protected=names("code kbd samp tt var"),
    skipped=names("script style pre textarea template math"),
    attributes={
        "*": names("alt title placeholder aria-label summary"),
        "track": names("label"),
        "option": names("label"),
        "optgroup": names("label"),
    },
    raw=names("script style textarea xmp"),
    is_html=True,
)
_CHARSET = re.compile(rb"""<meta\b[^>]*?\bcharset\s*=\s*["']?([\w.-]+)""", re.IGNORECASE)
_LATIN_1 = names("iso-8859-1 iso8859-1 latin1 ascii us-ascii")
_UNUSED = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")
"""Bytes without a character in the code page of Windows."""
_DESCRIPTION = re.compile(r"(?:og:|twitter:)?(?:description|title)|keywords", re.IGNORECASE)


class HtmlReader(MarkupReader):
    """Finds the segments of a page, the description in its head included."""

    def text_attributes(self, piece: Piece) -> frozenset[str]:
        """Return the names of the attributes of a tag that are text."""
        text_names = super().text_attributes(piece)
        if piece.name == "meta":
            kind = attribute(self.source, piece, "name") + attribute(self.source, piece, "property")
            if _DESCRIPTION.fullmatch(kind):
                return text_names | {"content"}
        if piece.name == "input" and attribute(self.source, piece, "type") in ("submit", "button"):
            return text_names | {"value"}
        return text_names


@formats.register("html")
class HtmlFormat(MarkupFormat):
    """Web pages."""

    vocabulary = HTML
    reader = HtmlReader

    def encoding(self, content: bytes) -> str:
        """Return the encoding that the page declares, by default UTF-8."""
        match = _CHARSET.search(content[:4096])
        declared = match[1].decode() if match else "utf-8"
        # Browsers read Latin 1 as the code page of Windows, which has all its letters.
        if declared.lower() in _LATIN_1 and not _UNUSED.search(content):
            return "cp1252"
        return declared
