r"""Text files as lines: found, counted and read in pieces of bounded size.

A line ends in ``\n``, ``\r\n`` or ``\r``, as in Python's text files and in fairseq; no other
character ends a line. The last line may lack its end. A byte-order mark at the beginning is no
part of the text. A file whose name ends in ``.gz``, ``.xz``, ``.bz2`` or ``.zst`` is decompressed
while it is read.
"""

import codecs
import hashlib
import io
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from relu_nmt.errors import DataError, MissingExtraError
from relu_nmt.io.standard_streams import standard_input

CHUNK_BYTES = 256 * 1024
# Small, since a few bytes may stand for very many.
COMPRESSED_BYTES = 4 * 1024


@dataclass(frozen=True)
class Chunk:
    """Whole lines of a file.

    Args:
        path: the file.
        start: first byte.
        end: byte after the last one.
        first_line: number of the first line in the file, counted from 1.
        data: its bytes, where nobody can read them in the middle of the file: it is compressed.
            The positions are then those in the text.
    """

    path: str
    start: int
    end: int
    first_line: int
    data: bytes | None = None


@dataclass
class TextFile:
    """What reading through a text file once tells.

    Args:
        path: the file.
        num_bytes: size of the text, which is larger than that of a compressed file.
        num_lines: its lines.
        sha256: checksum of the text.
        chunks: the file in pieces of whole lines, in order.
        num_lone_returns: carriage returns without a line feed behind them; each ends a line.
    """

    path: str
    num_bytes: int = 0
    num_lines: int = 0
    sha256: str = ""
    chunks: list[Chunk] = field(default_factory=list)
    num_lone_returns: int = 0

    @property
    def is_compressed(self) -> bool:
        """Whether the file has to be read from its beginning."""
        return Path(self.path).suffix in DECOMPRESSORS

    def readable_chunks(self) -> Iterator[Chunk]:
        """Yield the chunks so that :func:`read_chunk` can read them in any process.

        Raises:
            DataError: the file is compressed and cannot be read any more.
        """
        if not self.is_compressed:
            yield from self.chunks
            return
        with reading(self.path), open_text(self.path) as file:
            for chunk in self.chunks:
                yield replace(chunk, data=file.read(chunk.end - chunk.start))


def _xz() -> Any:
    import lzma

    return lzma.LZMADecompressor()


def _bz2() -> Any:
    import bz2

    return bz2.BZ2Decompressor()


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError as missing:
        raise MissingExtraError(
            "reading .zst files needs the package zstandard: pip install 'relu-nmt[zstd]'"
        ) from missing
    return zstandard.ZstdDecompressor().decompressobj()


DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": partial(zlib.decompressobj, wbits=16 + zlib.MAX_WBITS),
    ".xz": _xz,
    ".bz2": _bz2,
    ".zst": _zstd,
}
"""By the ending of the file's name: what makes an object with decompress, eof, unused_data."""


