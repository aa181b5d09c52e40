"""Zip files with parts of XML. Only parts whose text changes are written anew."""

import io
import struct
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from relu_nmt.applications.files import MOST_BYTES
from relu_nmt.applications.files.aligned_words import AlignedText
from relu_nmt.applications.files.document import Document, FileFormat
from relu_nmt.applications.files.segments import Segment
from relu_nmt.errors import DataError, reporting

MOST_RATIO = 200
"""Most bytes of a part of a zip file for each compressed byte. A file with more is a zip bomb."""
MOST_PARTS = 10_000
ZIP_DAMAGES = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    ValueError,
    OSError,
    RuntimeError,
)


class ZipFormat(FileFormat):
    """A format whose files are zip files."""

    def read(self, content: bytes) -> Document:
        parts = read_parts(content)
        documents: dict[str, Document] = {}
        with reporting("it is no file of this format", caught=KeyError):
            for name, part_format in self.parts_with_text(parts):
                if name not in documents:
                    documents[name] = part_format.read(parts[name])
        segments: list[Segment] = []
        for document in documents.values():
            segments += document.segments
        return Document(segments, partial(_written_zip, content, documents))

    @abstractmethod
    def parts_with_text(self, parts: Mapping[str, bytes]) -> Iterator[tuple[str, FileFormat]]:
        """Yield the names and formats of parts, in reading order (KeyError: one is missing)."""


def read_parts(content: bytes) -> dict[str, bytes]:
    """Return the parts of a zip file by name (DataError: damaged, encrypted, or a zip bomb)."""
    with (
        reporting("it is damaged", caught=ZIP_DAMAGES),
        zipfile.ZipFile(io.BytesIO(content)) as archive,
    ):
        entries = archive.infolist()
        size = sum(entry.file_size for entry in entries)
        ratios = [entry.file_size / max(1, entry.compress_size) for entry in entries]
        is_dense = size > 2**20 and max(ratios) > MOST_RATIO
        if len(entries) > MOST_PARTS or size > MOST_BYTES or is_dense:
            raise DataError("it is much larger than it looks; unpack it, and look at its parts")
        parts = {entry.filename: archive.read(entry) for entry in entries}
    if len(parts) < len(entries):
        raise DataError("it has two parts of the same name")
    return parts


def _written_zip(
    content: bytes, documents: Mapping[str, Document], translations: Sequence[AlignedText]
) -> bytes:
    """Return a zip file with translated parts. Parts keep order and dates."""
    changed = {}
    position = 0
    for name, document in documents.items():
        end = position + len(document.segments)
        changed[name] = document.written(translations[position:end])
        position = end
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(target, "w") as new:
        new.comment = old.comment
        for entry in old.infolist():
            new.writestr(entry, changed.get(entry.filename, old.read(entry)))
    return target.getvalue()
