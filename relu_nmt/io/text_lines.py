r"""Text files as lines: found, counted and read in pieces of bounded size.

A line ends in ``\n``, ``\r\n`` or ``\r``, as in Python's text files and in fairseq; no other
character ends a line. The last line may lack its end.
"""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from relu_nmt.errors import DataError

CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True)
class Chunk:
    """Whole lines of a file.

    Args:
        path: the file.
        start: first byte.
        end: byte after the last one.
        first_line: number of the first line in the file, counted from 1.
    """

    path: str
    start: int
    end: int
    first_line: int


@dataclass
class TextFile:
    """What reading through a text file once tells.

    Args:
        path: the file.
        num_bytes: its size.
        num_lines: its lines.
        sha256: its checksum.
        chunks: the file in pieces of whole lines, in order.
    """

    path: str
    num_bytes: int = 0
    num_lines: int = 0
    sha256: str = ""
    chunks: list[Chunk] = field(default_factory=list)


def decode_lines(data: bytes, path: str, first_line: int = 1) -> list[str]:
    """Return the lines of ``data`` without their ends.

    Args:
        data: UTF-8 text, whole lines.
        path: where it came from, for messages.
        first_line: number of its first line in that file.

    Raises:
        DataError: the bytes are not UTF-8; the message gives the line.
    """
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


def read_error(path: str | os.PathLike[str], error: OSError) -> DataError:
    """Return the error to raise when a text file cannot be read."""
    return DataError(f"{path}: cannot read the text: {error.strerror}")


def scan_text(path: str, chunk_bytes: int = CHUNK_BYTES) -> TextFile:
    """Read through a text file once: check that it is UTF-8, count and cut it up.

    Memory: some times ``chunk_bytes``, or the longest line if that is longer.

    Raises:
        DataError: the file cannot be read or is not UTF-8.
    """
    result = TextFile(path)
    digest = hashlib.sha256()
    rest = b""
    try:
        with open(path, "rb") as file:
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
                if not block:
                    break
    except OSError as error:
        raise read_error(path, error) from error
    result.sha256 = digest.hexdigest()
    return result


def read_chunk(chunk: Chunk) -> list[str]:
    """Return the lines of a chunk without their ends.

    Raises:
        DataError: the file cannot be read any more, or was changed meanwhile.
    """
    try:
        with open(chunk.path, "rb") as file:
            file.seek(chunk.start)
            data = file.read(chunk.end - chunk.start)
    except OSError as error:
        raise read_error(chunk.path, error) from error
    if len(data) != chunk.end - chunk.start:
        raise DataError(f"{chunk.path}: was changed while it was read; start again")
    return decode_lines(data, chunk.path, chunk.first_line)


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """Return all lines of a file without their ends.

    Raises:
        DataError: the file cannot be read or is not UTF-8.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise read_error(path, error) from error
    return decode_lines(data, os.fspath(path))
