r"""The files of a binarized text, in fairseq's format: readers and the writer.

A text has a ``.bin`` of token ids and an ``.idx`` of lengths, all numbers little-endian::

    magic      9 bytes   b"MMIDIDX\0\0"
    version    uint64    1
    type code  uint8     token dtype of the .bin, see TYPE_CODES
    count N    uint64    sentences
    sizes      int32 [N] tokens of each sentence, </s> included
    pointers   int64 [N] offset of each sentence in the .bin, in bytes

Reference: fairseq 0.12, ``fairseq/data/indexed_dataset.py``, ``MMapIndexedDataset``.
"""

import os
import struct
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from relu_nmt.data.data_folder import paths_of
from relu_nmt.errors import DataError, counted, reporting
from relu_nmt.io.safe_write import plain_file, safe_writer
from relu_nmt.io.text_lines import read_lines

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQ")
TYPE_CODES: dict[int, type[np.integer]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    8: np.uint16,
    9: np.uint32,
    10: np.uint64,
}
OLDER_MAGIC = b"TNTIDX\x00\x00"


def _open(path: Path) -> BinaryIO:
    with reporting(path, advice="binarize the corpus with relu-nmt-preprocess"):
        return open(plain_file(path), "rb", buffering=0)


class IndexedDataset:
    """The sentences of one language of one split, read from disk on demand.

    Opening reads the lengths only, ``sizes`` int32 [N] with ``</s>``, and checks the two files,
    ``prefix.bin`` and ``prefix.idx``, against each other.
    """

    def __init__(self, prefix: str | os.PathLike[str]) -> None:
        self.prefix = os.fspath(prefix)
        path, self._data_path = paths_of(prefix)
        with _open(path) as index:
            self.dtype, count = self._read_header(path, index.read(HEADER.size))
            size = os.fstat(index.fileno()).st_size
            expected = HEADER.size + 12 * count
            if size != expected:
                raise DataError(
                    f"{path}: {size:,} bytes, but {count:,} sentences need {expected:,}; the "
                    "file is cut off or damaged, binarize the corpus again"
                )
            self.sizes = np.fromfile(index, "<i4", count)
            pointers = np.fromfile(index, "<i8", count)
        self.sizes.flags.writeable = False
        self._offsets = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(self.sizes, out=self._offsets[1:], dtype=np.int64)
        self._stored = np.dtype(self.dtype).newbyteorder("<")
        self._offsets *= self._stored.itemsize
        if self.sizes.min(initial=0) < 0 or not np.array_equal(pointers, self._offsets[:-1]):
            raise DataError(
                f"{path}: sentence lengths and positions contradict each other; the file is "
                "damaged, binarize the corpus again"
            )
        # Check that the token ids are complete. They are not mapped to memory, where a file that
        # is cut later would end the program without a message.
        self._data = _open(self._data_path)
        weakref.finalize(self, self._data.close)
        size = os.fstat(self._data.fileno()).st_size
        expected = self._offsets[-1]
        if size != expected:
            raise DataError(
                f"{self._data_path}: {size:,} bytes, but {path.name} describes {expected:,}; "
                "the files do not belong together or are cut off, binarize the corpus again"
            )

    @staticmethod
    def _read_header(path: Path, header: bytes) -> tuple[type[np.integer], int]:
        if header.startswith(OLDER_MAGIC):
            raise DataError(
                f"{path}: fairseq's older 'cached' format; binarize again with "
                "fairseq-preprocess --dataset-impl mmap or with relu-nmt-preprocess"
            )
        if len(header) < HEADER.size:
            raise DataError(
                f"{path}: only {len(header)} bytes, too short for an index; binarize again"
            )
        # Check every field, so that the message names the wrong one.
        magic, version, code, count = HEADER.unpack(header)
        if magic != MAGIC:
            raise DataError(
                f"{path}: not an index of a binarized corpus (it begins with {magic!r}, not "
                f"{MAGIC!r}); binarize the corpus with relu-nmt-preprocess"
            )
        if version != VERSION:
            raise DataError(f"{path}: format version {version}; this program reads {VERSION}")
        if code not in TYPE_CODES:
            raise DataError(
                f"{path}: unknown dtype {code}; expected one of {', '.join(map(str, TYPE_CODES))}"
            )
        return TYPE_CODES[code], count

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> np.ndarray:
        """Return the token ids of sentence ``index``, a new int64 [n]."""
        if not 0 <= index < len(self):
            raise IndexError(f"{self.prefix}: no sentence {index} among {len(self)}")
        start, end = self._offsets[index : index + 2].tolist()
        data = os.pread(self._data.fileno(), end - start, start)
        if len(data) < end - start:
            raise DataError(
                f"{self._data_path}: was cut while it was read, and sentence {index} is lost; "
                "binarize the corpus again"
            )
        return np.frombuffer(data, self._stored).astype(np.int64)

    def raw_lines(self) -> list[str] | None:
        """Read the sentences before any text step. None if they were not kept."""
        path = Path(f"{self.prefix}.raw")
        if not path.exists():
            return None
        lines = read_lines(plain_file(path))
        if len(lines) != len(self):
            raise DataError(
                f"{path}: {counted(len(lines), 'line')}, but the split has "
                f"{counted(len(self), 'sentence')}; run relu-nmt-preprocess again"
            )
        return lines

    def __reduce__(self) -> tuple[type["IndexedDataset"], tuple[str]]:
        # Another process opens the files itself instead of receiving a copy of the corpus.
        return IndexedDataset, (self.prefix,)


