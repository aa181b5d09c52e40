"""Files with both sides of a text: translation memories (``.tmx``), tables (``.tsv``), and yours.

A translation memory is in TMX, the exchange format of translation tools. A table has one pair a
line and tabs between its columns. Quotes have no meaning. The columns are source and target, or
document, segment, source and target. A first line with the languages names other columns. Without
a column for the document, an empty line ends a document.
"""

import hashlib
import html
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO
from xml.parsers import expat

from relu_nmt.data import Unit, pair_formats
from relu_nmt.data.documents import DOCUMENT_TAG, SEPARATOR_TESTS
from relu_nmt.errors import DataError, counted
from relu_nmt.io import text_lines

TextPair = tuple[str, ...]  # the text of each language, one line each
LEFT_OUT = "pairs left out, as a side is missing or empty"
# Elements of native codes. The content of <hi> and of unknown elements is text, and is kept.
CODES = frozenset(("bpt", "ept", "it", "ph", "ut", "sub"))
# Names that tools give to the document of a pair, without "x-" and text behind a colon.
DOCUMENT_PROPERTIES = frozenset(
    ("document", "doc", "doc. no.", "file", "fileid", "filename", "source-document", "sourcefile")
)


def pair_format(path: str | os.PathLike[str]) -> str | None:
    """Return the ending of a file with both sides, such as ``.tmx``, before one of compression.

    None: the name has no registered ending.

    Example:
        >>> pair_format("memory.tmx.gz"), pair_format("corpus/train")
        ('.tmx', None)
    """
    name = Path(path)
    if name.suffix in text_lines.DECOMPRESSORS:
        name = name.with_suffix("")
    ending = name.suffix.lower()
    return ending if ending in pair_formats.names() else None


def find_language(language: str, codes: Sequence[str]) -> int | None:
    """Return the index of a language's code, or else of its first code with a region.

    Example:
        >>> find_language("de", ["EN_US", "de-AT", "DE"]), find_language("en", ["EN_US"])
        (2, 0)
    """
    name = _plain_code(language)
    plain_codes = list(map(_plain_code, codes))
    if name in plain_codes:
        return plain_codes.index(name)
    for index, code in enumerate(plain_codes):
        if code.startswith(f"{name}-"):
            return index
    return None


def _plain_code(language: str) -> str:
    return language.strip().lower().replace("_", "-")


def _one_line(text: str) -> str:
    return " ".join(filter(None, map(str.strip, text.replace("\r", "\n").split("\n"))))


def _names_document(kind: str) -> bool:
    """Return True if a property of this type names the document, as x-filename:SingleString."""
    return any(x.removeprefix("x-") in DOCUMENT_PROPERTIES for x in kind.lower().split(":"))


class _TmxUnits:
    """Handlers of the XML parser. They append complete units to ``done``."""

    def __init__(self, path: str) -> None:
        self.done: list[Unit] = []
        self._path = path
        self._language = self._document = ""
        self._texts: dict[str, str] = {}
        self._pieces: list[str] | None = None  # of the open segment or property
        self._codes = 0  # number of open codes
        self._after_code = False
        self.parser = expat.ParserCreate()
        # Get texts in one piece, not cut at each entity.
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start_root
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        # Refuse entities, which could expand without end or read other files.
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
                    self._pieces.append(" ")
        elif name == "tu":
            self._document = ""
            self._texts = {}
        elif name == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif name == "seg" or (name == "prop" and _names_document(attributes.get("type", ""))):
            self._pieces = []
            self._after_code = False

    def _text(self, text: str) -> None:
        if self._pieces is None:
            return
        if self._codes:
            if "<br" in text.lower():
                self._pieces.append(" ")
            return
        if self._after_code and (not self._pieces or self._pieces[-1].endswith(" ")):
            text = text.lstrip(" ")  # keep one of two spaces around a code
        if text:
            self._pieces.append(text)
            self._after_code = False

    def _end(self, name: str) -> None:
        if self._codes:
            self._codes -= 1
            self._after_code = True
        elif name in ("seg", "prop") and self._pieces is not None:
            text = "".join(self._pieces)
            self._pieces = None
            if name == "prop":
                self._document = self._document or text.strip()
            else:
                self._texts.setdefault(self._language, text)
        elif name == "tu":
            self.done.append((self._document, self._texts))
            self._document = ""
            self._texts = {}


@pair_formats.register(".tmx")
def read_tmx(path: str, languages: Sequence[str]) -> Iterator[Unit]:
    """Yield the units of a TMX, levels 1 and 2, without the codes in their texts.

    Memory does not grow with the file. Entities that a file declares are refused, and nothing
    outside the file is read. A damaged file is a DataError.

    Reference: TMX 1.4b Specification, LISA/OSCAR 2005.
    """
    units = _TmxUnits(path)
    with text_lines.reading(path), text_lines.open_text(path) as file:
        while True:
            block = file.read(4 * text_lines.CHUNK_BYTES)
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


