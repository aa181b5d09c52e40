r"""Binarized text in fairseq's files, and how text becomes it on all cores.

A text has a ``.bin`` of token ids and an ``.idx`` of lengths, all numbers little-endian::

    magic      9 bytes   b"MMIDIDX\0\0"
    version    uint64    1
    type code  uint8     token dtype of the .bin, see TYPE_CODES
    count N    uint64    sentences
    sizes      int32 [N] tokens of each sentence, </s> included
    pointers   int64 [N] offset of each sentence in the .bin, in bytes

The tokens of the text stand between spaces. Chunks of bounded size (:mod:`relu_nmt.io.text_lines`)
keep the memory small: besides them it has the length of each sentence.

Reference: fairseq 0.12, ``fairseq/data/indexed_dataset.py``, ``MMapIndexedDataset``.
"""

import os
import re
import struct
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, groupby, islice, repeat
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from relu_nmt.data.data_folder import paths_of
from relu_nmt.data.dictionary import UNK, Dictionary
from relu_nmt.data.documents import SEPARATOR_TESTS
from relu_nmt.errors import DataError, reporting
from relu_nmt.io.safe_write import plain_file, safe_writer
from relu_nmt.io.text_lines import Chunk, TextFile, read_chunk
from relu_nmt.io.workers import ordered_map

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
# A worker sends one counter for a run of chunks, since sending costs more than counting.
CHUNKS_PER_COUNT = 64
# Chunks that are sent with their text take memory, so that their runs are short.
SENT_CHUNKS_PER_COUNT = 8
ALIGNMENT_DTYPE = np.uint32  # as in fairseq
TAG = -1  # stands for the number of pairs in a line that announces a document
SIDES = ("source", "target")
_PAIR = r"[0-9]{1,9}-[0-9]{1,9}"
_ALIGNMENT = re.compile(rf"\s*({_PAIR}(\s+{_PAIR})*)?\s*")

Advance = Callable[[int], object]
Side = tuple[str, Path, TextFile]
"""One language of one split: name of the dictionary, path without ``.bin``, tokenized text."""


def token_dtype(vocab_size: int) -> type[np.integer]:
    """Return the dtype in which fairseq stores the tokens of a vocabulary."""
    return np.uint16 if vocab_size < 65500 else np.uint32


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


