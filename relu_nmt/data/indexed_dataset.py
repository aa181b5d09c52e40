r"""fairseq's memory-mapped corpus format: a ``.bin`` of token ids and an ``.idx`` of lengths.

Layout of the ``.idx`` file, all numbers little-endian::

    magic      9 bytes   b"MMIDIDX\0\0"
    version    uint64    1
    type code  uint8     token dtype of the .bin, see TYPE_CODES
    count N    uint64    sentences
    sizes      int32 [N] tokens of each sentence, </s> included
    pointers   int64 [N] offset of each sentence in the .bin, in bytes

Reference: fairseq 0.12, ``fairseq/data/indexed_dataset.py``, ``MMapIndexedDataset``.
"""

import hashlib
import mmap
import os
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from relu_nmt.errors import DataError
from relu_nmt.io.safe_write import safe_writer

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQ")
COUNT_OFFSET = HEADER.size - 8
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
POINTER_BLOCK = 1 << 18


def token_dtype(vocab_size: int) -> type[np.integer]:
    """Return the dtype in which fairseq stores the tokens of a vocabulary."""
    return np.uint16 if vocab_size < 65500 else np.uint32


def bin_path(prefix: str | os.PathLike[str]) -> Path:
    """Return ``prefix.bin``."""
    return Path(f"{os.fspath(prefix)}.bin")


def idx_path(prefix: str | os.PathLike[str]) -> Path:
    """Return ``prefix.idx``."""
    return Path(f"{os.fspath(prefix)}.idx")