def _columns(
    cells: Sequence[str], languages: Sequence[str]
) -> tuple[bool, int | None, list[int]] | None:
    """Return if the first line is a header, and the columns of document and texts, or None."""
    names = [cell.strip().lower() for cell in cells]
    columns = []
    for language, side in zip(languages, ("source", "target"), strict=False):
        column = find_language(language, names)
        if column is None and side in names:
            column = names.index(side)
        if column is not None:
            columns.append(column)
    # Take the line for a header only if it names all columns.
    if len(columns) == len(languages):
        for index, name in enumerate(names):
            if name in DOCUMENT_PROPERTIES:
                return True, index, columns
        return True, None, columns
    # Guess from the number of columns: two are texts, four are document, segment and texts.
    if len(cells) == 2:
        return False, None, [0, 1][: len(languages)]
    if len(cells) == 4:
        return False, 0, [2, 3][: len(languages)]
    return None


@pair_formats.register(".tsv")
def read_table(path: str, languages: Sequence[str]) -> Iterator[Unit]:
    """Yield the lines of a table, which may be compressed, like the units of a TMX."""
    width = 0
    blocks = 0
    document: int | None = None
    text_columns: list[int] = []
    for number, line in enumerate(text_lines.iterate_lines(path), 1):
        cells = line.split("\t")
        if not line.strip():
            blocks += 1
            continue
        if not width:
            # The first line gives the number of columns, and may name them.
            width = len(cells)
            header = _columns(cells, languages)
            if header is None:
                raise DataError(
                    f"{path}:{number}: {width} columns, expected two (source, target) or four "
                    "(document, segment, source, target) with tabs between them, or a first "
                    f"line that names the columns: {' and '.join(languages)}"
                )
            is_header, document, text_columns = header
            if is_header:
                continue
        elif len(cells) != width:
            raise DataError(
                f"{path}:{number}: {len(cells)} columns, expected {width} as in the first line"
            )
        # Without a column for the document, empty lines number the documents.
        name = str(blocks or "")
        if document is not None:
            name = cells[document].strip()
        texts = [cells[column] for column in text_columns]
        yield name, dict(zip(languages, texts, strict=True))


def read_pairs(
    path: str | os.PathLike[str], languages: Sequence[str], counts: Counter[str]
) -> Iterator[tuple[str, TextPair]]:
    """Yield each pair of a file with its document, or "". Count omitted pairs in ``counts``."""
    path = os.fspath(path)
    read_units = pair_formats.get(pair_format(path) or "")
    num_pairs = 0
    other_languages: dict[str, None] = {}
    for document, texts in read_units(path, languages):
        # A file may have any languages and regions. Find the ones to translate.
        codes = list(texts)
        pair: list[str] = []
        for language in languages:
            index = find_language(language, codes)
            pair.append("" if index is None else _one_line(texts[codes[index]]))
        if all(pair):
            num_pairs += 1
            yield document, tuple(pair)
            continue
        counts[LEFT_OUT] += 1
        if len(other_languages) < 20:
            other_languages |= dict.fromkeys(codes)
    if not num_pairs:
        in_file = ""
        if other_languages and other_languages.keys() != set(languages):
            in_file = f"; its languages are {', '.join(map(repr, other_languages))}"
        raise DataError(f"{path}: no pair of {' and '.join(map(repr, languages))} in it{in_file}")


def _blocks(
    path: str, languages: Sequence[str], separator: str, counts: Counter[str]
) -> Iterator[list[TextPair]]:
    """Yield the lines of all sides in blocks of about :data:`CHUNK_BYTES`, separators included."""
    separates = SEPARATOR_TESTS[separator]
    between = (DOCUMENT_TAG if separator == "tag" else "",) * len(languages)
    block: list[TextPair] = []
    size = 0
    last = None
    for document, pair in read_pairs(path, languages, counts):
        # A sentence that looks like a separator would divide a document.
        if any(map(separates, pair)):
            counts[LEFT_OUT] += 1
            continue
        if document != last:
            counts["documents"] += 1
            if separator == "tag" or (separator == "blank" and last is not None):
                block.append(between)
            last = document
        block.append(pair)
        counts["pairs"] += 1
        size += sum(map(len, pair))
        if size >= text_lines.CHUNK_BYTES:
            yield block
            block = []
            size = 0
    if block:
        yield block


def scan_pairs(
    path: str, languages: Sequence[str], separator: str, new_file: Callable[[], BinaryIO]
) -> tuple[list[text_lines.TextFile], str]:
    """Write each side of a file of pairs to a ``new_file``. Return the sides and a report."""
    counts: Counter[str] = Counter()
    files = [new_file() for _ in languages]
    sides = [text_lines.TextFile(path, copy=file) for file in files]
    digests = [hashlib.sha256() for _ in languages]
    for block in _blocks(path, languages, separator, counts):
        columns = zip(*block, strict=True)
        for side, file, digest, lines in zip(sides, files, digests, columns, strict=True):
            data = "\n".join((*lines, "")).encode()
            digest.update(data)
            file.write(data)
            side.add_chunk(data, len(lines))
    for side, digest in zip(sides, digests, strict=True):
        side.sha256 = digest.hexdigest()
    report = f"{path}: {counted(counts['pairs'], 'pair')} of {' and '.join(languages)}"
    if separator != "none":
        report += f" in {counted(counts['documents'], 'document')}"
    if counts[LEFT_OUT]:
        report += f"; {counts[LEFT_OUT]:,} {LEFT_OUT}"
    return sides, report
