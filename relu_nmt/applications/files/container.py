"""Zip files with parts of XML: only the parts whose text changes are written anew."""

import io
import struct
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence

from relu_nmt.applications.files.document import MOST_BYTES, Document, FileFormat, TextDocument
from relu_nmt.applications.files.placing import Translation
from relu_nmt.errors import DataError, reporting

MOST_RATIO = 200
"""Most bytes of a part for each compressed byte. More are a bomb."""
MOST_PARTS = 10_000
_DAMAGES: tuple[type[Exception], ...] = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError),
    *(ValueError, OSError, NotImplementedError, RuntimeError),
)


class ZipFormat(FileFormat):
    """A format whose files are zip files."""

    def read(self, content: bytes) -> "ZipDocument":
        """Return the document in a file (DataError: it is damaged, or a bomb)."""
        parts = read_parts(content)
        with reporting("it is no file of this format", caught=KeyError):
            return ZipDocument(content, self.documents(parts))

    @abstractmethod
    def documents(self, parts: Mapping[str, bytes]) -> dict[str, TextDocument]:
        """Return the parts that have text, in reading order (KeyError: one is missing)."""


def read_parts(content: bytes) -> dict[str, bytes]:
    """Return the parts of a zip file by their names.

    Raises:
        DataError: the file is damaged, encrypted, or much larger than it looks.
    """
    with (
        reporting("it is damaged", caught=_DAMAGES),
        zipfile.ZipFile(io.BytesIO(content)) as archive,
    ):
        entries = archive.infolist()
        size = sum(entry.file_size for entry in entries)
        ratio = max((e.file_size / max(1, e.compress_size) for e in entries), default=0)
        names = {entry.filename for entry in entries}
        if len(entries) > MOST_PARTS or size > MOST_BYTES or (ratio > MOST_RATIO and size > 2**20):
            raise DataError("it is much larger than it looks; unpack it, and look at its parts")
        if len(names) < len(entries):
            raise DataError("it has two parts of one name")
        return {entry.filename: archive.read(entry) for entry in entries}


class ZipDocument(Document):
    """A document in a zip file."""

    def __init__(self, content: bytes, documents: Mapping[str, TextDocument]) -> None:
        self._content = content
        self._documents = documents
        self.segments = [
            segment for document in documents.values() for segment in document.segments
        ]

    def written(self, translations: Sequence[Translation]) -> bytes:
        """Return the file with a translation for each segment. Parts keep order and dates."""
        changed = {}
        position = 0
        for name, document in self._documents.items():
            end = position + len(document.segments)
            changed[name] = document.written(translations[position:end])
            position = end
        target = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(self._content)) as old,
            zipfile.ZipFile(target, "w") as new,
        ):
            new.comment = old.comment
            for entry in old.infolist():
                new.writestr(entry, changed.get(entry.filename, old.read(entry)))
        return target.getvalue()
