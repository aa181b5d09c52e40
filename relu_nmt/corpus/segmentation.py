"""Raw text to text whose tokens stand between spaces, by all cores, with document boundaries."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from relu_nmt.data.groups import separator_test
from relu_nmt.errors import DataError
from relu_nmt.io.safe_write import safe_writer
from relu_nmt.io.text_lines import Chunk, TextFile, read_chunk
from relu_nmt.io.worker_pool import ordered_map
from relu_nmt.tokenization.pipeline import TextPipeline


@dataclass(frozen=True)
class Conversion:
    """A text file to be converted.

    Args:
        name: of the step, "train.de".
        text: the scanned text file.
        language: whose pipeline to use.
        step: ``words`` (tokenise and lower-case), ``pieces`` (split words into subwords),
            ``tokens`` (both) or ``keep``.
        separator: which lines separate documents and are left out, see
            :func:`relu_nmt.data.groups.separator_test`.
        output: where the result goes, one sentence per line; None for nowhere.
        raw_output: where the sentences as they were go; None for nowhere.
    """

    name: str
    text: TextFile
    language: str
    step: str
    separator: str
    output: Path | None
    raw_output: Path | None = None


@dataclass
class Converted:
    """What a conversion gave.

    Args:
        sentences: their number.
        boundaries: for each separator line, the number of sentences before it and its line
            number in the file.
        checksums: SHA-256 of the files written, by path.
    """

    sentences: int = 0
    boundaries: list[tuple[int, int]] = field(default_factory=list)
    checksums: dict[Path, str] = field(default_factory=dict)


@dataclass
class _Piece:
    """The converted lines of one chunk."""

    sentences: int
    boundaries: list[tuple[int, int]]
    output: bytes
    raw: bytes


# Set up in every worker by _prepare_pipelines.
_pipelines: dict[str, TextPipeline] = {}


def _prepare_pipelines(states: dict[str, Any]) -> None:
    _pipelines.clear()
    for language, state in states.items():
        _pipelines[language] = TextPipeline.from_state(state)


def _converter(pipeline: TextPipeline, step: str) -> Callable[[str], str]:
    steps: dict[str, Callable[[str], str]] = {
        "words": lambda line: " ".join(pipeline.words(line)),
        "pieces": lambda line: " ".join(pipeline.subword.split(line.split())),
        "tokens": lambda line: " ".join(pipeline.encode(line)),
        "keep": lambda line: line,
    }
    return steps[step]


def _join_lines(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8")


def _convert_chunk(task: tuple[int, Conversion, Chunk]) -> _Piece:
    _, conversion, chunk = task
    separates = separator_test(conversion.separator)
    sentences: list[str] = []
    boundaries: list[tuple[int, int]] = []
    for number, line in enumerate(read_chunk(chunk), chunk.first_line):
        if separates(line):
            boundaries.append((len(sentences), number))
        else:
            sentences.append(line)
    output = b""
    if conversion.output is not None:
        convert = _converter(_pipelines[conversion.language], conversion.step)
        output = _join_lines([convert(line) for line in sentences])
    raw = b"" if conversion.raw_output is None else _join_lines(sentences)
    return _Piece(len(sentences), boundaries, output, raw)


def convert_texts(
    conversions: Sequence[Conversion],
    pipelines: Mapping[str, TextPipeline],
    workers: int,
    advance: Callable[[int], None],
) -> Iterator[tuple[Conversion, Converted]]:
    """Convert text files; yield each when its results are complete.

    Args:
        conversions: what to convert; no empty files.
        pipelines: the pipelines by language.
        workers: processes; the result does not depend on their number.
        advance: called with the number of bytes done.

    Raises:
        DataError: a text cannot be read any more.
    """
    states = {language: pipeline.to_state() for language, pipeline in pipelines.items()}
    # The list of chunks stays here: sending it along with every task would cost much.
    light = [replace(c, text=TextFile(c.text.path)) for c in conversions]
    tasks = (
        (i, light[i], chunk)
        for i, conversion in enumerate(conversions)
        for chunk in conversion.text.readable_chunks()
    )
    results = ordered_map(_convert_chunk, tasks, workers, _prepare_pipelines, states)
    for i, pieces in groupby(results, key=lambda result: result[0][0]):
        conversion, done = conversions[i], Converted()
        with ExitStack() as stack:
            paths = [p for p in (conversion.output, conversion.raw_output) if p is not None]
            files = {path: stack.enter_context(safe_writer(path)) for path in paths}
            hashes = {path: hashlib.sha256() for path in paths}
            for (_, _, chunk), piece in pieces:
                parts = {conversion.output: piece.output, conversion.raw_output: piece.raw}
                for path in paths:
                    files[path].write(parts[path])
                    hashes[path].update(parts[path])
                done.boundaries += [(done.sentences + n, line) for n, line in piece.boundaries]
                done.sentences += piece.sentences
                advance(chunk.end - chunk.start)
        done.checksums = {path: digest.hexdigest() for path, digest in hashes.items()}
        yield conversion, done


def document_sizes(sides: Sequence[tuple[str, int, Sequence[tuple[int, int]]]]) -> np.ndarray:
    """Return the number of sentences of each document, after comparing the sides.

    Separator lines that follow each other, and those at the beginning and the end, count once or
    not at all: no document is empty.

    Args:
        sides: for each side the file's path, its sentences, and for each separator line the
            sentences before it and its line number.

    Returns:
        int64 [documents].

    Raises:
        DataError: the sides differ; the message gives the lines.
    """
    inner = []
    for _, sentences, boundaries in sides:
        # A later line with the same number of sentences before it replaces an earlier one.
        lines = {before: line for before, line in boundaries if 0 < before < sentences}
        inner.append(sorted(lines.items()))
    (path, sentences, _), first = sides[0], inner[0]
    for (other_path, _, _), other in zip(sides[1:], inner[1:], strict=True):
        for number, (mine, theirs) in enumerate(zip(first, other, strict=False), 2):
            if mine[0] != theirs[0]:
                raise DataError(
                    f"{path}:{mine[1]}: document {number} begins after {mine[0]:,} sentences, but "
                    f"at {other_path}:{theirs[1]} after {theirs[0]:,}; the boundaries of both "
                    "sides must agree"
                )
        if len(first) != len(other):
            longer = (path, first) if len(first) > len(other) else (other_path, other)
            extra = longer[1][min(len(first), len(other))]
            raise DataError(
                f"{longer[0]}:{extra[1]}: a document boundary after {extra[0]:,} sentences that "
                "the other side does not have; the boundaries of both sides must agree"
            )
    edges = [0, *(before for before, _ in first), sentences]
    return np.diff(np.array(edges, dtype=np.int64))