class AlignmentDataset(IndexedDataset):
    """The word alignments of a split. ``swapped``: the files are of the other direction."""

    def __init__(self, prefix: str | os.PathLike[str], swapped: bool = False) -> None:
        super().__init__(prefix)
        self._swapped = swapped
        if (self.sizes % 2).any():
            raise DataError(
                f"{self.prefix}.idx: not the word alignments of a corpus: an odd number of "
                "positions; run relu-nmt-preprocess again"
            )

    def __getitem__(self, index: int) -> np.ndarray:
        """Return the aligned source and target positions of pair ``index``, int64 [P, 2]."""
        pairs = super().__getitem__(index).reshape(-1, 2)
        return pairs[:, ::-1] if self._swapped else pairs

    def __reduce__(self) -> tuple[Any, ...]:
        return AlignmentDataset, (self.prefix, self._swapped)


class DatasetParts:
    """Ranges of sentences of several datasets, one after the other, named like the first one."""

    def __init__(self, parts: Sequence[tuple["Dataset", range]]) -> None:
        self._parts = list(parts)
        self.prefix: str = parts[0][0].prefix
        sizes_of_parts = [dataset.sizes[numbers.start : numbers.stop] for dataset, numbers in parts]
        self.sizes: np.ndarray = np.concatenate(sizes_of_parts)
        self._ends = np.cumsum(list(map(len, sizes_of_parts)))

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> np.ndarray:
        """Return the token ids of sentence ``index``, a new int64 [n]."""
        part = int(np.searchsorted(self._ends, index, side="right"))
        dataset, numbers = self._parts[part]
        return dataset[numbers.stop - int(self._ends[part]) + index]

    def raw_lines(self) -> list[str] | None:
        """Read the sentences before any text step. None if those of a part were not kept."""
        lines: list[str] = []
        for dataset, numbers in self._parts:
            lines_of_part = dataset.raw_lines()
            if lines_of_part is None:
                return None
            lines += lines_of_part[numbers.start : numbers.stop]
        return lines


Dataset = IndexedDataset | DatasetParts


@contextmanager
def indexed_writer(
    prefix: str | os.PathLike[str], dtype: type[np.integer]
) -> Iterator[Callable[[np.ndarray, np.ndarray], None]]:
    """Write ``prefix.bin`` and ``prefix.idx`` at the end of the block, unless it raises an error.

    Yield a function that appends sentences: joined ids, int [sum of sizes], and sizes, int [n].
    """
    stored = np.dtype(dtype).newbyteorder("<")
    [code] = [code for code, numpy_type in TYPE_CODES.items() if numpy_type is dtype]
    sizes_of_parts: list[np.ndarray] = []
    idx_path, bin_path = paths_of(prefix)
    # Files close in reverse order, so that no index appears before its data.
    with safe_writer(idx_path) as index, safe_writer(bin_path) as data:

        def add(tokens: np.ndarray, sizes: np.ndarray) -> None:
            assert int(sizes.sum()) == len(tokens)
            data.write(tokens.astype(stored, copy=False).tobytes())
            sizes_of_parts.append(sizes.astype("<i4"))

        yield add
        # Write part by part: the pointers of all sentences would take much memory.
        index.write(HEADER.pack(MAGIC, VERSION, code, sum(map(len, sizes_of_parts))))
        for sizes in sizes_of_parts:
            index.write(sizes.tobytes())
        start = 0
        for sizes in sizes_of_parts:
            ends = start + np.cumsum(sizes, dtype=np.int64)
            index.write(((ends - sizes) * stored.itemsize).astype("<i8").tobytes())
            start += int(sizes.sum())