class _Decompressed(io.RawIOBase):
    """The bytes that a compressed file stands for; a file may be several, one after another.

    The libraries' own readers do not serve: zstandard's ends quietly where a file was cut short.
    """

    def __init__(self, file: BinaryIO, make_decompressor: Callable[[], Any]) -> None:
        self._file = file
        self._make = make_decompressor
        self._current: Any = None
        self._rest = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            block = self._rest or self._file.read(COMPRESSED_BYTES)
            self._rest = b""
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
            except Exception as error:  # each library has a class of its own
                raise OSError(f"the compressed file is damaged ({error})") from error
            if self._current.eof:
                self._rest, self._current = self._current.unused_data, None
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def open_text(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a text file for reading its bytes, decompressed if its name ends so.

    Raises:
        OSError: it cannot be read; reading may raise it too, see :func:`reading`.
        MissingExtraError: what decompresses it is not installed.
    """
    make = DECOMPRESSORS.get(Path(path).suffix)
    if make is None:
        return open(path, "rb")
    make()
    return io.BufferedReader(_Decompressed(open(path, "rb"), make), CHUNK_BYTES)


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what goes wrong while the text of a file is read into a message that names it.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot read the text: {error.strerror or error}") from error


def find_text(path: str) -> str:
    """Return the path of a text file, which may lie there compressed: ``train.de.gz``.

    A path at which there is no file, compressed or not, comes back as it is.
    """
    candidates = (path, *(path + ending for ending in DECOMPRESSORS))
    return next((one for one in candidates if os.path.isfile(one)), path)


def decode_lines(data: bytes, path: str, first_line: int = 1) -> list[str]:
    """Return the lines of ``data`` without their ends.

    Args:
        data: UTF-8 text, whole lines.
        path: where it came from, for messages.
        first_line: number of its first line in that file.

    Raises:
        DataError: the bytes are not UTF-8; the message gives the line.
    """
    if first_line == 1:
        data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + _count_ends(data[: error.start])
        byte = data[error.start]
        raise DataError(
            f"{path}:{line}: not UTF-8 (byte 0x{byte:02x}); convert the file to UTF-8, for "
            "example with iconv"
        ) from error
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


def _count_ends(data: bytes) -> int:
    """Return how many line ends there are in ``data``."""
    ends = data.count(b"\n")
    if b"\r" in data:
        ends += data.count(b"\r") - data.count(b"\r\n")
    return ends


def _end_of_lines(data: bytes, at_end_of_file: bool) -> int:
    """Return the length of the whole lines at the beginning of ``data``."""
    if at_end_of_file:
        return len(data)
    end = data.rfind(b"\n") + 1
    # A file with \r only. The last byte does not count: \n may follow it.
    return end or data.rfind(b"\r", 0, len(data) - 1) + 1


def scan_text(path: str, chunk_bytes: int = CHUNK_BYTES) -> TextFile:
    """Read through a text file once: check that it is UTF-8, count and cut it up.

    Memory: some times ``chunk_bytes``, or the longest line if that is longer.

    Raises:
        DataError: the file cannot be read or is not UTF-8.
    """
    result = TextFile(path)
    digest = hashlib.sha256()
    rest = b""
    with reading(path), open_text(path) as file:
        while True:
            block = file.read(chunk_bytes)
            digest.update(block)
            data = rest + block
            cut = _end_of_lines(data, at_end_of_file=not block)
            whole, rest = data[:cut], data[cut:]
            if whole:
                count = len(decode_lines(whole, path, result.num_lines + 1))
                start = result.num_bytes
                end = result.num_bytes = start + len(whole)
                result.chunks.append(Chunk(path, start, end, result.num_lines + 1))
                result.num_lines += count
                result.num_lone_returns += whole.count(b"\r") - whole.count(b"\r\n")
            if not block:
                break
    result.sha256 = digest.hexdigest()
    return result


def read_chunk(chunk: Chunk) -> list[str]:
    """Return the lines of a chunk without their ends.

    Raises:
        DataError: the file cannot be read any more, or was changed meanwhile.
    """
    if chunk.data is not None:
        data = chunk.data
    else:
        with reading(chunk.path), open_text(chunk.path) as file:
            file.seek(chunk.start)
            data = file.read(chunk.end - chunk.start)
    if len(data) != chunk.end - chunk.start:
        raise DataError(f"{chunk.path}: was changed while it was read; start again")
    return decode_lines(data, chunk.path, chunk.first_line)


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """Return all lines of a file without their ends.

    Raises:
        DataError: the file cannot be read or is not UTF-8.
    """
    with reading(path), open_text(path) as file:
        data = file.read()
    return decode_lines(data, os.fspath(path))


def read_input(path: str) -> list[str]:
    """Return the lines of what a command is given to read: a file, or ``-``, standard input.

    Raises:
        DataError: it cannot be read or is not UTF-8.
    """
    if path != "-":
        return read_lines(path)
    with reading("standard input"):
        return decode_lines(standard_input().read(), "standard input")
