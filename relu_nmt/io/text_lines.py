r"""Text files as lines. Functions find, count, read (in pieces of bounded size) and write them.

A line ends in ``\n``, and ``\r\n`` counts as one end. No other character ends a line: a lone
``\r``, U+0085, U+2028 and form feeds are white space within it. Only in a text without any ``\n``
lines end in ``\r``, as old Macs and some programs write them. The last line may lack its end. A
byte-order mark at the beginning is no part of the text. A file whose name ends in ``.gz``, ``.xz``,
``.bz2`` or ``.zst`` is decompressed while it is read.

Lines that are written are read back as they were. So a line that ends in ``\r`` is written with the
end ``\r\n``, and a text that begins with a byte-order mark gets one more.

A file that cannot be read, is not UTF-8, or changes meanwhile is a DataError, and so is a file of
another kind (:mod:`relu_nmt.io.plain_text`).
"""

import codecs
import hashlib
import io
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from relu_nmt.errors import DataError, needing, reporting
from relu_nmt.io.plain_text import BINARY, refuse_binary, refuse_utf16
from relu_nmt.io.process import standard_input
from relu_nmt.io.safe_write import replacing

CHUNK_BYTES = 256 * 1024
# Small, since a few compressed bytes may stand for very many.
COMPRESSED_BYTES = 4 * 1024


@dataclass(frozen=True)
class Chunk:
    """Whole lines of a file, the bytes from ``start`` to ``end`` of its (decompressed) text."""

    path: str
    start: int
    end: int
    first_line: int  # from 1
    data: bytes | None = None  # the bytes, if workers cannot read them from the file


@dataclass
class TextFile:
    """Size and checksum of a text file, decompressed, and the file in chunks."""

    path: str
    num_bytes: int = 0
    num_lines: int = 0
    num_blank: int = 0  # lines without words
    sha256: str = ""
    chunks: list[Chunk] = field(default_factory=list)
    copy: BinaryIO | None = None  # an open file with the text, if ``path`` is in another format

    @property
    def chunks_carry_text(self) -> bool:
        """True if chunks carry their text, since workers cannot start reading in the middle."""
        return self.copy is not None or Path(self.path).suffix in DECOMPRESSORS

    def add_chunk(self, data: bytes, num_lines: int) -> None:
        """Append whole lines to the chunks, and count them."""
        end = self.num_bytes + len(data)
        self.chunks.append(Chunk(self.path, self.num_bytes, end, self.num_lines + 1))
        self.num_bytes = end
        self.num_lines += num_lines

    def readable_chunks(self) -> Iterator[Chunk]:
        """Yield the chunks so that :func:`read_chunk` can read them in any process."""
        if self.copy is not None:
            for chunk in self.chunks:
                self.copy.seek(chunk.start)
                yield replace(chunk, data=self.copy.read(chunk.end - chunk.start))
        elif self.chunks_carry_text:
            with reading(self.path), open_text(self.path) as file:
                for chunk in self.chunks:
                    yield replace(chunk, data=file.read(chunk.end - chunk.start))
        else:
            yield from self.chunks


def _zstd() -> Any:
    with needing("reading .zst files needs the package zstandard: pip install 'relu-nmt[zstd]'"):
        import zstandard
    return zstandard.ZstdDecompressor().decompressobj()


# Makers of objects with decompress, eof and unused_data, by the ending of the file's name.
DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": partial(zlib.decompressobj, wbits=16 + zlib.MAX_WBITS),
    ".xz": lambda: import_module("lzma").LZMADecompressor(),
    ".bz2": lambda: import_module("bz2").BZ2Decompressor(),
    ".zst": _zstd,
}


