r"""Files with both sides of a text: translation memories (``.tmx``) and tables (``.tsv``).

A table has a pair a line, and tabs between its columns; quotes mean nothing. The columns are the
source and the target, or document, segment, source and target. A first line with the languages
names the columns instead. Without a column for the document, an empty line ends one.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

from relu_nmt.data.groups import DOCUMENT_TAG, SEPARATOR_TESTS
from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import (
    CHUNK_BYTES,
    DECOMPRESSORS,
    Chunk,
    TextFile,
    iterate_lines,
)
from relu_nmt.tokenization.tmx import DOCUMENT_PROPERTIES, Unit, read_tmx

Pair = tuple[str, ...]
"""The text of each language, one line each."""
LEFT_OUT = "pairs left out, as a side is missing or empty"


def pair_format(path: str | os.PathLike[str]) -> str | None:
    """Return ``.tmx`` or ``.tsv`` for the name of a file with both sides, which may be compressed.

    Example:
        >>> pair_format("memory.tmx.gz"), pair_format("corpus/train")
        ('.tmx', None)
    """
    name = Path(path)
    ending = (name.with_suffix("") if name.suffix in DECOMPRESSORS else name).suffix.lower()
    return ending if ending in (".tmx", ".tsv") else None


def _code(language: str) -> str:
    return language.strip().lower().replace("_", "-")


def find_language(wanted: str, codes: Sequence[str]) -> int | None:
    """Return the position of a language: of its own code, or else the first with a region.

    Example:
        >>> find_language("de", ["EN_US", "de-AT", "DE"]), find_language("en", ["EN_US"])
        (2, 0)
    """
    found, name = [_code(code) for code in codes], _code(wanted)
    if name in found:
        return found.index(name)
    return next((n for n, code in enumerate(found) if code.startswith(f"{name}-")), None)


def _one_line(text: str) -> str:
    return " ".join(filter(None, map(str.strip, text.replace("\r", "\n").split("\n"))))


def _columns(
    cells: Sequence[str], languages: Sequence[str]
) -> tuple[bool, int | None, list[int]] | None:
    """Return if a table's first line names its columns, the document's column and the texts'.

    None if the columns are not known.
    """
    names = [cell.strip().lower() for cell in cells]
    texts = []
    for language, side in zip(languages, ("source", "target"), strict=False):
        place = find_language(language, names)
        texts.append(names.index(side) if place is None and side in names else place)
    named = [place for place in texts if place is not None]
    if len(named) == len(texts):
        return True, next((n for n, x in enumerate(names) if x in DOCUMENT_PROPERTIES), None), named
    if len(cells) not in (2, 4):
        return None
    first = len(cells) - 2
    return False, 0 if first else None, [first, first + 1][: len(languages)]


def _read_table(path: str, languages: Sequence[str]) -> Iterator[Unit]:
    """Yield the lines of a table like the units of a TMX.

    Raises:
        DataError: a line is not UTF-8, or has other columns than expected.
    """
    width, blocks = 0, 0
    document: int | None = None
    places: list[int] = []
    for number, line in enumerate(iterate_lines(path), 1):
        cells = line.split("\t")
        if not line.strip():
            blocks += 1
            continue
        if not width:
            width, columns = len(cells), _columns(cells, languages)
            if columns is None:
                raise DataError(
                    f"{path}:{number}: {width} columns, expected two (source, target) or four "
                    "(document, segment, source, target) with tabs between them, or a first "
                    f"line that names the columns: {' and '.join(languages)}"
                )
            is_header, document, places = columns
            if is_header:
                continue
        if len(cells) != width:
            raise DataError(
                f"{path}:{number}: {len(cells)} columns, expected {width} as in the first line"
            )
        name = str(blocks or "") if document is None else cells[document].strip()
        texts = (cells[place] for place in places)
        yield name, dict(zip(languages, texts, strict=True))


def read_pairs(
    path: str | os.PathLike[str], languages: Sequence[str], counts: Counter[str]
) -> Iterator[tuple[str, Pair]]:
    """Yield the pairs of a file, each text as one line.

    Args:
        path: a file of which :func:`pair_format` knows the format.
        languages: source and target language, or the source language alone.
        counts: is increased by what was left out.

    Returns:
        Yields the document ("" if it is not known) and the texts.

    Raises:
        DataError: the file cannot be read or is damaged, or has no pair of these languages.
    """
    path = os.fspath(path)
    is_tmx = pair_format(path) == ".tmx"
    found = 0
    others: dict[str, None] = {}
    for document, texts in read_tmx(path) if is_tmx else _read_table(path, languages):
        codes = list(texts)
        places = [find_language(language, codes) for language in languages]
        pair = tuple("" if n is None else _one_line(texts[codes[n]]) for n in places)
        if all(pair):
            found += 1
            yield document, pair
            continue
        counts[LEFT_OUT] += 1
        if len(others) < 20:
            others |= dict.fromkeys(codes)
    if not found:
        there = f"; its languages are {', '.join(map(repr, others))}" if others and is_tmx else ""
        raise DataError(f"{path}: no pair of {' and '.join(map(repr, languages))} in it{there}")


@dataclass
class PairSide(TextFile):
    """One side of a file of pairs, as if it were a text file of its own.

    Args:
        languages: those of the file.
        side: position of this one in ``languages``.
        separator: what stands between documents, see
            :data:`relu_nmt.data.groups.SEPARATOR_TESTS`.
    """

    languages: Sequence[str] = ()
    side: int = 0
    separator: str = "none"
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def language(self) -> str:
        """The language of this side."""
        return self.languages[self.side]

    @property
    def is_compressed(self) -> bool:
        """Return whether the file has to be read from its beginning."""
        return True

    def blocks(self) -> Iterator[list[Pair]]:
        """Yield the lines of all sides, some hundred kilobytes at a time."""
        separates = SEPARATOR_TESTS[self.separator]
        between = tuple([DOCUMENT_TAG if self.separator == "tag" else ""] * len(self.languages))
        block: list[Pair] = []
        size, last = 0, None
        self.counts.clear()
        for document, pair in read_pairs(self.path, self.languages, self.counts):
            if any(map(separates, pair)):
                self.counts[LEFT_OUT] += 1
                continue
            if document != last:
                self.counts["documents"] += 1
                if self.separator == "tag" or (self.separator == "blank" and last is not None):
                    block.append(between)
                last = document
            block.append(pair)
            self.counts["pairs"] += 1
            size += sum(map(len, pair))
            if size >= CHUNK_BYTES:
                yield block
                block, size = [], 0
        if block:
            yield block

    def data(self, block: Sequence[Pair]) -> bytes:
        """Return the lines of this side as a file has them."""
        return "".join(f"{pair[self.side]}\n" for pair in block).encode()

    def readable_chunks(self) -> Iterator[Chunk]:
        """Yield the chunks with their text.

        Raises:
            DataError: the file cannot be read any more, or was changed.
        """
        for chunk, block in zip_longest(self.chunks, self.blocks()):
            data = self.data(block or ())
            if chunk is None or len(data) != chunk.end - chunk.start:
                raise DataError(f"{self.path}: was changed while it was read; start again")
            yield replace(chunk, data=data)


def scan_pairs(path: str, languages: Sequence[str], separator: str) -> list[PairSide]:
    """Read through a file of pairs once, as :func:`relu_nmt.io.text_lines.scan_text` does.

    Returns:
        Its sides, in the order of ``languages``.

    Raises:
        DataError: see :func:`read_pairs`.
    """
    sides = [PairSide(path, languages=languages, side=n, separator=separator) for n in (0, 1)]
    sides = sides[: len(languages)]
    digests = [hashlib.sha256() for _ in sides]
    for block in sides[0].blocks():
        for side, digest in zip(sides, digests, strict=True):
            data = side.data(block)
            digest.update(data)
            start = side.num_bytes
            side.num_bytes += len(data)
            side.chunks.append(Chunk(path, start, side.num_bytes, side.num_lines + 1))
            side.num_lines += len(block)
    for side, digest in zip(sides, digests, strict=True):
        side.sha256 = digest.hexdigest()
    return sides


def describe(side: PairSide) -> str:
    """Return in a line what was found in a file of pairs."""
    counts = side.counts
    text = f"{side.path}: {counts['pairs']:,} pairs of {' and '.join(side.languages)}"
    if side.separator != "none":
        text += f" in {counts['documents']:,} documents"
    return text + (f"; {counts[LEFT_OUT]:,} {LEFT_OUT}" if counts[LEFT_OUT] else "")
