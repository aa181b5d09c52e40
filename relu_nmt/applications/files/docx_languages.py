"""Word: the languages of texts, and their direction."""

import re
import unicodedata
from collections.abc import Iterator

from relu_nmt.applications.files.markup import Piece, XmlFormat
from relu_nmt.applications.files.segments import Span

_LANGUAGES = {"western": "w:val", "asian": "w:eastAsia", "complex": "w:bidi"}
"""Attributes for the languages of the kinds of scripts."""
_SWITCHES = {"w:p": "w:bidi", "w:sect": "w:bidi", "w:tbl": "w:bidiVisual", "w:r": "w:rtl"}
"""Elements for text from right to left, by the element whose properties they are."""
_OFF = ("0", "false", "off")
_FOLLOWING = {
    "w:p": "adjustRightInd|snapToGrid|spacing|ind|contextualSpacing|mirrorIndents|suppressOverlap"
    "|jc|textDirection|textAlignment|textboxTightWrap|outlineLvl|divId|cnfStyle|rPr|sectPr",
    "w:sect": "rtlGutter|docGrid|printerSettings",
    "w:tbl": "tblStyleRowBandSize|tblStyleColBandSize|tblW|jc|tblCellSpacing|tblInd|tblBorders"
    "|shd|tblLayout|tblCellMar|tblLook|tblCaption|tblDescription",
    "w:r": "cs|em|lang|eastAsianLayout|specVanish|oMath",
}
"""Properties behind these elements, in the order that Word demands."""
_PLACES = {
    name: re.compile(rf"<(?:/?{name}Pr|{_SWITCHES[name]}|{name}PrChange|w:(?:{following}))\b")
    for name, following in _FOLLOWING.items()
}
_PROPERTIES = re.compile(r"\s*<w:pPr\b")
_TWINS = {
    "rtl": {"w:b": "w:bCs", "w:i": "w:iCs", "w:sz": "w:szCs"},
    "ltr": {"w:bCs": "w:b", "w:iCs": "w:i", "w:szCs": "w:sz"},
}
"""Properties of runs that have another name in the new direction."""
_MOST_BETWEEN = 1_000  # most characters between two properties of a run


class WordXml(XmlFormat):
    """XML with the properties of Word for languages and directions."""

    def language_edits(self, tag: Piece) -> Iterator[tuple[Span, str]]:
        """Yield the places of languages and directions at a tag, in order, and their new texts."""
        new = self.languages.new_direction
        if tag.name == "w:lang":
            # Word reads the attribute for the script of a text.
            by_kind = {kind: tag.attribute(name) for kind, name in _LANGUAGES.items()}
            language = self.languages.in_target_script(by_kind)
            if language:
                yield tag.attribute_edit(_LANGUAGES[self.languages.script_kind], language)
        elif new and (tag.name in _SWITCHES.values() or tag.name == "w:cs"):
            old = "ltr" if tag.attribute("w:val") in _OFF else "rtl"
            if old != new:
                yield tag.attribute_edit("w:val", "1" if new == "rtl" else "0")
        elif new and tag.name in _TWINS[new]:
            yield from _twin_edits(tag, _TWINS[new][tag.name])
        elif new == "rtl" and tag.name in ("w:p", "w:pPr", "w:sectPr", "w:tblPr"):
            yield from _right_to_left_edits(tag)


def _twin_edits(tag: Piece, twin: str) -> Iterator[tuple[Span, str]]:
    """Yield a property of a run under its name in the other direction, if it is missing."""
    before = tag.source[max(0, tag.begin - _MOST_BETWEEN) : tag.begin].rpartition("<w:rPr")[2]
    behind = tag.source[tag.end : tag.end + _MOST_BETWEEN].partition("</w:rPr")[0]
    if tag.kind == "empty" and not re.search(rf"<{twin}\b", before + behind):
        yield (tag.end, tag.end), tag.text.replace(tag.name, twin, 1)


def _right_to_left_edits(tag: Piece) -> Iterator[tuple[Span, str]]:
    """Yield a switch for the properties of a paragraph, a section or a table."""
    properties = "<w:pPr><w:bidi/></w:pPr>"
    if tag.name == "w:p":
        if tag.kind == "open" and not _PROPERTIES.match(tag.source, tag.end):
            yield (tag.end, tag.end), properties
        return
    name = tag.name.removesuffix("Pr")
    switch = _SWITCHES[name]
    if tag.kind == "empty":
        yield tag.span, f"<{tag.name}><{switch}/></{tag.name}>"
        return
    match = _PLACES[name].search(tag.source, tag.end)
    if match and match[0] != f"<{switch}":
        yield (match.start(), match.start()), f"<{switch}/>"


def right_to_left(properties: str, text: str) -> str:
    """Return the properties of a run, with the switch for a text from right to left.

    A text without letters has the direction of the texts around it.
    """
    directions = {unicodedata.bidirectional(character) for character in text}
    if "L" in directions and not directions & {"R", "AL"}:
        return properties
    properties = properties if "</" in properties else "<w:rPr></w:rPr>"
    match = _PLACES["w:r"].search(properties, 1)
    if match is None or match[0] == "<w:rtl":
        return properties
    return f"{properties[: match.start()]}<w:rtl/>{properties[match.start() :]}"
