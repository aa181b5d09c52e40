"""From text to word counts, token ids and alignments, computed by all cores.

The tokens of the text stand between spaces. Chunks of bounded size (:mod:`relu_nmt.io.text_lines`)
keep the memory independent of the size of the corpus.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from relu_nmt.data.dictionary import UNK, Dictionary
from relu_nmt.data.documents import SEPARATOR_TESTS
from relu_nmt.data.indexed_dataset import IndexedDataset, IndexedDatasetWriter, token_dtype
from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import Chunk, TextFile, read_chunk
from relu_nmt.io.work import ordered_map

# A worker sends one counter for a run of chunks, since sending costs more than counting.
CHUNKS_PER_COUNT = 64
# Chunks of compressed files travel with their text, so that a run must be short to save memory.
SENT_CHUNKS_PER_COUNT = 8
ALIGNMENT_DTYPE = np.uint32
"""The dtype of fairseq's alignments."""
TAG = -1
"""Stands for the number of pairs of a line that announces a document."""
SIDES = ("source", "target")
_PAIR = r"[0-9]{1,9}-[0-9]{1,9}"
_ALIGNMENT = re.compile(rf"\s*({_PAIR}(\s+{_PAIR})*)?\s*")

Advance = Callable[[int], object]
Side = tuple[str, Path, TextFile]
"""One language of one split: name of the dictionary, path without ``.bin``, tokenised text."""


def _count_run(run: Sequence[Chunk]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for chunk in run:
        for line in read_chunk(chunk):
            counts.update(line.split())
    return counts


def count_words(files: Sequence[TextFile], workers: int, advance: Advance) -> Counter[str]:
    """Return the number of occurrences of each word in the files."""
    # Send several chunks at once, fewer if that leaves workers idle.
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


# Set up in every worker by _prepare_tables, one table per dictionary.
_tables: dict[str, tuple[dict[str, int], type[np.integer]]] = {}


def _prepare_tables(dictionaries: dict[str, Dictionary]) -> None:
    _tables.clear()
    for name, dictionary in dictionaries.items():
        _tables[name] = dictionary.indices(), token_dtype(len(dictionary))


def _binarize_chunk(task: tuple[int, str, Chunk]) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the token ids of a chunk's lines, their sizes and the number of unknown words."""
    _, dictionary, chunk = task
    table, dtype = _tables[dictionary]
    lines = [line.split() for line in read_chunk(chunk)]
    sizes = np.fromiter(map(len, lines), dtype=np.int32, count=len(lines))
    total = int(sizes.sum())
    found = map(table.get, chain.from_iterable(lines), repeat(Dictionary.unk_index))
    ids = np.fromiter(found, dtype=dtype, count=total)
    sizes += 1
    # Put an </s> behind the ids of each line.
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
) -> Iterator[dict[str, Any]]:
    """Write the ``.bin`` and ``.idx`` of each side; yield its counts when it is complete.

    Yields the number of ``sentences``, of ``tokens`` (``</s>`` included) and of ``unknown`` tokens,
    and the SHA-256 ``checksums`` of the written files by name.
    """
    # Read all sides as one stream of chunks, so that no worker waits at the end of a side.
    tasks = (
        (i, dictionary, chunk)
        for i, (dictionary, _, text) in enumerate(sides)
        for chunk in text.readable_chunks()
    )
    # Write the results of each side in order, while workers convert the next chunks.
    results = ordered_map(_binarize_chunk, tasks, workers, _prepare_tables, dictionaries)
    for i, of_side in groupby(results, key=lambda result: result[0][0]):
        name, prefix, _ = sides[i]
        totals = dict.fromkeys(("sentences", "tokens", "unknown"), 0)
        with IndexedDatasetWriter(prefix, token_dtype(len(dictionaries[name]))) as writer:
            for (_, _, chunk), (tokens, sizes, unknown) in of_side:
                writer.add(tokens, sizes)
                totals["sentences"] += len(sizes)
                totals["tokens"] += len(tokens)
                totals["unknown"] += unknown
                advance(chunk.end - chunk.start)
        checksums = {path.name: checksum for path, checksum in writer.checksums.items()}
        yield {**totals, "checksums": checksums}


def _parse_chunk(chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of a chunk [P, 2], and their number in each line, TAG for a ``<d>``."""
    announces = SEPARATOR_TESTS["tag"]
    sizes, numbers = [], []
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
) -> dict[str, Any]:
    """Write the ``.bin`` and ``.idx`` of the word alignments of a split, ``train.align.de-en``.

    Each entry has the source and target position of each pair of aligned tokens, in turn, from 0.
    The scanned text is parallel to the source text, whose lines between documents, ``separators``
    from 1, are blank or ``<d>`` here. The result does not depend on the number of workers.

    Returns:
        the number of ``sentences`` and of ``pairs`` of tokens, and the SHA-256 ``checksums`` of
        the written files by name.

    Raises:
        DataError: a line is no alignment, or does not fit its sentences; the message names it.

    Reference: fairseq 0.12, ``fairseq-preprocess --align-suffix``.
    """
    apart, sentences, total = np.array(separators, dtype=np.int64), 0, 0
    with IndexedDatasetWriter(prefix, ALIGNMENT_DTYPE) as writer:
        for chunk, (pairs, sizes) in ordered_map(_parse_chunk, text.readable_chunks(), workers):
            # Leave out the lines that separate documents in the source text.
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
            # Compare the positions with the lengths of the sentences.
            own = slice(sentences, sentences + len(sizes))
            lengths = np.stack([side.sizes[own] - 1 for side in sides], 1)  # without </s>
            # Repeat the lengths for each pair of a sentence: [S, 2] to [P, 2].
            is_beyond = pairs >= lengths.repeat(sizes, axis=0)
            if is_beyond.any():
                place, side = np.argwhere(is_beyond)[0]
                sentence = np.searchsorted(sizes.cumsum(), place, side="right")
                raise DataError(
                    f"{text.path}:{lines[sentence]}: pair {pairs[place, 0]}-{pairs[place, 1]}, "
                    f"but the {SIDES[side]} sentence has {lengths[sentence, side]} tokens, counted "
                    "from 0; align the very text that is binarised"
                )
            # Flatten the pairs of positions: [P, 2] to [2P].
            writer.add(pairs.flatten(), 2 * sizes)
            sentences += len(sizes)
            total += len(pairs)
            advance(chunk.end - chunk.start)
    checksums = {path.name: checksum for path, checksum in writer.checksums.items()}
    return {"sentences": sentences, "pairs": total, "checksums": checksums}
