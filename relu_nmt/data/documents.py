"""Documents: their settings, their boundaries in text files, and the side file that stores them.

The side file ``train.de-en.documents`` has one line per document: its number of sentences. The
sentences themselves are stored one after the other as usual.
"""

import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from relu_nmt.config import like, option, settings
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.io.safe_write import write_text
from relu_nmt.io.text_lines import split_lines

SINGLE_SENTENCES = 1
"""The limit that stands for single sentences of any length."""
DOCUMENT_TAG = "<d>"
SEPARATOR_TESTS: dict[str, Callable[[str], bool]] = {
    "none": lambda line: False,
    "blank": lambda line: not line.strip(),
    "tag": lambda line: line.strip() == DOCUMENT_TAG,
}
"""Tests for lines that separate documents: ``blank`` is an empty line between documents (several
count as one), ``tag`` is a line ``<d>`` before each document."""
SEPARATORS = tuple(SEPARATOR_TESTS)
Boundaries = list[tuple[int, int]]
"""The number of sentences before each separator line, and the line's number in the file."""
WITHOUT_SPACES = "zh zho chi cmn yue lzh wuu nan hak hsn gan cn ja jpn jp"
"""Codes of languages without spaces between sentences, of Chinese and Japanese."""
_TOKENISED = re.compile(r"[^\x00-\x7f] [^\x00-\x7f]")


class Line(NamedTuple):
    """A line of a translated text, as raw text and as tokens of the dictionary."""

    text: str
    tokens: list[str]


class Separators(NamedTuple):
    """Ids of the symbols that end each source and each target sentence.

    ``alone``: also one that stands alone. Models that start from a sentence model read and write a
    single sentence as before, without a separator.
    """

    source: int
    target: int
    alone: bool = True


@settings
class DocumentConfig:
    """Settings that join consecutive sentences of a document.

    Example:
        >>> config = DocumentConfig(doc_mixture=(1, 128, 512))
        >>> config.active, config.training_lengths, config.validation_length
        (True, (1, 128, 512), 512)
    """

    max_doc_tokens: int | None = option(
        None, f"join sentences of a document up to N tokens; {SINGLE_SENTENCES}: sentences", least=1
    )
    doc_mixture: tuple[int, ...] = option(
        (), "train on several such lengths at once, as 1,128,512", metavar="N,N,...", least=1
    )
    sentence_separator: bool = option(False, "end each sentence of both sides with <sep>")

    def check(self) -> None:
        """Compare the settings with each other."""
        if self.sentence_separator and not self.active:
            raise ConfigError(
                "--sentence-separator is for documents: give --max-doc-tokens or --doc-mixture "
                f"too (--max-doc-tokens {SINGLE_SENTENCES} for single sentences)"
            )

    @property
    def active(self) -> bool:
        """Return whether a limit is given."""
        return self.max_doc_tokens is not None or bool(self.doc_mixture)

    @property
    def training_lengths(self) -> tuple[int, ...]:
        """The limits of training in tokens; each gets an equal share."""
        if self.doc_mixture or self.max_doc_tokens is None:
            return self.doc_mixture
        return (self.max_doc_tokens,)

    @property
    def validation_length(self) -> int:
        """The limit of validation in tokens, by default the longest of training."""
        assert self.active
        return self.max_doc_tokens or max(self.doc_mixture)

    def check_fits(self, max_tokens: int | None) -> None:
        """Refuse lengths above ``max_tokens`` of a training batch; None is no limit."""
        longest = max(self.training_lengths, default=0)
        if max_tokens is not None and longest > max_tokens:
            flag = "--doc-mixture" if self.doc_mixture else "--max-doc-tokens"
            raise ConfigError(
                f"{flag} {longest} is more than --max-tokens {max_tokens}: such a group does not "
                f"fit into a batch; raise --max-tokens to {longest} or more"
            )


@settings
class WindowOptions:
    """Size of the parts of a document that are translated at once."""

    max_doc_tokens: int | None = like(
        DocumentConfig,
        "max_doc_tokens",
        help="join lines of a document up to N source tokens (default: as in training)",
    )
    window_overlap: int = option(
        0, "sentences before a window that it gets as context", metavar="SENTENCES", least=0
    )

    def check(self) -> None:
        """Compare overlap and limit."""
        if self.window_overlap and self.max_doc_tokens == SINGLE_SENTENCES:
            raise ConfigError(
                f"--window-overlap {self.window_overlap}: --max-doc-tokens {SINGLE_SENTENCES} "
                "translates single sentences, without context; give more tokens"
            )

    def windows(
        self, trained: int, *, has_documents: bool = True, repair: bool = True
    ) -> "WindowConfig":
        """Return the division of documents: ``--max-doc-tokens``, or ``trained`` as in training.

        Without boundaries of documents the windows are single sentences.

        Raises:
            ConfigError: an overlap of single sentences.
        """
        limit = self.max_doc_tokens or (trained if has_documents else SINGLE_SENTENCES)
        return WindowConfig(limit, self.window_overlap, repair)


