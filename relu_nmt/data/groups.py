"""Documents: their boundaries, and consecutive sentences joined to groups of limited length.

The side file ``train.de-en.documents`` has one line per document: its number of sentences. The
sentences themselves are stored one after the other as usual. A sentence is a group of one.

Groups are planned from the lengths alone, before any token is read, so that one data folder
serves every length.

Reference: ReLUFormer paper, appendix B. The paper leaves the details open; here a token is one of
the dictionary, a sentence counts as the longer of its two sides, ``</s>`` counts once per group,
and a separator, if any, once per sentence.
"""

import itertools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from relu_nmt.config import option, settings
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.io.safe_write import write_text
from relu_nmt.io.text_lines import split_lines

SINGLE_SENTENCES = 1
"""The limit that stands for single sentences, however long."""

DOCUMENT_TAG = "<d>"
SEPARATOR_TESTS: dict[str, Callable[[str], bool]] = {
    "none": lambda line: False,
    "blank": lambda line: not line.strip(),
    "tag": lambda line: line.strip() == DOCUMENT_TAG,
}
"""Whether a line separates documents and is no sentence itself: nothing does; ``blank``, an empty
line between documents (several count as one); or ``tag``, a line ``<d>`` before each document."""
SEPARATORS = tuple(SEPARATOR_TESTS)
BUCKETS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
QUANTILES = (0.1, 0.5, 0.9)
LENGTHS_FILE = "document_lengths.json"
"""Name of the file beside the checkpoints that holds the lengths of the training."""
WITHOUT_SPACES = "zh zho chi cmn yue lzh wuu nan hak hsn gan cn ja jpn jp"
"""Codes of languages without spaces between sentences, of Chinese and Japanese."""
_TOKENISED = re.compile(r"[^\x00-\x7f] [^\x00-\x7f]")


@settings
class DocumentConfig:
    """Whether and how consecutive sentences of a document are joined.

    Raises:
        ConfigError: a limit below 1, or separators without groups.

    Example:
        >>> config = DocumentConfig(doc_mixture=(1, 128, 512))
        >>> config.active, config.training_lengths, config.validation_length
        (True, (1, 128, 512), 512)
    """

    max_doc_tokens: int | None = option(
        None,
        "join consecutive sentences of a document while both sides have at most N tokens, </s> "
        f"included; {SINGLE_SENTENCES}: single sentences. With --doc-mixture, the N of validation",
        least=1,
        metavar="N",
    )
    doc_mixture: tuple[int, ...] = option(
        (),
        "train on several such lengths at once, as 1,128,512: in every epoch each of them gets an "
        "equal share of the sentences, dealt out document by document (a number given twice gets "
        "two shares); short groups help long ones to be learnt",
        metavar="N,N,...",
        least=1,
    )
    sentence_separator: bool = option(
        False,
        "end each sentence of both sides with <sep>, so that translated documents can be cut into "
        "sentences again; works on any data folder",
    )

    def check(self) -> None:
        """Compare the settings with each other."""
        if self.sentence_separator and not self.active:
            raise ConfigError(
                "--sentence-separator is for documents: give --max-doc-tokens or --doc-mixture "
                f"too (--max-doc-tokens {SINGLE_SENTENCES} for single sentences)"
            )

    @property
    def active(self) -> bool:
        """Return whether documents are wanted at all."""
        return self.max_doc_tokens is not None or bool(self.doc_mixture)

    @property
    def training_lengths(self) -> tuple[int, ...]:
        """The limits to train with, in tokens; each gets an equal share."""
        if self.doc_mixture or self.max_doc_tokens is None:
            return self.doc_mixture
        return (self.max_doc_tokens,)

    @property
    def validation_length(self) -> int:
        """The limit to validate with, in tokens: the longest unless given."""
        assert self.active
        return self.max_doc_tokens or max(self.doc_mixture)

    def check_fits(self, max_tokens: int | None) -> None:
        """Check that every group fits into a training batch.

        Args:
            max_tokens: limit of a batch in tokens; None is no limit.

        Raises:
            ConfigError: one of the lengths is larger.
        """
        longest = max(self.training_lengths, default=0)
        if max_tokens is not None and longest > max_tokens:
            flag = "--doc-mixture" if self.doc_mixture else "--max-doc-tokens"
            raise ConfigError(
                f"{flag} {longest} is more than --max-tokens {max_tokens}: such a group does not "
                f"fit into a batch; raise --max-tokens to {longest} or more"
            )


