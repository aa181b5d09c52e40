"""Text files taken through text steps by worker processes, chunk by chunk."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from relu_nmt.data.binarize import Advance
from relu_nmt.data.documents import SEPARATOR_TESTS, Boundaries
from relu_nmt.errors import DataError, reporting
from relu_nmt.io.safe_write import safe_writer
from relu_nmt.io.text_lines import Chunk, TextFile, encode_lines, read_chunk
from relu_nmt.io.workers import ordered_map
from relu_nmt.tokenization.pipeline import TextPipeline


class Step(Enum):
    """A step from raw text to tokens. The values are labels of progress bars."""

    WORDS = "tokenize"  # raw text to words
    PIECES = "split"  # words to tokens
    TOKENS = "convert"  # raw text to tokens
    KEEP = "copy"


def convert_line(
    step: Step, pipeline: TextPipeline, split: Callable[[list[str]], list[str]], line: str
) -> str:
    """Return the line after a step. ``split`` makes subwords of words."""
    if step is Step.WORDS:
        return " ".join(pipeline.words(line))
    if step is Step.PIECES:
        return " ".join(split(line.split()))
    if step is Step.TOKENS:
        return " ".join(pipeline.between_symbols(split(pipeline.words(line))))
    return line


@dataclass(frozen=True)
class Conversion:
    """The conversion of a text file without its separator lines."""

    side: tuple[str, str]  # split and language of the text: ("train", "de")
    separator: str
    outputs: Mapping[Path, Step]  # the files to write. The first one goes on to later steps
    # Strength and seed of random subword splits. None for the usual split.
    sampling: tuple[float, int] | None = None


def _convert_chunk(
    pipelines: Mapping[str, TextPipeline], task: tuple[Conversion, Chunk]
) -> tuple[int, Boundaries, dict[Path, bytes]]:
    """Return a chunk's number of sentences, its boundaries, and the bytes of each output file."""
    conversion, chunk = task
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
    parts = {}
    with reporting(chunk.path, caught=DataError):
        for path, step in conversion.outputs.items():
            lines = [convert_line(step, pipeline, split, line) for line in sentences]
            parts[path] = encode_lines(lines, chunk.first_line)
    return len(sentences), boundaries, parts


def convert_texts(
    texts: Sequence[tuple[Conversion, TextFile]],
    pipelines: Mapping[str, TextPipeline],
    workers: int,
    advance: Advance,
) -> Iterator[dict[str, Any]]:
    """Convert files. Yield ``sentences`` and ``boundaries`` of each when it is complete."""
    results = ordered_map(partial(_convert_chunk, pipelines), _tasks(texts), workers)
    for conversion, text in texts:
        sentences = 0
        boundaries = []
        with ExitStack() as stack:
            files = {p: stack.enter_context(safe_writer(p)) for p in conversion.outputs}
            for (_, chunk), (count, inner, parts) in islice(results, len(text.chunks)):
                for path, data in parts.items():
                    files[path].write(data)
                # Count sentences from the beginning of the file, not of the chunk.
                boundaries += [(sentences + before, line) for before, line in inner]
                sentences += count
                advance(chunk.end - chunk.start)
        # Yield only now, when the files are complete under their names.
        yield {"sentences": sentences, "boundaries": boundaries}
    next(results, None)  # lets the workers end


def _tasks(texts: Sequence[tuple[Conversion, TextFile]]) -> Iterator[tuple[Conversion, Chunk]]:
    for conversion, text in texts:
        for chunk in text.readable_chunks():
            yield conversion, chunk
