"""The boundaries of documents: separator lines in texts, and the side file of a data folder.

The side file ``train.de-en.documents`` has one line per document: its number of sentences.
"""

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from relu_nmt.errors import DataError, counted, reporting
from relu_nmt.io.safe_write import write_text
from relu_nmt.io.text_lines import decode_lines

DOCUMENT_TAG = "<d>"
# Tests for lines that separate documents.
SEPARATOR_TESTS: dict[str, Callable[[str], bool]] = {
    "none": lambda line: False,
    "blank": lambda line: not line.strip(),  # between documents, several count as one
    "tag": lambda line: line.strip() == DOCUMENT_TAG,  # before each document
}
SEPARATORS = tuple(SEPARATOR_TESTS)
Boundaries = list[tuple[int, int]]  # sentences before each separator line, and its line number


def read_documents(path: str | os.PathLike[str], num_sentences: int | None = None) -> np.ndarray:
    """Read the sentences of each document, int64 [documents], which sum to ``num_sentences``."""
    with reporting(f"{path}: cannot read the document boundaries"):
        data = Path(path).read_bytes()
    lines = decode_lines(data, os.fspath(path))
    for number, line in enumerate(lines, 1):
        if not line.isdecimal() or len(line) > 18 or int(line) == 0:
            raise DataError(
                f"{path}:{number}: expected a document's number of sentences, found "
                f"{line[:40]!r}; run relu-nmt-preprocess again"
            )
    counts = np.array(list(map(int, lines)), dtype=np.int64)
    if num_sentences is not None and counts.sum() != num_sentences:
        raise DataError(
            f"{path}: {counted(counts.sum(), 'sentence')} in {counted(len(counts), 'document')}, "
            f"but the split has {num_sentences:,}; run relu-nmt-preprocess again"
        )
    return counts


def write_documents(path: str | os.PathLike[str], counts: Sequence[int] | np.ndarray) -> None:
    """Write the sentences of each document to a side file."""
    write_text(path, "".join(f"{count}\n" for count in counts))


def document_sizes(sides: Sequence[tuple[str, int, Boundaries]]) -> np.ndarray:
    """Return the sentences of each document, int64 [documents], the same on all sides."""
    path, sentences, boundaries = sides[0]
    inner = _inner_boundaries(boundaries, sentences)
    for other_path, other_sentences, other_boundaries in sides[1:]:
        other_inner = _inner_boundaries(other_boundaries, other_sentences)
        # Compare boundary by boundary, so that the message names the first that differs.
        for number, (first, second) in enumerate(itertools.zip_longest(inner, other_inner), 2):
            if first is None or second is None:
                side_path = other_path if first is None else path
                before, line = first or second
                raise DataError(
                    f"{side_path}:{line}: a document boundary after "
                    f"{counted(before, 'sentence')} that the other side does not have; the "
                    "boundaries of both sides must agree"
                )
            before, line = first
            other_before, other_line = second
            if before != other_before:
                raise DataError(
                    f"{path}:{line}: document {number} begins after {before:,} sentences, but "
                    f"at {other_path}:{other_line} after {other_before:,}; the boundaries of both "
                    "sides must agree"
                )
    edges = [0, *(before for before, _ in inner), sentences]
    return np.diff(np.array(edges, dtype=np.int64))


def _inner_boundaries(boundaries: Boundaries, sentences: int) -> Boundaries:
    """Return the boundaries between sentences. In a row of separators the last line counts."""
    lines = dict(sorted(boundaries))
    lines.pop(0, None)
    lines.pop(sentences, None)
    return list(lines.items())