class _Decompressed(io.RawIOBase):
    """The decompressed bytes of a file, which may be several compressed files in a row."""

    def __init__(self, file: BinaryIO, make_decompressor: Callable[[], Any]) -> None:
        self._file = file
        self._make = make_decompressor
        self._current: Any = None
        self._unread = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            block = self._unread or self._file.read(COMPRESSED_BYTES)
            self._unread = b""
            if not block and self._current is not None:
                raise OSError("the compressed file is cut short")
            if not block:
                return 0
            if self._current is None:
                block = block.lstrip(b"\0")  # padding between parts
                if not block:
                    continue
                self._current = self._make()
            try:
                self._ready = memoryview(self._current.decompress(block))
            except Exception as error:  # each library raises its own class
                raise OSError(f"the compressed file is damaged ({error})") from error
            if self._current.eof:
                self._unread = self._current.unused_data
                self._current = None
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def open_text(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a text file for reading its bytes, decompressed if its name ends so."""
    make = DECOMPRESSORS.get(Path(path).suffix)
    if make is None:
        return open(path, "rb")
    make()
    return io.BufferedReader(_Decompressed(open(path, "rb"), make), CHUNK_BYTES)


def reading(path: str | os.PathLike[str]) -> AbstractContextManager[None]:
    """Turn an error of reading a text file inside the block into an error that names the file."""
    return reporting(f"{path}: cannot read the text")


def find_text(path: str) -> str:
    """Return the path of a text file, or the path of its compressed form, if one exists."""
    for ending in ("", *DECOMPRESSORS):
        if os.path.isfile(path + ending):
            return path + ending
    return path


def decode_lines(data: bytes, path: str, first_line: int = 1) -> list[str]:
    """Return the lines of ``data`` without their ends. An error names the file and the line."""
    if first_line == 1:  # only a file's beginning has a byte-order mark
        data = data.removeprefix(codecs.BOM_UTF8)
        refuse_binary(data, path)
        if b"\n" not in data:  # then these are all lines
            data = data.replace(b"\r", b"\n")
    refuse_utf16(data, path)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if b"\0" in data:
            raise DataError(f"{path}: {BINARY}") from error
        line = first_line + data.count(b"\n", 0, error.start)
        byte = data[error.start]
        raise DataError(
            f"{path}:{line}: not UTF-8 (byte 0x{byte:02x}); convert the file to UTF-8, for "
            "example with iconv"
        ) from error
    return split_lines(text)


def split_lines(text: str) -> list[str]:
    r"""Return the lines of a text without their ends.

    Example:
        >>> split_lines("a\rb\u2028c\r\n\nd")
        ['a\rb\u2028c', '', 'd']
    """
    if "\r" in text:  # to find one character is faster than to find two
        text = text.replace("\r\n", "\n")
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


def whole_lines(read: Callable[[], bytes]) -> Iterator[bytes]:
    """Yield what ``read`` returns, up to its end, in pieces of whole lines."""
    line: list[bytes] = []  # joined when the line ends, since it may be as long as a file
    while block := read():
        end = block.rfind(b"\n") + 1
        if end:
            yield b"".join((*line, block[:end]))
            line.clear()
        line.append(block[end:])
    if any(line):
        yield b"".join(line)


def scan_text(path: str, chunk_bytes: int = CHUNK_BYTES) -> TextFile:
    """Read through a text file once: check that it is UTF-8, count lines and cut it into chunks."""
    result = TextFile(path)
    digest = hashlib.sha256()
    with reading(path), open_text(path) as file:
        for data in whole_lines(partial(file.read, chunk_bytes)):
            digest.update(data)
            lines = decode_lines(data, path, result.num_lines + 1)
            result.num_blank += sum(not line.strip() for line in lines)
            result.add_chunk(data, len(lines))
    result.sha256 = digest.hexdigest()
    return result


def read_chunk(chunk: Chunk) -> list[str]:
    """Return the lines of a chunk without their ends."""
    data = chunk.data
    if data is None:
        with reading(chunk.path), open_text(chunk.path) as file:
            file.seek(chunk.start)
            data = file.read(chunk.end - chunk.start)
    # Compare the length, since the file may have been cut meanwhile.
    if len(data) != chunk.end - chunk.start:
        raise DataError(f"{chunk.path}: was changed while it was read; start again")
    return decode_lines(data, chunk.path, chunk.first_line)


def iterate_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the lines of a file without their ends, in bounded memory."""
    number = 1
    with reading(path), open_text(path) as file:
        for data in whole_lines(partial(file.read, CHUNK_BYTES)):
            lines = decode_lines(data, os.fspath(path), number)
            yield from lines
            number += len(lines)


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """Return all lines of a file without their ends."""
    return list(iterate_lines(path))


def named_input(path: str) -> str:
    """Return the name of a command's input in messages."""
    return "standard input" if path == "-" else path


def read_input(path: str) -> list[str]:
    """Return the lines of a command's input: a file, or ``-`` for standard input."""
    if path != "-":
        return read_lines(path)
    with reading(named_input(path)):
        return decode_lines(standard_input().read(), named_input(path))


def encode_lines(lines: Sequence[str], first_line: int = 1) -> bytes:
    r"""Return lines as UTF-8 with their ends: :func:`decode_lines` gives them back.

    A ``\n`` in a line becomes a space, since it would end the line. Only the first lines of a file
    may need a byte-order mark.

    Example:
        >>> encode_lines(["a", "b\r", "c\rd"])
        b'a\nb\r\r\nc\rd\n'
    """
    text = "\n".join((*lines, ""))
    if text.count("\n") != len(lines) or ("\r" in text and "\r\n" in text):
        text = ""
        for line in lines:
            end = "\r\n" if line.endswith("\r") else "\n"
            text += line.replace("\n", " ") + end
    data = text.encode("utf-8")
    if first_line == 1 and data.startswith(codecs.BOM_UTF8):
        return codecs.BOM_UTF8 + data
    return data


def write_lines(path: str | os.PathLike[str], lines: Iterable[str]) -> None:
    """Write lines to a file by :func:`replacing`: :func:`read_lines` gives them back."""
    with replacing(path) as temporary:
        temporary.write_bytes(encode_lines(list(lines)))
