"""Documents: settings, boundaries in files, and the groups of sentences that models read.

The side file ``train.de-en.documents`` has one line per document: its number of sentences. A model
reads a group of consecutive sentences at once. A single sentence is also a group. Groups are
planned from the lengths alone, so that one data folder serves every length. The windows of a
translation are groups that may also have the last sentences of the group before as context.

Reference: ReLUFormer paper, appendix B, which leaves details open. Here a sentence counts as the
longer of its two sides, ``</s>`` counts once per group, and a separator once per sentence.
"""

import bisect
import itertools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relu_nmt.config import like, option, settings
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.errors import ConfigError, DataError, counted, reporting
from relu_nmt.io.safe_write import write_text
from relu_nmt.io.text_lines import decode_lines

SINGLE_SENTENCES = 1  # the limit that stands for single sentences of any length
DOCUMENT_TAG = "<d>"
# Tests for lines that separate documents.
SEPARATOR_TESTS: dict[str, Callable[[str], bool]] = {
    "none": lambda line: False,
    "blank": lambda line: not line.strip(),  # between documents, several count as one
    "tag": lambda line: line.strip() == DOCUMENT_TAG,  # before each document
}
SEPARATORS = tuple(SEPARATOR_TESTS)
Boundaries = list[tuple[int, int]]  # sentences before each separator line, and its line number
CHINESE = "zh zho chi cmn yue wuu gan hak nan hsn cdo cjy cpx czh czo mnp lzh cn"
JAPANESE = "ja jpn jp"
"""Codes of the languages in ISO 639, of two or three letters, and the common cn and jp."""
_TOKENIZED = re.compile(r"[^\x00-\x7f] [^\x00-\x7f]")


@dataclass(frozen=True)
class Line:
    """A line of a translated text, as raw text and as tokens of the dictionary."""

    text: str
    tokens: list[str]


class Separators(NamedTuple):
    """Ids of the symbols that end the sentences of a group, in source and target.

    ``alone``: they also end a sentence that is its own group. A document model that began as a
    sentence model reads and writes such sentences without them, as before.
    """

    source: int
    target: int
    alone: bool = True

    @property
    def num_lacking(self) -> int:
        """Number of separators that a sentence alone lacks, 0 or 1."""
        return int(not self.alone)

    def of_group(self, num_sentences: int) -> "Separators | None":
        """Return the separators of a group. None: its only sentence has none."""
        return self if self.alone or num_sentences > 1 else None

    def num_expected(self, source: np.ndarray) -> int:
        """Return the number of separators in a translation of the ids [S] of a source."""
        return max(int(self.alone), int(np.count_nonzero(source == self.source)))


@settings
class DocumentConfig:
    """Settings that join consecutive sentences of a document."""

    max_doc_tokens: int | None = option(
        None, f"join sentences of a document up to N tokens ({SINGLE_SENTENCES}: do not)", least=1
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
        """True if a limit is given."""
        return self.max_doc_tokens is not None or bool(self.doc_mixture)

    @property
    def training_lengths(self) -> tuple[int, ...]:
        """The limits of training in tokens. Each gets an equal share."""
        if self.doc_mixture or self.max_doc_tokens is None:
            return self.doc_mixture
        return (self.max_doc_tokens,)

    @property
    def longest_in_training(self) -> int:
        """The largest limit of training in tokens. 1 stands for single sentences."""
        return max(self.training_lengths, default=SINGLE_SENTENCES)

    @property
    def validation_length(self) -> int:
        """The limit of validation in tokens, by default the longest of training."""
        assert self.active
        return self.max_doc_tokens or max(self.doc_mixture)

    def check_fits(self, max_tokens: int | None) -> None:
        """Refuse lengths above ``max_tokens`` of a training batch. None is no limit."""
        longest = self.longest_in_training
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
        0, "sentences before a window to give as context", metavar="SENTENCES", least=0
    )

    def check(self) -> None:
        """Compare overlap and limit."""
        if self.window_overlap and self.max_doc_tokens == SINGLE_SENTENCES:
            raise ConfigError(
                f"--window-overlap {self.window_overlap}: --max-doc-tokens {SINGLE_SENTENCES} "
                "translates single sentences, without context; give more tokens"
            )

    def windows(self, trained: int, repair: bool = True) -> "WindowConfig":
        """Return the division of documents, by default into groups of ``trained`` tokens."""
        return WindowConfig(self.max_doc_tokens or trained, self.window_overlap, repair)


