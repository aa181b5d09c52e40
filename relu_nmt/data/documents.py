"""Boundaries of documents and of the sentences in them: in text, in token ids, in a side file.

The side file ``train.de-en.documents`` has one line per document: its number of sentences. The
sentences themselves are stored one after the other as usual.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relu_nmt.errors import DataError
from relu_nmt.io.safe_write import write_text

DOCUMENT_TAG = "<d>"
_SEPARATES: dict[str, Callable[[str], bool]] = {
    "none": lambda line: False,
    "blank": lambda line: not line.strip(),
    "tag": lambda line: line.strip() == DOCUMENT_TAG,
}
SEPARATORS = tuple(_SEPARATES)


def separator_test(separator: str) -> Callable[[str], bool]:
    """Return the test whether a line separates documents and is no sentence itself.

    Args:
        separator: ``none``; ``blank``, an empty line between documents (several count as one);
            or ``tag``, a line ``<d>`` before each document.
    """
    return _SEPARATES[separator]


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


def sentence_slices(tokens: Sequence[Any] | np.ndarray, separator: Any) -> list[slice]:
    """Return where the sentences stand, without their separators.

    What follows the last separator is a sentence only if it has tokens.

    Args:
        tokens: words or token ids [T], without ``</s>``.
        separator: the token that ends each sentence.

    Example:
        >>> words = "a b <sep> <sep> c".split()
        >>> [words[own] for own in sentence_slices(words, "<sep>")]
        [['a', 'b'], [], ['c']]
    """
    ends = [place for place, token in enumerate(tokens) if token == separator]
    begins = [0, *(end + 1 for end in ends)]
    if begins[-1] < len(tokens):
        ends.append(len(tokens))
    return [slice(begin, end) for begin, end in zip(begins, ends, strict=False)]
