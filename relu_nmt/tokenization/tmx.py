"""Translation memories in TMX, the exchange format of translation tools, read unit by unit.

Reference: TMX 1.4b Specification, LISA/OSCAR 2005. Memory does not grow with the file. Entities
that a file declares are refused, and nothing outside the file is read.
"""

import html
import re
from collections.abc import Iterator
from xml.parsers import expat

from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import CHUNK_BYTES, open_text, reading

Unit = tuple[str, dict[str, str]]
"""The document that a unit is from ("" if it is not known), and its texts by language."""
# Native codes. <hi> and elements of no standard are kept, as their content is text.
CODES = frozenset(("bpt", "ept", "it", "ph", "ut", "sub"))
DOCUMENT_PROPERTIES = frozenset(
    ("document", "doc", "doc. no.", "file", "fileid", "filename", "source-document", "sourcefile")
)
"""What tools call the file of a unit, without the beginning "x-" and what stands beside a colon."""


def _names_document(kind: str) -> bool:
    """Say whether a property of this type is the document, as x-filename:SingleString."""
    parts = re.split(":+", kind.lower())
    return any(part.removeprefix("x-") in DOCUMENT_PROPERTIES for part in parts)


class _Units:
    """What the parser calls; ``done`` takes the units that are complete."""

    def __init__(self, path: str) -> None:
        self.done: list[Unit] = []
        self._path = path
        self._language = self._document = ""
        self._texts: dict[str, str] = {}
        self._pieces: list[str] | None = None  # of the segment or property that is open
        self._codes = 0  # that are open
        self._after_code = False
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start_root
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.EntityDeclHandler = self._refuse_entity
        self.parser.SkippedEntityHandler = self._undeclared_entity

    def _error(self, message: str) -> DataError:
        return DataError(f"{self._path}:{self.parser.CurrentLineNumber}: {message}")

    def _refuse_entity(self, name: str, *_: object) -> None:
        raise self._error(f"declares the entity '{name}'; a TMX has none, remove the declaration")

    def _undeclared_entity(self, name: str, _is_parameter: bool) -> None:
        text = html.unescape(f"&{name};")
        if text == f"&{name};":
            raise self._error(f"the entity '&{name};' is not declared")
        self._text(text)

    def _start_root(self, name: str, _: dict[str, str]) -> None:
        if name != "tmx":
            raise self._error(f"expected a TMX, found an XML file of <{name}>")
        self.parser.StartElementHandler = self._start

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if self._pieces is not None:
            if self._codes or name in CODES:
                self._codes += 1
                if attributes.get("type") == "lb":
                    self._break_line()
        elif name == "tu":
            self._document, self._texts = "", {}
        elif name == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif name == "seg" or (name == "prop" and _names_document(attributes.get("type", ""))):
            self._pieces, self._after_code = [], False

    def _break_line(self) -> None:
        if self._pieces is not None:
            self._pieces.append(" ")

    def _text(self, text: str) -> None:
        if self._pieces is None:
            return
        if self._codes:
            if "<br" in text.lower():
                self._break_line()
            return
        if self._after_code and (not self._pieces or self._pieces[-1].endswith(" ")):
            text = text.lstrip(" ")  # of two spaces around a code, one stays
        if text:
            self._pieces.append(text)
            self._after_code = False

    def _end(self, name: str) -> None:
        if self._codes:
            self._codes -= 1
            self._after_code = True
        elif name in ("seg", "prop") and self._pieces is not None:
            text, self._pieces = "".join(self._pieces), None
            if name == "prop":
                self._document = self._document or text.strip()
            else:
                self._texts.setdefault(self._language, text)
        elif name == "tu":
            self.done.append((self._document, self._texts))
            self._document, self._texts = "", {}


def read_tmx(path: str) -> Iterator[Unit]:
    """Yield the units of a TMX, levels 1 and 2, without the codes in their texts.

    Args:
        path: the file, which may be compressed. Its encoding is that of the XML declaration or of
            the byte-order mark.

    Raises:
        DataError: the file cannot be read, is cut short, damaged or no TMX.
    """
    units = _Units(path)
    with reading(path), open_text(path) as file:
        while True:
            block = file.read(4 * CHUNK_BYTES)
            try:
                units.parser.Parse(block, not block)
            except expat.ExpatError as error:
                raise DataError(
                    f"{path}:{error.lineno}: damaged or cut short: {expat.ErrorString(error.code)}"
                ) from error
            except (LookupError, ValueError) as error:
                raise DataError(f"{path}: cannot decode the text: {error}; convert it") from error
            yield from units.done
            units.done.clear()
            if not block:
                return