@dataclass(frozen=True)
class WindowConfig:
    """Division of documents for decoding. Single sentences cannot overlap (ConfigError)."""

    max_doc_tokens: int = SINGLE_SENTENCES  # most tokens of a window with its context
    window_overlap: int = 0  # number of sentences before a window that it gets as context
    # Translate a window once more, in halves, if its translation cannot be cut into sentences.
    repair: bool = False

    def __post_init__(self) -> None:
        WindowOptions(self.max_doc_tokens, self.window_overlap)  # checks the numbers


def read_documents(path: str | os.PathLike[str], num_sentences: int | None = None) -> np.ndarray:
    """Read the sentences of each document, int64 [documents], which sum to ``num_sentences``."""
    with reporting(f"{path}: cannot read the document boundaries"):
        data = Path(path).read_bytes()
    lines = decode_lines(data, os.fspath(path))
    for number, line in enumerate(lines, 1):
        if not line.isdecimal() or len(line) > 18 or int(line) == 0:
            raise DataError(
                f"{path}:{number}: expected a document's number of sentences, found "
                f"{line[:40]!r}; run relu-nmt-preprocess again"
            )
    counts = np.array(list(map(int, lines)), dtype=np.int64)
    if num_sentences is not None and counts.sum() != num_sentences:
        raise DataError(
            f"{path}: {counted(counts.sum(), 'sentence')} in {counted(len(counts), 'document')}, "
            f"but the split has {num_sentences:,}; run relu-nmt-preprocess again"
        )
    return counts


def write_documents(path: str | os.PathLike[str], counts: Sequence[int] | np.ndarray) -> None:
    """Write the sentences of each document to a side file."""
    write_text(path, "".join(f"{count}\n" for count in counts))


def document_sizes(sides: Sequence[tuple[str, int, Boundaries]]) -> np.ndarray:
    """Return the sentences of each document, int64 [documents], the same on all sides."""
    path, sentences, boundaries = sides[0]
    first = _inner_boundaries(boundaries, sentences)
    for other_path, other_sentences, other_boundaries in sides[1:]:
        other = _inner_boundaries(other_boundaries, other_sentences)
        # Compare boundary by boundary, so that the message names the first that differs.
        for number, (mine, theirs) in enumerate(itertools.zip_longest(first, other), 2):
            if mine is None or theirs is None:
                side_path = other_path if mine is None else path
                before, line = mine or theirs
                raise DataError(
                    f"{side_path}:{line}: a document boundary after "
                    f"{counted(before, 'sentence')} that the other side does not have; the "
                    "boundaries of both sides must agree"
                )
            if mine[0] != theirs[0]:
                raise DataError(
                    f"{path}:{mine[1]}: document {number} begins after {mine[0]:,} sentences, but "
                    f"at {other_path}:{theirs[1]} after {theirs[0]:,}; the boundaries of both "
                    "sides must agree"
                )
    edges = [0, *(before for before, _ in first), sentences]
    return np.diff(np.array(edges, dtype=np.int64))


def _inner_boundaries(boundaries: Boundaries, sentences: int) -> Boundaries:
    """Return the boundaries between sentences. In a row of separators the last line counts."""
    lines = dict(sorted(boundaries))
    lines.pop(0, None)
    lines.pop(sentences, None)
    return list(lines.items())


def join_texts(sentences: Iterable[str], language: str) -> str:
    """Join sentences to one text, leaving out blank ones.

    In Chinese and Japanese a space stands only between two ASCII characters, unless the text is
    tokenized. A text is tokenized if most sentences have a space between two other characters.
    The sentences have no spaces around them. The code may be ``zh``, ``zh_TW``, ``zho_Hans``...

    Example:
        >>> join_texts(["我来。", "你好。"], "zh_CN"), join_texts(["Ja.", "", "Gut."], "de")
        ('我来。你好。', 'Ja. Gut.')
    """
    # Keep the language of the code, which may name region and script.
    code, *further = re.split("[^a-z]", language.lower())
    has_spaces = code not in f"{CHINESE} {JAPANESE}".split() or "latn" in further
    texts = list(filter(None, sentences))
    num_tokenized = len(list(filter(_TOKENIZED.search, texts)))
    if has_spaces or 2 * num_tokenized > len(texts):
        return " ".join(texts)
    text = ""
    for sentence in texts:
        if text and text[-1].isascii() and sentence[0].isascii():
            text += " "
        text += sentence
    return text


