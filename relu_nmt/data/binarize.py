"""Text made into binarized text, on all cores.

The tokens of the text stand between spaces. Chunks of bounded size (:mod:`relu_nmt.io.text_lines`)
keep the memory small: besides them it has the length of each sentence.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path

import numpy as np

from relu_nmt.data.dictionary import UNK, Dictionary
from relu_nmt.data.documents import SEPARATOR_TESTS
from relu_nmt.data.indexed_dataset import IndexedDataset, indexed_writer
from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import Chunk, TextFile, read_chunk
from relu_nmt.io.workers import map_chunks, ordered_map

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
SideText = tuple[tuple[str, Path], TextFile]
"""One language of one split: name of the dictionary and path without ``.bin``, tokenized text."""


def token_dtype(vocab_size: int) -> type[np.integer]:
    """Return the dtype in which fairseq stores the tokens of a vocabulary."""
    return np.uint16 if vocab_size < 65500 else np.uint32


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
        if file.chunks_carry_text:
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
    tables: Mapping[str, Table], task: tuple[tuple[str, Path], Chunk]
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the token ids of a chunk's lines, their sizes and the number of unknown words."""
    (dictionary, _), chunk = task
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
    texts: Sequence[SideText], dictionaries: dict[str, Dictionary], workers: int, advance: Advance
) -> Iterator[dict[str, int]]:
    """Write ``.bin`` and ``.idx`` of each text. Yield ``sentences``, ``tokens``, ``unknown``."""
    tables: dict[str, Table] = {}
    for name, dictionary in dictionaries.items():
        tables[name] = dictionary.indices(), token_dtype(len(dictionary))
    # Write the results of each side in order, while workers convert the next chunks.
    for (name, prefix), results in map_chunks(partial(_binarize_chunk, tables), texts, workers):
        totals = np.zeros(3, dtype=np.int64)
        with indexed_writer(prefix, token_dtype(len(dictionaries[name]))) as add:
            for (_, chunk), (tokens, sizes, unknown) in results:
                add(tokens, sizes)
                totals += len(sizes), len(tokens), unknown
                advance(chunk.end - chunk.start)
        yield dict(zip(("sentences", "tokens", "unknown"), totals.tolist(), strict=True))


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