def _count_run(run: Sequence[Chunk]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for chunk in run:
        for line in read_chunk(chunk):
            counts.update(line.split())
    return counts


def count_words(files: Sequence[TextFile], workers: int, advance: Advance) -> Counter[str]:
    """Return the number of occurrences of each word in the files."""
    # Send several chunks at once, fewer if that leaves workers idle.
    num_chunks = 0
    longest = CHUNKS_PER_COUNT
    for file in files:
        num_chunks += len(file.chunks)
        if file.is_sent:
            longest = SENT_CHUNKS_PER_COUNT
    run_length = max(1, min(longest, num_chunks // (4 * workers)))
    chunks = chain.from_iterable(map(TextFile.readable_chunks, files))
    runs = iter(lambda: list(islice(chunks, run_length)), [])
    total: Counter[str] = Counter()
    for run, counts in ordered_map(_count_run, runs, workers):
        total.update(counts)
        advance(sum(chunk.end - chunk.start for chunk in run))
    return total


Table = tuple[dict[str, int], type[np.integer]]  # ids of words, and the dtype that holds them


def _binarize_chunk(
    tables: Mapping[str, Table], task: tuple[int, str, Chunk]
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the token ids of a chunk's lines, their sizes and the number of unknown words."""
    _, dictionary, chunk = task
    table, dtype = tables[dictionary]
    lines = [line.split() for line in read_chunk(chunk)]
    sizes = np.fromiter(map(len, lines), dtype=np.int32, count=len(lines))
    total = int(sizes.sum())
    ids_of_words = map(table.get, chain.from_iterable(lines), repeat(Dictionary.unk_index))
    ids = np.fromiter(ids_of_words, dtype=dtype, count=total)
    sizes += 1
    tokens = np.full(total + len(lines), Dictionary.eos_index, dtype=dtype)
    is_word = np.ones(len(tokens), dtype=bool)
    is_word[np.cumsum(sizes) - 1] = False
    tokens[is_word] = ids
    unknown = int((ids == Dictionary.unk_index).sum())
    if unknown:  # do not count the symbol <unk> in the text itself
        unknown -= sum(line.count(UNK) for line in lines)
    return tokens, sizes, unknown


def binarize(
    sides: Sequence[Side], dictionaries: dict[str, Dictionary], workers: int, advance: Advance
) -> Iterator[dict[str, int]]:
    """Write ``.bin`` and ``.idx`` of each side. Yield ``sentences``, ``tokens``, ``unknown``."""
    tables: dict[str, Table] = {}
    for name, dictionary in dictionaries.items():
        tables[name] = dictionary.indices(), token_dtype(len(dictionary))
    # Write the results of each side in order, while workers convert the next chunks.
    results = ordered_map(partial(_binarize_chunk, tables), _tasks(sides), workers)
    for i, of_side in groupby(results, key=lambda result: result[0][0]):
        name, prefix, _ = sides[i]
        totals = np.zeros(3, dtype=np.int64)
        with indexed_writer(prefix, token_dtype(len(dictionaries[name]))) as add:
            for (_, _, chunk), (tokens, sizes, unknown) in of_side:
                add(tokens, sizes)
                totals += len(sizes), len(tokens), unknown
                advance(chunk.end - chunk.start)
        yield dict(zip(("sentences", "tokens", "unknown"), totals.tolist(), strict=True))


def _tasks(sides: Sequence[Side]) -> Iterator[tuple[int, str, Chunk]]:
    """Yield all sides as one stream of chunks, so that no worker waits at the end of a side."""
    for i, (dictionary, _, text) in enumerate(sides):
        for chunk in text.readable_chunks():
            yield i, dictionary, chunk


def _parse_chunk(chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of a chunk [P, 2] and the number of pairs in each line, TAG for ``<d>``."""
    announces = SEPARATOR_TESTS["tag"]
    sizes = []
    numbers = []
    for number, line in enumerate(read_chunk(chunk), chunk.first_line):
        if announces(line):
            sizes.append(TAG)
            continue
        if not _ALIGNMENT.fullmatch(line):
            wrong = next((w for w in line.split() if not re.fullmatch(_PAIR, w)), line)
            raise DataError(
                f"{chunk.path}:{number}: '{wrong}' is no pair of positions; a line is like "
                "0-0 1-2 2-1, source and target tokens counted from 0"
            )
        # Turn 0-0 1-2 into the numbers 0 0 1 2.
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
) -> dict[str, int]:
    """Write the ``.bin`` and ``.idx`` of the word alignments of a split, ``train.align.de-en``.

    The entry of a sentence has the source and the target position of each aligned pair, from 0.
    Returns the number of ``sentences`` and of ``pairs``. A line that is no alignment, or does not
    fit its sentences, is a DataError. Lines between documents, ``separators``, are blank or
    ``<d>``.

    Reference: fairseq 0.12, ``fairseq-preprocess --align-suffix``.
    """
    separator_lines = np.array(separators, dtype=np.int64)
    sentences = 0
    total = 0
    with indexed_writer(prefix, ALIGNMENT_DTYPE) as add:
        for chunk, (pairs, sizes) in ordered_map(_parse_chunk, text.readable_chunks(), workers):
            # Leave out the lines that separate documents in the source text.
            lines = chunk.first_line + np.arange(len(sizes))
            is_separator = np.isin(lines, separator_lines)
            for line, size in zip(lines[is_separator], sizes[is_separator], strict=True):
                if size > 0:
                    raise DataError(
                        f"{text.path}:{line}: aligned tokens, but this line of the source text "
                        "stands between documents; each line must align the same line of the text"
                    )
            lines = lines[~is_separator]
            sizes = sizes[~is_separator]
            if (sizes == TAG).any():
                raise DataError(
                    f"{text.path}:{lines[sizes == TAG][0]}: <d>, but no document begins at this "
                    "line of the source text; each line must align the same line of the text"
                )
            batch_range = slice(sentences, sentences + len(sizes))
            lengths = np.stack([side.sizes[batch_range] - 1 for side in sides], 1)  # without </s>
            # Repeat the lengths for each pair of a sentence: [S, 2] to [P, 2].
            is_beyond = pairs >= lengths.repeat(sizes, axis=0)
            if is_beyond.any():
                pair_index, side = np.argwhere(is_beyond)[0]
                sentence = np.searchsorted(sizes.cumsum(), pair_index, side="right")
                raise DataError(
                    f"{text.path}:{lines[sentence]}: pair "
                    f"{pairs[pair_index, 0]}-{pairs[pair_index, 1]}, "
                    f"but the {SIDES[side]} sentence has {lengths[sentence, side]} tokens, counted "
                    "from 0; align the very text that is binarized"
                )
            add(pairs.flatten(), 2 * sizes)
            sentences += len(sizes)
            total += len(pairs)
            advance(chunk.end - chunk.start)
    return {"sentences": sentences, "pairs": total}
