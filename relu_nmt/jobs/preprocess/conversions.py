"""Text files taken through text steps by worker processes, chunk by chunk."""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from relu_nmt.data.binarize import Advance
from relu_nmt.data.documents import SEPARATOR_TESTS, Boundaries
from relu_nmt.errors import DataError, reporting
from relu_nmt.io.safe_write import safe_writer
from relu_nmt.io.text_lines import Chunk, TextFile, encode_lines, read_chunk
from relu_nmt.io.workers import ordered_map
from relu_nmt.tokenization.pipeline import TextPipeline


@dataclass(frozen=True)
class Conversion:
    """One step (words, pieces, tokens or keep) for a text file without its separator lines."""

    side: tuple[str, str]  # its split and language: ("train", "de")
    text: TextFile
    step: str
    separator: str
    outputs: Mapping[Path, str]  # the files to write: ``step``, or ``keep`` for raw sentences
    # Strength and seed of random subword splits. None for the usual split.
    sampling: tuple[float, int] | None = None


def _convert_chunk(
    pipelines: Mapping[str, TextPipeline], task: tuple[int, Conversion, Chunk]
) -> tuple[int, Boundaries, dict[Path, bytes]]:
    """Return a chunk's number of sentences, its boundaries, and the bytes of each output file."""
    _, conversion, chunk = task
    separates = SEPARATOR_TESTS[conversion.separator]
    sentences: list[str] = []
    boundaries: Boundaries = []
    # Take separators out. Note the sentences before each, and its line number.
    for number, line in enumerate(read_chunk(chunk), chunk.first_line):
        if separates(line):
            boundaries.append((len(sentences), number))
        else:
            sentences.append(line)
    pipeline = pipelines[conversion.side[1]]
    split = pipeline.subword.split
    if conversion.sampling is not None:
        strength, seed = conversion.sampling
        # One seed for each chunk, so that the result does not depend on the number of workers.
        draws = random.Random(f"{seed} {conversion.side} {chunk.first_line}")
        split = partial(pipeline.subword.sample, strength=strength, draws=draws)
    steps: dict[str, Callable[[str], str]] = {
        "words": lambda line: " ".join(pipeline.words(line)),
        "pieces": lambda line: " ".join(split(line.split())),
        "tokens": lambda line: " ".join(pipeline.between_symbols(split(pipeline.words(line)))),
        "keep": lambda line: line,
    }
    parts = {}
    with reporting(chunk.path, caught=DataError):
        for path, step in conversion.outputs.items():
            parts[path] = encode_lines(list(map(steps[step], sentences)), chunk.first_line)
    return len(sentences), boundaries, parts


def convert_texts(
    conversions: Sequence[Conversion],
    pipelines: Mapping[str, TextPipeline],
    workers: int,
    advance: Advance,
) -> Iterator[dict[str, Any]]:
    """Convert files. Yield ``sentences`` and ``boundaries`` of each when it is complete."""
    results = ordered_map(partial(_convert_chunk, pipelines), _tasks(conversions), workers)
    for i, pieces in itertools.groupby(results, key=lambda result: result[0][0]):
        sentences = 0
        boundaries = []
        with ExitStack() as stack:
            files = {p: stack.enter_context(safe_writer(p)) for p in conversions[i].outputs}
            for (_, _, chunk), (count, inner, parts) in pieces:
                for path, data in parts.items():
                    files[path].write(data)
                # Count sentences from the beginning of the file, not of the chunk.
                boundaries += [(sentences + before, line) for before, line in inner]
                sentences += count
                advance(chunk.end - chunk.start)
        # Yield only now, when the files are complete under their names.
        yield {"sentences": sentences, "boundaries": boundaries}


def _tasks(conversions: Sequence[Conversion]) -> Iterator[tuple[int, Conversion, Chunk]]:
    """Yield each chunk with the number of its conversion, whose own list of chunks is left out."""
    for i, conversion in enumerate(conversions):
        light = replace(conversion, text=TextFile(conversion.text.path))
        for chunk in conversion.text.readable_chunks():
            yield i, light, chunk