def _map_bytes(path: Path) -> np.ndarray:
    """Return the file as read-only uint8 [bytes], memory-mapped."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return np.empty(0, dtype=np.uint8)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise DataError(
            f"{path}: {error.strerror}; binarise the corpus with relu-nmt-preprocess"
        ) from error
    return np.frombuffer(mapped, dtype=np.uint8)


class IndexedDataset:
    """The sentences of one language of one split, read from disk on demand.

    Opening reads the lengths only, and checks the two files against each other.

    Args:
        prefix: path without ``.bin`` and ``.idx``.

    Attributes:
        sizes: int32 [N], tokens of each sentence with ``</s>``; read-only.
        dtype: dtype of the ``.bin``.

    Raises:
        DataError: a file is missing, truncated, damaged or of another format.
    """

    def __init__(self, prefix: str | os.PathLike[str]) -> None:
        self.prefix = os.fspath(prefix)
        path = idx_path(prefix)
        index = _map_bytes(path)
        self.dtype, count = self._read_header(path, index)
        # Compare the file's size with the number of sentences in its header.
        expected = HEADER.size + 12 * count
        if len(index) != expected:
            raise DataError(
                f"{path}: {len(index):,} bytes, but {count:,} sentences need {expected:,}; the "
                "file is cut off or damaged, binarise the corpus again"
            )
        # Check that sizes and pointers agree.
        sizes_end = HEADER.size + 4 * count
        self.sizes = np.frombuffer(index[HEADER.size : sizes_end], dtype="<i4")
        pointers = np.frombuffer(index[sizes_end:], dtype="<i8")
        self._offsets = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(self.sizes, out=self._offsets[1:], dtype=np.int64)
        item_bytes = np.dtype(self.dtype).itemsize
        if (count and self.sizes.min() < 0) or not np.array_equal(
            pointers, self._offsets[:-1] * item_bytes
        ):
            raise DataError(
                f"{path}: sentence lengths and positions contradict each other; the file is "
                "damaged, binarise the corpus again"
            )
        # Check that the token ids are complete.
        data = _map_bytes(bin_path(prefix))
        if len(data) != self._offsets[-1] * item_bytes:
            raise DataError(
                f"{bin_path(prefix)}: {len(data):,} bytes, but {path.name} describes "
                f"{self._offsets[-1] * item_bytes:,}; the files do not belong together or are "
                "cut off, binarise the corpus again"
            )
        # View the mapped bytes as little-endian ids, without a copy.
        self._tokens = np.frombuffer(data, dtype=np.dtype(self.dtype).newbyteorder("<"))

    @staticmethod
    def _read_header(path: Path, index: np.ndarray) -> tuple[type[np.integer], int]:
        if index[: len(OLDER_MAGIC)].tobytes() == OLDER_MAGIC:
            raise DataError(
                f"{path}: fairseq's older 'cached' format; binarise again with "
                "fairseq-preprocess --dataset-impl mmap or with relu-nmt-preprocess"
            )
        if len(index) < HEADER.size:
            raise DataError(
                f"{path}: only {len(index)} bytes, too short for an index; binarise again"
            )
        # Check every field, so that the message names the wrong one.
        magic, version, code, count = HEADER.unpack(index[: HEADER.size].tobytes())
        if magic != MAGIC:
            raise DataError(
                f"{path}: not an index of a binarised corpus (it begins with {magic!r}, not "
                f"{MAGIC!r}); binarise the corpus with relu-nmt-preprocess"
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
        return self._tokens[self._offsets[index] : self._offsets[index + 1]].astype(np.int64)

    def __reduce__(self) -> tuple[type["IndexedDataset"], tuple[str]]:
        # Another process maps the files itself instead of receiving a copy of the corpus.
        return IndexedDataset, (self.prefix,)


class AlignmentDataset(IndexedDataset):
    """The word alignments of a split, read from disk on demand.

    Files that were made for the other direction are ``swapped``: they have the target first.

    Raises:
        DataError: a file is missing, truncated, damaged or of another format.
    """

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
    """Ranges of sentences of several datasets, one after the other.

    Attributes:
        prefix: of the first dataset.
        sizes: int32 [N], tokens of each sentence with ``</s>``.
    """

    def __init__(self, parts: Sequence[tuple["Dataset", range]]) -> None:
        self._parts = list(parts)
        self.prefix: str = parts[0][0].prefix
        own = [dataset.sizes[numbers.start : numbers.stop] for dataset, numbers in parts]
        self.sizes: np.ndarray = np.concatenate(own)
        self._ends = np.cumsum([len(sizes) for sizes in own])

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> np.ndarray:
        """Return the token ids of sentence ``index``, a new int64 [n]."""
        part = int(np.searchsorted(self._ends, index, side="right"))
        dataset, numbers = self._parts[part]
        return dataset[numbers.stop - int(self._ends[part]) + index]


Dataset = IndexedDataset | DatasetParts


class IndexedDatasetWriter:
    """Writer of ``prefix.bin`` and ``prefix.idx``, which both appear when it is closed.

    It is a context manager. If the block raises, no file is left behind.

    Args:
        prefix: path without ``.bin`` and ``.idx``.
        dtype: dtype of the token ids, see :func:`token_dtype`.

    Attributes:
        checksums: SHA-256 of each finished file by its path, filled on closing.
    """

    def __init__(self, prefix: str | os.PathLike[str], dtype: type[np.integer]) -> None:
        self._paths = (bin_path(prefix), idx_path(prefix))
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._code = next(code for code, known in TYPE_CODES.items() if known is dtype)
        self._count = 0
        self._bin_hash = hashlib.sha256()
        self.checksums: dict[Path, str] = {}
        with ExitStack() as files:
            # Files close in reverse order, so that no index appears before its data.
            self._idx, self._bin = (
                files.enter_context(safe_writer(path)) for path in reversed(self._paths)
            )
            # Leave room for the number of sentences, which is known at the end.
            self._idx.write(HEADER.pack(MAGIC, VERSION, self._code, 0))
            self._files = files.pop_all()

    def __enter__(self) -> "IndexedDatasetWriter":
        return self

    def add(self, tokens: np.ndarray, sizes: np.ndarray) -> None:
        """Append sentences: their joined token ids, int [sum of sizes], and sizes, int [n]."""
        assert int(sizes.sum()) == len(tokens)
        data = tokens.astype(self._dtype, copy=False).tobytes()
        self._bin.write(data)
        self._bin_hash.update(data)
        self._idx.write(sizes.astype("<i4", copy=False).tobytes())
        self._count += len(sizes)

    def _finish_index(self) -> None:
        """Write the pointers and the count, block by block to keep memory small."""
        position, start = HEADER.size, 0
        end_of_sizes = HEADER.size + 4 * self._count
        pointers_at = end_of_sizes
        # Compute the pointers of a block of sizes, and write them behind all sizes.
        while position < end_of_sizes:
            self._idx.seek(position)
            block = self._idx.read(min(4 * POINTER_BLOCK, end_of_sizes - position))
            sizes = np.frombuffer(block, dtype="<i4").astype(np.int64)
            ends = start + np.cumsum(sizes)
            self._idx.seek(pointers_at)
            self._idx.write(((ends - sizes) * self._dtype.itemsize).astype("<i8").tobytes())
            position += len(block)
            pointers_at += 2 * len(block)
            start = int(ends[-1])
        # Write the number of sentences into the header, and hash the whole file.
        self._idx.seek(COUNT_OFFSET)
        self._idx.write(struct.pack("<Q", self._count))
        self._idx.seek(0)
        index_hash = hashlib.sha256()
        while block := self._idx.read(POINTER_BLOCK):
            index_hash.update(block)
        self.checksums[self._paths[1]] = index_hash.hexdigest()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._files:  # renames both files, or removes them if the block raises
            if error is not None:
                raise error
            self._finish_index()
            self.checksums[self._paths[0]] = self._bin_hash.hexdigest()