def read_documents(path: str | os.PathLike[str], num_sentences: int | None = None) -> np.ndarray:
    """Read a side file.

    Args:
        path: the side file.
        num_sentences: sentences of the split, to check against; None checks nothing.

    Returns:
        Sentences of each document, int64 [documents].

    Raises:
        DataError: the file is missing or damaged, or does not fit the split.
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
    counts = np.array([int(line) for line in lines], dtype=np.int64)
    if num_sentences is not None and counts.sum() != num_sentences:
        raise DataError(
            f"{path}: {counts.sum():,} sentences in {len(counts):,} documents, but the split has "
            f"{num_sentences:,}; run relu-nmt-preprocess again"
        )
    return counts


def write_documents(path: str | os.PathLike[str], counts: Sequence[int] | np.ndarray) -> None:
    """Write a side file: one line per document, its number of sentences."""
    write_text(path, "".join(f"{count}\n" for count in counts))


@dataclass(frozen=True)
class Groups:
    """Groups of consecutive sentences; single sentences are groups of one.

    Args:
        first: number of the first sentence of each group, int64 [groups].
        count: sentences of each group, int64 [groups].
        document: the document that each group belongs to, int64 [groups].
        limit: the limit of each group in tokens, int64 [groups].
        tokens: tokens of each group on its longer side, ``</s>`` included, int64 [groups]: the
            sum over its sentences of the longer side, as the limit counts.

    Example:
        >>> groups = plan_groups(np.array([5, 4, 9, 3]), np.array([3, 1]), 8)
        >>> [list(groups.sentences(i)) for i in range(len(groups))]
        [[0, 1], [2], [3]]
        >>> groups.over_long.tolist()
        [False, True, False]
    """

    first: np.ndarray
    count: np.ndarray
    document: np.ndarray
    limit: np.ndarray
    tokens: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    def sentences(self, group: int) -> range:
        """Return the numbers of the sentences of a group."""
        first = int(self.first[group])
        return range(first, first + int(self.count[group]))

    @property
    def over_long(self) -> np.ndarray:
        """Which groups are a single sentence that is longer than the limit, bool [groups]."""
        return (self.tokens > self.limit) & (self.limit != SINGLE_SENTENCES)

    def sizes(self, of_sentence: np.ndarray) -> np.ndarray:
        """Return the tokens of each group on one side, with its one ``</s>``, int [groups].

        Args:
            of_sentence: tokens of each sentence of the split on that side, with ``</s>``, int [N].
        """
        if self.count.max(initial=1) == 1:
            return of_sentence[self.first]
        totals = np.append(0, np.cumsum(of_sentence.astype(np.int64) - 1))
        return totals[self.first + self.count] - totals[self.first] + 1

    def select(self, chosen: np.ndarray) -> "Groups":
        """Return some of the groups.

        Args:
            chosen: bool [groups], or the numbers of those to take, int64.
        """
        return Groups(*(getattr(self, one.name)[chosen] for one in fields(self)))


def single_sentences(sizes: np.ndarray) -> Groups:
    """Return every sentence as a group, and as a document, of its own.

    Args:
        sizes: tokens of each sentence on its longer side, with its ``</s>``, int [N].
    """
    numbers = np.arange(len(sizes))
    one = np.broadcast_to(np.int64(1), numbers.shape)  # takes no memory
    return Groups(numbers, one, numbers, one, sizes)


def plan_groups(sizes: np.ndarray, documents: np.ndarray, limit: int | np.ndarray) -> Groups:
    """Fill groups greedily: a sentence that would exceed the limit begins the next group.

    Every sentence is in exactly one group, in order, and no group has sentences of two documents.
    A sentence that is longer than the limit on its own is a group (:attr:`over_long`).

    Args:
        sizes: tokens of each sentence on its longer side, with its ``</s>``, int [N].
        documents: sentences of each document, int [documents].
        limit: most tokens of a group, its one ``</s>`` included; one for all documents, or
            int [documents]. 1 makes each sentence a group.
    """
    assert int(documents.sum()) == len(sizes)
    limits = np.broadcast_to(np.asarray(limit, dtype=np.int64), documents.shape)
    contents = (sizes.astype(np.int64) - 1).tolist()
    starts: list[int] = []
    begin = 0
    for count, most in zip(documents.tolist(), limits.tolist(), strict=True):
        tokens = 0
        for i in range(begin, begin + count):
            tokens += contents[i]
            if i == begin or tokens > most or most == SINGLE_SENTENCES:
                starts.append(i)
                tokens = 1 + contents[i]
        begin += count
    first = np.array(starts, dtype=np.int64)
    document = np.repeat(np.arange(len(documents)), documents)[first]
    totals = np.zeros(0, dtype=np.int64)
    if len(first):
        totals = np.add.reduceat(sizes.astype(np.int64) - 1, first) + 1
    counts = np.diff(np.append(first, len(sizes)))
    return Groups(first, counts, document, limits[document], totals)


def deal_lengths(
    documents: np.ndarray, lengths: tuple[int, ...], seed: tuple[int, int]
) -> np.ndarray:
    """Give each document one of the lengths, so that each length gets as many sentences.

    Args:
        documents: sentences of each document, int [documents].
        lengths: the limits in tokens; one that stands twice gets two shares.
        seed: seed of the run and the epoch; each epoch is dealt anew.

    Returns:
        The limit of each document in tokens, int64 [documents].
    """
    if len(lengths) == 1:
        return np.full(len(documents), lengths[0], dtype=np.int64)
    # The third number keeps this stream apart from the one that shuffles the batches.
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((*seed, 1))))
    order = generator.permutation(len(documents))
    ends = np.cumsum(documents[order])
    middles = ends - documents[order] / 2
    shares = (middles * len(lengths) / max(1, documents.sum())).astype(np.int64)
    result = np.empty(len(documents), dtype=np.int64)
    result[order] = np.array(generator.permutation(lengths), dtype=np.int64)[shares]
    return result


def describe_lengths(groups: Groups, limit: int, keep_over_long: bool) -> dict[str, Any]:
    """Return the realised lengths of the groups of one limit, as JSON values.

    Args:
        groups: all groups, over-long ones included.
        limit: the limit in tokens whose groups to describe.
        keep_over_long: whether over-long sentences are used (validation) or left out (training).
    """
    of_limit = groups.select(groups.limit == limit)
    over_long = of_limit.over_long
    kept = of_limit if keep_over_long else of_limit.select(~over_long)
    result: dict[str, Any] = {
        "max_doc_tokens": limit,
        "documents": len(np.unique(of_limit.document)),
        "sentences": int(of_limit.count.sum()),
        "groups": len(kept),
        "over_long_sentences": int(over_long.sum()),
        "over_long_kept": keep_over_long,
    }
    if not len(kept):
        return result
    quantiles = np.quantile(kept.tokens, QUANTILES)
    begins = [1, *(bucket + 1 for bucket in BUCKETS)]
    names = [f"{begin}-{end}" for begin, end in zip(begins, (*BUCKETS, ""), strict=True)]
    buckets = np.histogram(kept.tokens, [*begins, np.inf])[0]
    result |= {
        "tokens": int(kept.tokens.sum()),
        "mean_tokens": round(float(kept.tokens.mean()), 2),
        "quantiles_tokens": dict(zip(map(str, QUANTILES), quantiles.tolist(), strict=True)),
        "longest_tokens": int(kept.tokens.max()),
        "mean_sentences": round(float(kept.count.mean()), 2),
        "groups_by_tokens": {
            name: int(number) for name, number in zip(names, buckets, strict=True) if number
        },
    }
    return result


def lengths_in_words(description: dict[str, Any]) -> str:
    """Return what :func:`describe_lengths` found, in one line."""
    limit = description["max_doc_tokens"]
    what = "single sentences" if limit == SINGLE_SENTENCES else f"groups of up to {limit} tokens"
    parts = [
        f"{what}: {description['groups']:,} from {description['documents']:,} documents with "
        f"{description['sentences']:,} sentences"
    ]
    if "tokens" in description:
        low, middle, high = description["quantiles_tokens"].values()
        parts.append(
            f"tokens mean {description['mean_tokens']:.0f}, 10% {low:.0f}, median {middle:.0f}, "
            f"90% {high:.0f}, longest {description['longest_tokens']:,}; sentences mean "
            f"{description['mean_sentences']:.1f}"
        )
    if description["over_long_sentences"]:
        action = "kept whole" if description["over_long_kept"] else "left out"
        parts.append(f"{description['over_long_sentences']:,} longer sentences are {action}")
    return "; ".join(parts)


def join_texts(sentences: Iterable[str], language: str) -> str:
    """Return the text of sentences, which stand side by side; blank ones leave no trace.

    In Chinese and Japanese there is a space only between two ASCII characters, unless the text is
    tokenised: most sentences have a space between two other characters.

    Args:
        sentences: one or more of them a text, without spaces around it.
        language: its code: ``zh``, ``zh_TW``, ``zho_Hans``, ``ja``...

    Example:
        >>> join_texts(["我来。", "你好。"], "zh_CN"), join_texts(["Ja.", "", "Gut."], "de")
        ('我来。你好。', 'Ja. Gut.')
    """
    code, *further = re.split("[^a-z]", language.lower())
    has_spaces = code not in WITHOUT_SPACES.split() or "latn" in further
    kept = list(filter(None, sentences))
    if has_spaces or 2 * sum(bool(_TOKENISED.search(sentence)) for sentence in kept) > len(kept):
        return " ".join(kept)
    pairs = itertools.pairwise(["", *kept])
    spaces = (" " if a[-1:].isascii() and b[0].isascii() and a else "" for a, b in pairs)
    return "".join(space + sentence for space, sentence in zip(spaces, kept, strict=True))