@dataclass(frozen=True)
class WindowConfig:
    """Division of documents for decoding.

    Args:
        max_doc_tokens: most tokens of a window with its context; 1: single sentences.
        window_overlap: number of sentences before a window that it gets as context.
        repair: translate windows whose translation cannot be cut again in halves.

    Raises:
        ConfigError: a number is out of range, or single sentences shall overlap.
    """

    max_doc_tokens: int = SINGLE_SENTENCES
    window_overlap: int = 0
    repair: bool = False

    def __post_init__(self) -> None:
        WindowOptions(self.max_doc_tokens, self.window_overlap)


def read_documents(path: str | os.PathLike[str], num_sentences: int | None = None) -> np.ndarray:
    """Read the sentences of each document, int64 [documents], from a side file.

    Raises:
        DataError: the file is missing or damaged, or does not add up to ``num_sentences``.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot read the document boundaries: {error.strerror}") from error
    lines = split_lines(data.decode("ascii", "replace"))
    for number, line in enumerate(lines, 1):
        if not line.isdecimal() or len(line) > 18 or int(line) == 0:
            raise DataError(
                f"{path}:{number}: expected a document's number of sentences, found "
                f"{line[:40]!r}; run relu-nmt-preprocess again"
            )
    # Compare the sum with the split.
    counts = np.array([int(line) for line in lines], dtype=np.int64)
    if num_sentences is not None and counts.sum() != num_sentences:
        raise DataError(
            f"{path}: {counts.sum():,} sentences in {len(counts):,} documents, but the split has "
            f"{num_sentences:,}; run relu-nmt-preprocess again"
        )
    return counts


def write_documents(path: str | os.PathLike[str], counts: Sequence[int] | np.ndarray) -> None:
    """Write a side file."""
    write_text(path, "".join(f"{count}\n" for count in counts))


def document_sizes(sides: Sequence[tuple[str, int, Boundaries]]) -> np.ndarray:
    """Return the number of sentences of each document, int64 [documents].

    Several separator lines in a row count once. Those at the beginning and the end do not count:
    no document is empty.

    Raises:
        DataError: the sides differ; the message names the lines.
    """
    inner = []
    for _, sentences, boundaries in sides:
        # A later line with the same number of sentences before it replaces an earlier one.
        lines = {before: line for before, line in boundaries if 0 < before < sentences}
        inner.append(sorted(lines.items()))
    (path, sentences, _), first = sides[0], inner[0]
    for (other_path, _, _), other in zip(sides[1:], inner[1:], strict=True):
        # Compare boundary by boundary, so that the message names the first that differs.
        for number, (mine, theirs) in enumerate(zip(first, other, strict=False), 2):
            if mine[0] != theirs[0]:
                raise DataError(
                    f"{path}:{mine[1]}: document {number} begins after {mine[0]:,} sentences, but "
                    f"at {other_path}:{theirs[1]} after {theirs[0]:,}; the boundaries of both "
                    "sides must agree"
                )
        if len(first) != len(other):
            # Name the first boundary that only one side has.
            longer = (path, first) if len(first) > len(other) else (other_path, other)
            extra = longer[1][min(len(first), len(other))]
            raise DataError(
                f"{longer[0]}:{extra[1]}: a document boundary after {extra[0]:,} sentences that "
                "the other side does not have; the boundaries of both sides must agree"
            )
    # Take the differences of the boundaries, beginning and end included.
    edges = [0, *(before for before, _ in first), sentences]
    return np.diff(np.array(edges, dtype=np.int64))


def check_parallel(counts: Mapping[str, int], unit: str) -> None:
    """Refuse files with different numbers of lines or sentences (the ``unit``)."""
    (path, count), *others = counts.items()
    for other, other_count in others:
        if other_count != count:
            raise DataError(
                f"{path}: {count:,} {unit}, but {other} has {other_count:,}; both sides must be "
                "parallel, line by line"
            )


def join_texts(sentences: Iterable[str], language: str) -> str:
    """Join sentences to one text, leaving out blank ones.

    In Chinese and Japanese a space stands only between two ASCII characters, unless the text is
    tokenised. A text is tokenised if most sentences have a space between two other characters.

    Args:
        sentences: texts of one or more sentences, without spaces around them.
        language: its code: ``zh``, ``zh_TW``, ``zho_Hans``, ``ja``...

    Example:
        >>> join_texts(["我来。", "你好。"], "zh_CN"), join_texts(["Ja.", "", "Gut."], "de")
        ('我来。你好。', 'Ja. Gut.')
    """
    # Keep the language of the code, which may name region and script.
    code, *further = re.split("[^a-z]", language.lower())
    has_spaces = code not in WITHOUT_SPACES.split() or "latn" in further
    kept = list(filter(None, sentences))
    if has_spaces or 2 * sum(bool(_TOKENISED.search(sentence)) for sentence in kept) > len(kept):
        return " ".join(kept)
    # Compare each sentence with the end of the one before.
    pairs = itertools.pairwise(["", *kept])
    spaces = (" " if a[-1:].isascii() and b[0].isascii() and a else "" for a, b in pairs)
    return "".join(space + sentence for space, sentence in zip(spaces, kept, strict=True))
