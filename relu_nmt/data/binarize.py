"""From text whose tokens stand between spaces to word counts and token ids, by all cores.

The text is read in pieces of bounded size (:mod:`relu_nmt.io.text_lines`), so that the memory
does not depend on the size of the corpus.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import numpy as np

from relu_nmt.data.dictionary import UNK, Dictionary
from relu_nmt.data.indexed_dataset import IndexedDatasetWriter, token_dtype
from relu_nmt.io.text_lines import Chunk, TextFile, read_chunk
from relu_nmt.io.worker_pool import ordered_map

# Counters are sent back once per run of chunks, since sending them costs more than counting.
CHUNKS_PER_COUNT = 64
# The chunks of compressed files are sent with their text, which should take little memory.
SENT_CHUNKS_PER_COUNT = 8

Advance = Callable[[int], object]


def _count_run(run: Sequence[Chunk]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for chunk in run:
        for line in read_chunk(chunk):
            counts.update(line.split())
    return counts


def count_words(files: Sequence[TextFile], workers: int, advance: Advance) -> Counter[str]:
    """Return how often each word occurs in the files.

    Args:
        files: the scanned files.
        workers: processes.
        advance: called with the number of bytes done.

    Raises:
        DataError: a file cannot be read any more.
    """
    num_chunks = sum(len(file.chunks) for file in files)
    longest = SENT_CHUNKS_PER_COUNT if any(f.is_compressed for f in files) else CHUNKS_PER_COUNT
    run_length = max(1, min(longest, num_chunks // (4 * workers)))
    chunks = chain.from_iterable(file.readable_chunks() for file in files)
    runs = iter(lambda: list(islice(chunks, run_length)), [])
    total: Counter[str] = Counter()
    for run, counts in ordered_map(_count_run, runs, workers):
        total.update(counts)
        advance(sum(chunk.end - chunk.start for chunk in run))
    return total


class _TokenIds(dict[str, int]):
    """Ids of the symbols; that of ``<unk>`` for all others."""

    def __missing__(self, symbol: str) -> int:
        return Dictionary.unk_index


# Set up in every worker by _prepare_tables, one table per dictionary.
_tables: dict[str, tuple[_TokenIds, type[np.integer]]] = {}


def _prepare_tables(dictionaries: dict[str, Dictionary]) -> None:
    _tables.clear()
    for name, dictionary in dictionaries.items():
        _tables[name] = _TokenIds(dictionary.indices()), token_dtype(len(dictionary))


def _binarize_chunk(task: tuple[int, str, Chunk]) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the token ids of the lines of a chunk, their sizes and the unknown words."""
    _, dictionary, chunk = task
    table, dtype = _tables[dictionary]
    lines = [line.split() for line in read_chunk(chunk)]
    sizes = np.fromiter(map(len, lines), dtype=np.int32, count=len(lines))
    total = int(sizes.sum())
    ids = np.fromiter(map(table.__getitem__, chain.from_iterable(lines)), dtype=dtype, count=total)
    sizes += 1
    tokens = np.full(total + len(lines), Dictionary.eos_index, dtype=dtype)
    is_word = np.ones(len(tokens), dtype=bool)
    is_word[np.cumsum(sizes) - 1] = False
    tokens[is_word] = ids
    unknown = int((ids == Dictionary.unk_index).sum())
    if unknown:  # The symbol itself, in the text, is not replaced.
        unknown -= sum(line.count(UNK) for line in lines)
    return tokens, sizes, unknown


@dataclass(frozen=True)
class Side:
    """One language of one split, to be binarised.

    Args:
        dictionary: name of its dictionary.
        prefix: path of the result without ``.bin`` and ``.idx``.
        text: the scanned text, tokens between spaces.
    """

    dictionary: str
    prefix: Path
    text: TextFile


def binarize(
    sides: Sequence[Side], dictionaries: dict[str, Dictionary], workers: int, advance: Advance
) -> Iterator[dict[str, Any]]:
    """Write the ``.bin`` and ``.idx`` of each side; yield what was written as it is complete.

    Args:
        sides: what to binarise; none of them empty.
        dictionaries: the dictionaries by name.
        workers: processes; the result does not depend on their number.
        advance: called with the number of bytes done.

    Returns:
        Yields the number of ``sentences``, of ``tokens`` (``</s>`` included) and of those that
        are ``unknown``, and the SHA-256 ``checksums`` of the files written by name.

    Raises:
        DataError: a text cannot be read any more.
    """
    tasks = (
        (i, side.dictionary, chunk)
        for i, side in enumerate(sides)
        for chunk in side.text.readable_chunks()
    )
    results = ordered_map(_binarize_chunk, tasks, workers, _prepare_tables, dictionaries)
    for i, of_side in groupby(results, key=lambda result: result[0][0]):
        side = sides[i]
        totals = dict.fromkeys(("sentences", "tokens", "unknown"), 0)
        dtype = token_dtype(len(dictionaries[side.dictionary]))
        with IndexedDatasetWriter(side.prefix, dtype) as writer:
            for (_, _, chunk), (tokens, sizes, unknown) in of_side:
                writer.add(tokens, sizes)
                totals["sentences"] += len(sizes)
                totals["tokens"] += len(tokens)
                totals["unknown"] += unknown
                advance(chunk.end - chunk.start)
        checksums = {path.name: checksum for path, checksum in writer.checksums.items()}
        yield {**totals, "checksums": checksums}