class Window(NamedTuple):
    """The numbers of a group's document and sentences.

    ``context`` to ``first - 1`` are context, translated already. ``first`` to ``end - 1`` are new.
    """

    document: int
    context: int
    first: int
    end: int

    @property
    def num_new(self) -> int:
        """Number of new sentences."""
        return self.end - self.first


@dataclass(frozen=True)
class Groups:
    """Groups of consecutive sentences, all arrays int64 [groups]."""

    first: np.ndarray  # number of the first sentence of each group
    count: np.ndarray  # number of its sentences
    document: np.ndarray  # the document that it belongs to
    limit: np.ndarray  # its limit in tokens
    # Tokens of its sentences on their longer sides, context and </s> included, as the limit counts.
    tokens: np.ndarray
    context: np.ndarray  # number of the first sentence of its context, ``first`` without context
    num_lacking: np.ndarray  # separators that its only sentence lacks, but which its size includes

    def __len__(self) -> int:
        return len(self.first)

    def sentences(self, group: int) -> range:
        """Return the numbers of the sentences of a group."""
        first = int(self.first[group])
        return range(first, first + int(self.count[group]))

    def windows(self) -> list[Window]:
        """Return the groups one by one."""
        columns = (self.document, self.context, self.first, self.first + self.count)
        return [Window(*row) for row in np.stack(columns, axis=1).tolist()]

    @property
    def over_long(self) -> np.ndarray:
        """Mask of the groups whose only sentence exceeds the limit, bool [groups]."""
        return (self.tokens > self.limit) & (self.limit != SINGLE_SENTENCES)

    def sizes(self, sentence_sizes: np.ndarray) -> np.ndarray:
        """Return the tokens of each group, int [groups], from the tokens of each sentence."""
        if self.count.max(initial=1) == 1:
            return sentence_sizes[self.first] - self.num_lacking
        totals = np.append(0, np.cumsum(sentence_sizes.astype(np.int64) - 1))
        return totals[self.first + self.count] - totals[self.first] + 1 - self.num_lacking

    def select(self, chosen: np.ndarray) -> "Groups":
        """Return the groups of a mask, bool [groups], or of indices, int64."""
        return Groups(**{name: values[chosen] for name, values in vars(self).items()})


