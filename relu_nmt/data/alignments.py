"""Word alignments: from lines such as ``0-0 1-2 2-1`` to numbers, by all cores, and back.

They are a dataset of their own beside the two sides, ``train.align.de-en``: for each pair of
sentences the source and the target position of each pair of aligned tokens, in turn, from 0.

Reference: fairseq 0.12, ``fairseq-preprocess --align-suffix``.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relu_nmt.data.binarize import Advance
from relu_nmt.data.groups import SEPARATOR_TESTS
from relu_nmt.data.indexed_dataset import IndexedDataset, IndexedDatasetWriter
from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import Chunk, TextFile, read_chunk
from relu_nmt.io.worker_pool import ordered_map

DTYPE = np.uint32
"""What fairseq stores, as it cannot know the largest position before."""
TAG = -1
"""Stands for the number of pairs of a line that announces a document."""
SIDES = ("source", "target")
_PAIR = r"[0-9]{1,9}-[0-9]{1,9}"
_LINE = re.compile(rf"\s*({_PAIR}(\s+{_PAIR})*)?\s*")


def _parse_chunk(chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of a chunk [P, 2], and how many each line has, TAG for a ``<d>``.

    Raises:
        DataError: a line is no alignment.
    """
    announces = SEPARATOR_TESTS["tag"]
    sizes, numbers = [], []
    for number, line in enumerate(read_chunk(chunk), chunk.first_line):
        if announces(line):
            sizes.append(TAG)
            continue
        if not _LINE.fullmatch(line):
            wrong = next((w for w in line.split() if not re.fullmatch(_PAIR, w)), line)
            raise DataError(
                f"{chunk.path}:{number}: '{wrong}' is no pair of positions; a line is like "
                "0-0 1-2 2-1, source and target tokens counted from 0"
            )
        words = line.replace("-", " ").split()
        sizes.append(len(words) // 2)
        numbers += words
    return np.array(numbers, dtype=np.int64).reshape(-1, 2), np.array(sizes, dtype=np.int64)


def binarize_alignments(
    text: TextFile,
    prefix: Path,
    sides: Sequence[IndexedDataset],
    separators: Sequence[int],
    workers: int,
    advance: Advance,
) -> dict[str, Any]:
    """Write the ``.bin`` and ``.idx`` of the word alignments of a split.

    Args:
        text: the scanned file, parallel to the source text line by line.
        prefix: path of the result without ``.bin`` and ``.idx``.
        sides: the binarised source and target.
        separators: numbers of the lines of the source text that are no sentences, from 1; in the
            file they are blank, or ``<d>`` as there.
        workers: processes; the result does not depend on their number.
        advance: called with the number of bytes done.

    Returns:
        the number of ``sentences`` and of ``pairs`` of tokens, and the SHA-256 ``checksums`` of
        the files written by name.

    Raises:
        DataError: a line is no alignment, or one of other sentences; the message gives it.
    """
    apart, sentences, total = np.array(separators, dtype=np.int64), 0, 0
    with IndexedDatasetWriter(prefix, DTYPE) as writer:
        for chunk, (pairs, sizes) in ordered_map(_parse_chunk, text.readable_chunks(), workers):
            lines = chunk.first_line + np.arange(len(sizes))
            is_apart = np.isin(lines, apart)
            for line, size in zip(lines[is_apart], sizes[is_apart], strict=True):
                if size > 0:
                    raise DataError(
                        f"{text.path}:{line}: aligned tokens, but this line of the source text "
                        "stands between documents; each line must align the same line of the text"
                    )
            lines, sizes = lines[~is_apart], sizes[~is_apart]
            if (sizes == TAG).any():
                raise DataError(
                    f"{text.path}:{lines[sizes == TAG][0]}: <d>, but no document begins at this "
                    "line of the source text; each line must align the same line of the text"
                )
            own = slice(sentences, sentences + len(sizes))
            lengths = np.stack([side.sizes[own] - 1 for side in sides], 1)  # without </s>
            is_beyond = pairs >= lengths.repeat(sizes, axis=0)
            if is_beyond.any():
                place, side = np.argwhere(is_beyond)[0]
                sentence = np.searchsorted(sizes.cumsum(), place, side="right")
                raise DataError(
                    f"{text.path}:{lines[sentence]}: pair {pairs[place, 0]}-{pairs[place, 1]}, "
                    f"but the {SIDES[side]} sentence has {lengths[sentence, side]} tokens, counted "
                    "from 0; align the very text that is binarised"
                )
            writer.add(pairs.flatten(), 2 * sizes)
            sentences += len(sizes)
            total += len(pairs)
            advance(chunk.end - chunk.start)
    checksums = {path.name: checksum for path, checksum in writer.checksums.items()}
    return {"sentences": sentences, "pairs": total, "checksums": checksums}


class AlignmentDataset(IndexedDataset):
    """The word alignments of a split, read from disk as they are asked for.

    Args:
        prefix: path without ``.bin`` and ``.idx``.
        swapped: the files have the target first: they were made for the other direction.

    Raises:
        DataError: a file is missing, truncated, damaged or of another format.
    """

    def __init__(self, prefix: str | os.PathLike[str], swapped: bool = False) -> None:
        super().__init__(prefix)
        self._swapped = swapped
        if (self.sizes % 2).any():
            raise DataError(
                f"{self.prefix}.idx: not the word alignments of a corpus, as numbers without "
                "another one to pair with stand in it; run relu-nmt-preprocess again"
            )

    def __getitem__(self, index: int) -> np.ndarray:
        """Return the aligned tokens of sentences ``index``: source and target, int64 [P, 2]."""
        pairs = super().__getitem__(index).reshape(-1, 2)
        return pairs[:, ::-1] if self._swapped else pairs

    def __reduce__(self) -> tuple[Any, ...]:
        return AlignmentDataset, (self.prefix, self._swapped)
