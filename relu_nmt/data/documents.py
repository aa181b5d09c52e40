"""Document boundaries: recognised in the text, kept in a small side file.

The side file ``train.de-en.documents`` has one line per document: its number of sentences. The
sentences themselves are stored one after the other as usual.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from relu_nmt.errors import DataError
from relu_nmt.io.safe_write import write_text

DOCUMENT_TAG = "<d>"
SEPARATORS = ("none", "blank", "tag")


def _never(line: str) -> bool:
    return False


def _is_blank(line: str) -> bool:
    return not line or line.isspace()


def _is_tag(line: str) -> bool:
    return line.strip() == DOCUMENT_TAG


def separator_test(separator: str) -> Callable[[str], bool]:
    """Return the test whether a line separates documents and is no sentence itself.

    Args:
        separator: ``none``; ``blank``, an empty line between documents (several count as one);
            or ``tag``, a line ``<d>`` before each document.
    """
    return {"none": _never, "blank": _is_blank, "tag": _is_tag}[separator]


def read_documents(path: str | os.PathLike[str], num_sentences: int | None = None) -> np.ndarray:
    """Read a side file.

    Args:
        path: the side file.
        num_sentences: sentences of the split, to check against; None checks nothing.

    Returns:
        Sentences of each document, int64 [documents].

    Raises:
        DataError: the file is missing or damaged, or does not fit the split.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"{path}: cannot read the document boundaries: {error.strerror}") from error
    if lines[-1] == b"":
        lines.pop()
    for number, line in enumerate(lines, 1):
        if not line.isdigit() or len(line) > 18 or int(line) == 0:
            raise DataError(
                f"{path}:{number}: expected a document's number of sentences, found "
                f"{line[:40]!r}; run relu-nmt-preprocess again"
            )
    counts = np.array([int(line) for line in lines], dtype=np.int64)
    if num_sentences is not None and counts.sum() != num_sentences:
        raise DataError(
            f"{path}: {counts.sum():,} sentences in {len(counts):,} documents, but the split has "
            f"{num_sentences:,}; run relu-nmt-preprocess again"
        )
    return counts


def write_documents(path: str | os.PathLike[str], counts: Sequence[int] | np.ndarray) -> None:
    """Write a side file: one line per document, its number of sentences."""
    write_text(path, "".join(f"{count}\n" for count in counts))


def document_of_sentence(counts: np.ndarray) -> np.ndarray:
    """Return the number of the document that each sentence belongs to, int64 [sentences]."""
    return np.repeat(np.arange(len(counts)), counts)


def require_documents(documents: np.ndarray | None, origin: str, purpose: str) -> np.ndarray:
    """Return the document boundaries.

    Args:
        documents: sentences of each document, or None if unknown.
        origin: the split, for the message (``data-bin/train.de-en``).
        purpose: the flag that needs them.

    Raises:
        DataError: they are unknown.
    """
    if documents is None:
        raise DataError(
            f"{origin}.documents: no such file, but {purpose} needs the document boundaries; run "
            "relu-nmt-preprocess with --document-separator, or write the file (a line per "
            "document: its number of sentences)"
        )
    return documents