def plan_groups(
    sizes: np.ndarray,
    documents: np.ndarray,
    limit: int | np.ndarray,
    overlap: int = 0,
    num_lacking: int = 0,
) -> Groups:
    """Fill groups greedily: a sentence that would exceed the limit begins the next group.

    Every sentence is in exactly one group, in order, and no group has sentences of two documents.
    A sentence that exceeds the limit on its own is a group (:attr:`Groups.over_long`).

    Args:
        sizes: tokens of each sentence on its longer side, with its ``</s>``, int [N].
        documents: sentences of each document, int [documents].
        limit: most tokens of a group, for all documents or int [documents]. 1: single sentences.
        overlap: most sentences of context before a group. Context and first sentence must fit
            ``limit``.
        num_lacking: tokens in the size of a sentence that it lacks if it is its own group.

    Example:
        >>> groups = plan_groups(np.array([4, 4, 4, 4]), np.array([4]), 10, overlap=1)
        >>> [(window.context, window.first, window.end) for window in groups.windows()]
        [(0, 0, 3), (2, 3, 4)]
    """
    assert int(documents.sum()) == len(sizes)
    limits = np.broadcast_to(np.asarray(limit, dtype=np.int64), documents.shape)
    document_of = np.repeat(np.arange(len(documents)), documents)
    if (limits == SINGLE_SENTENCES).all():
        single = np.broadcast_to(np.int64(1), sizes.shape)  # takes no memory
        indices = np.arange(len(sizes))
        lacking = np.broadcast_to(np.int32(num_lacking), sizes.shape)
        return Groups(indices, single, document_of, single, sizes - lacking, indices, lacking)
    tokens_before = np.append(0, np.cumsum(sizes.astype(np.int64) - 1))  # each sentence
    totals = tokens_before.tolist()
    starts: list[int] = []
    contexts: list[int] = []
    begin = 0
    for count, most_tokens in zip(documents.tolist(), limits.tolist(), strict=True):
        capacity = 0 if most_tokens == SINGLE_SENTENCES else most_tokens
        # A sentence whose tokens end here or later does not fit the group, with its </s>.
        capacity_end = 0
        for i in range(begin, begin + count):
            if totals[i + 1] >= capacity_end:
                starts.append(i)
                first_read = i
                if overlap:
                    earliest = max(begin, i - overlap)
                    first_read = first_context(totals, earliest, i, i + 1, most_tokens)
                    contexts.append(first_read)
                capacity_end = totals[first_read] + capacity
        begin += count
    first = np.array(starts, dtype=np.int64)
    context = np.array(contexts, dtype=np.int64) if overlap else first
    ends = np.append(first[1:], len(sizes))[: len(first)]
    document = document_of[first]
    lacking = np.where(ends - context == 1, num_lacking, 0)
    tokens = tokens_before[ends] - tokens_before[context] + 1 - lacking
    return Groups(first, ends - first, document, limits[document], tokens, context, lacking)


def first_context(totals: Sequence[int], earliest: int, first: int, end: int, limit: int) -> int:
    """Return the first sentence of the longest context from ``earliest`` on that fits a window.

    The window ends with the sentences from ``first`` to ``end`` - 1, and has at most ``limit``
    tokens. ``totals`` are the tokens before each sentence, without ``</s>``.
    """
    return bisect.bisect_left(totals, 1 + totals[end] - limit, earliest, first)


def deal_lengths(
    documents: np.ndarray, lengths: tuple[int, ...], seed: tuple[int, int]
) -> np.ndarray:
    """Draw a limit in tokens for each document, int64. All limits get equally many sentences."""
    if len(lengths) == 1:
        return np.full(len(documents), lengths[0], dtype=np.int64)
    # The third number separates this stream from the stream of the shuffled batches.
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((*seed, 1))))
    order = generator.permutation(len(documents))
    # A document belongs to the share in which its middle sentence falls.
    ends = np.cumsum(documents[order])
    middles = ends - documents[order] / 2
    shares = (middles * len(lengths) / max(1, documents.sum())).astype(np.int64)
    result = np.empty(len(documents), dtype=np.int64)
    result[order] = np.array(generator.permutation(lengths), dtype=np.int64)[shares]
    return result


def join_sentences(sentences: Sequence[np.ndarray]) -> np.ndarray:
    """Join the token ids of sentences to one, int64 [n]. Only the last ``</s>`` stays.

    Example:
        >>> join_sentences([np.array([4, 5, 2]), np.array([2]), np.array([6, 2])]).tolist()
        [4, 5, 6, 2]
    """
    return np.concatenate([*(ids[:-1] for ids in sentences), [Dictionary.eos_index]])


def ended(ids: np.ndarray, separator: int) -> np.ndarray:
    """Return the ids of a sentence with the separator before ``</s>``, if it lacks one."""
    if ids[-2:-1].tolist() == [separator]:
        return ids
    return np.append(ids[:-1], (separator, Dictionary.eos_index))


def sentence_slices(tokens: Sequence[Any] | np.ndarray, separator: Any) -> list[slice]:
    """Return the slice of each sentence, without separators. The last sentence may lack one.

    Example:
        >>> words = "a b <sep> <sep> c".split()
        >>> [words[part] for part in sentence_slices(words, "<sep>")]
        [['a', 'b'], [], ['c']]
    """
    slices = []
    begin = 0
    for index, token in enumerate(tokens):
        if token == separator:
            slices.append(slice(begin, index))
            begin = index + 1
    if begin < len(tokens):
        slices.append(slice(begin, len(tokens)))
    return slices
