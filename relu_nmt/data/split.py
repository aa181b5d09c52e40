"""The sentence pairs of one split: opened once, read from disk as they are asked for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.groups import (
    SINGLE_SENTENCES,
    Groups,
    deal_lengths,
    plan_groups,
    read_documents,
    single_sentences,
)
from relu_nmt.data.indexed_dataset import Dataset, DatasetParts
from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import read_lines

Pair = tuple[np.ndarray, np.ndarray | None]


@dataclass(frozen=True)
class Corpora:
    """The corpora that a split is joined of.

    Args:
        ends: sentences up to the end of each, int64 [C].
        tags: id of the symbol that begins each source sentence (or group of them) of each, int64
            [C]; -1 for none.

    Example:
        >>> Corpora(np.array([2, 5]), np.array([-1, 7])).tag_of(np.array([0, 1, 2])).tolist()
        [-1, -1, 7]
    """

    ends: np.ndarray
    tags: np.ndarray

    def number_of(self, sentences: np.ndarray | int) -> np.ndarray:
        """Return which corpus sentences are from, by their numbers, int64 of the same shape."""
        return np.searchsorted(self.ends, sentences, side="right")

    def tag_of(self, sentences: np.ndarray | int) -> np.ndarray:
        """Return the tags of sentences, by their numbers, int64 of the same shape."""
        return self.tags[self.number_of(sentences)]


class Split:
    """Source and target sentences side by side, with document boundaries and raw text if kept.

    Sentences are read in groups of consecutive ones (:class:`relu_nmt.data.groups.Groups`); a
    sentence is a group of one.

    Args:
        source: the source sentences.
        target: the target sentences in the same order; None for source-only data.
        source_vocab_size: token ids at or above it are an error; None checks nothing.
        target_vocab_size: the same for the target.
        separators: ids of the symbol that ends each source and each target sentence, before
            ``</s>``; it is not in the files. None for no such symbol.
        alignments: the word alignments, for training on them, as
            :class:`relu_nmt.data.alignments.AlignmentDataset` gives them; None for none.

    Attributes:
        longest_source: tokens that are read of a source sentence, ``</s>`` included, which then
            still ends it; None: all.

    Raises:
        DataError: the two sides, or they and the alignments, have different numbers of sentences.

    Example:
        >>> import tempfile
        >>> from relu_nmt.data.indexed_dataset import IndexedDataset, IndexedDatasetWriter
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with IndexedDatasetWriter(folder + "/x", np.uint16) as writer:
        ...         writer.add(np.array([4, 2, 5, 2]), np.array([2, 2]))
        ...     side = IndexedDataset(folder + "/x")
        >>> split = Split(side, side)
        >>> [ids.tolist() for ids in split.pair(0)]
        [[4, 2], [4, 2]]
        >>> [ids.tolist() for ids in split.joined(range(0, 2))]
        [[4, 5, 2], [4, 5, 2]]
    """

    def __init__(
        self,
        source: Dataset,
        target: Dataset | None = None,
        source_vocab_size: int | None = None,
        target_vocab_size: int | None = None,
        separators: tuple[int, int] | None = None,
        alignments: Dataset | None = None,
    ) -> None:
        for other in (target, alignments):
            if other is not None and len(source) != len(other):
                raise DataError(
                    f"{source.prefix}.idx: {len(source):,} sentences, but {other.prefix}.idx has "
                    f"{len(other):,}; both sides must be parallel, re-run relu-nmt-preprocess"
                )
        self.source = source
        self.target = target
        self.alignments = alignments
        self._vocab_sizes = (source_vocab_size, target_vocab_size)
        self.separators = separators
        self._added = int(separators is not None)
        self.corpora: Corpora | None = None
        self.longest_source: int | None = None

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def chained(cls, splits: Sequence["Split"], tags: Sequence[int] = ()) -> "Split":
        """Return the sentences of several splits of one task as one, which is named as the first.

        Where document boundaries are known of some, the sentences of the others are each a
        document.

        Args:
            splits: what to join.
            tags: the symbol that begins the source sentences of each, -1 for none; none at all: of
                no split.

        Raises:
            DataError: some have a target side, or word alignments, and others have not.
        """
        first, *others = splits
        if not others:
            return first
        for part, what in (("target", "target side"), ("alignments", "word alignments")):
            having = [split for split in splits if getattr(split, part) is not None]
            if 0 < len(having) < len(splits):
                without = next(split for split in splits if split not in having)
                raise DataError(
                    f"{without.stem}: has no {what}, as {having[0].stem} has, which it is joined "
                    "with"
                )
        joined = cls._of(
            first,
            [(split.source, range(len(split))) for split in splits],
            [(split.target, range(len(split))) for split in splits if split.target is not None],
        )
        if first.alignments is not None:
            joined.alignments = DatasetParts(
                [(split.alignments, range(len(split))) for split in splits if split.alignments]
            )
        known = [split.documents for split in splits]
        joined.documents = None
        if any(own is not None for own in known):
            joined.documents = np.concatenate(
                [
                    np.ones(len(split), np.int64) if own is None else own
                    for split, own in zip(splits, known, strict=True)
                ]
            )
        ends = np.cumsum([len(split) for split in splits])
        joined.corpora = Corpora(ends, np.array(tags or [-1] * len(splits)))
        return joined

    def cut(self, shard: int, num_shards: int) -> tuple["Split", "Split"]:
        """Return what comes before one of as many equal parts of the split, and this part.

        Documents are not divided, where they are known.

        Args:
            shard: number of the part, from 0.
            num_shards: how many.
        """
        begins = np.arange(len(self) + 1)
        if self.documents is not None:
            begins = np.append(0, np.cumsum(self.documents))
        first, last = ((len(begins) - 1) * i // num_shards for i in (shard, shard + 1))
        return self._part(begins, 0, first), self._part(begins, first, last)

    def _part(self, begins: np.ndarray, first: int, last: int) -> "Split":
        """Return documents ``first`` to ``last - 1``, which begin at these sentences."""
        own = range(int(begins[first]), int(begins[last]))
        target = [] if self.target is None else [(self.target, own)]
        part = self._of(self, [(self.source, own)], target)
        part.documents = None if self.documents is None else self.documents[first:last]
        for name in ("raw_source", "raw_target"):
            raw = getattr(self, name)
            setattr(part, name, None if raw is None else raw[own.start : own.stop])
        return part

    @staticmethod
    def _of(
        split: "Split",
        source: Sequence[tuple[Dataset, range]],
        target: Sequence[tuple[Dataset, range]],
    ) -> "Split":
        """Return a split like another one, with these sentences."""
        return Split(
            DatasetParts(source),
            DatasetParts(target) if target else None,
            *split._vocab_sizes,
            split.separators,
        )

    @property
    def stem(self) -> str:
        """What the names of its files begin with: ``data-bin/train.de-en``."""
        return str(Path(self.source.prefix).with_suffix(""))

    @property
    def name(self) -> str:
        """``train``, ``valid``, ``test``..."""
        return Path(self.source.prefix).name.partition(".")[0]

    @property
    def source_sizes(self) -> np.ndarray:
        """Tokens of each source sentence with ``</s>``, int32 [N]."""
        sizes, kept = self.source.sizes, self._kept_of_source
        return (sizes if kept is None else np.minimum(sizes, kept)) + self._added

    @property
    def _kept_of_source(self) -> int | None:
        """Most tokens of a source sentence in the file that are read, ``</s>`` included."""
        return None if self.longest_source is None else max(1, self.longest_source - self._added)

    @property
    def num_truncated(self) -> int:
        """How many source sentences are longer than :attr:`longest_source`."""
        kept = self._kept_of_source
        return 0 if kept is None else int((self.source.sizes > kept).sum())

    @property
    def target_sizes(self) -> np.ndarray | None:
        """Tokens of each target sentence with ``</s>``, int32 [N]; None for source-only data."""
        return None if self.target is None else self.target.sizes + self._added

    @cached_property
    def documents(self) -> np.ndarray | None:
        """Sentences of each document, int64 [documents]; None if unknown.

        Raises:
            DataError: the side file is damaged or does not fit the split.
        """
        path = Path(f"{self.stem}.documents")
        return read_documents(path, len(self)) if path.exists() else None

    @property
    def has_documents(self) -> bool:
        """Return whether there are boundaries of documents."""
        return Path(f"{self.stem}.documents").exists()

    def require_documents(self, purpose: str, length: int) -> np.ndarray:
        """Return the sentences of each document, int64 [documents].

        For single sentences boundaries need not be known: each is then a document.

        Args:
            purpose: the flag that needs them.
            length: the longest groups to be made, in tokens; 1: single sentences.

        Raises:
            DataError: they are unknown, or the side file is damaged.
        """
        if self.documents is None and length == SINGLE_SENTENCES:
            return np.ones(len(self), dtype=np.int64)
        if self.documents is None:
            raise DataError(
                f"{self.stem}.documents: no such file, but {purpose} needs the document "
                "boundaries; run relu-nmt-preprocess with --document-separator, or write the file "
                "(a line per document: its number of sentences)"
            )
        return self.documents

    @cached_property
    def raw_source(self) -> list[str] | None:
        """The source sentences as they were before any step, or None if not kept.

        They are kept for validation and test sets made by relu-nmt-preprocess.

        Raises:
            DataError: there are not as many raw sentences as pairs.
        """
        return self._raw(self.source)

    @cached_property
    def raw_target(self) -> list[str] | None:
        """The same for the target sentences; None for source-only data too."""
        return None if self.target is None else self._raw(self.target)

    def _raw(self, side: Dataset) -> list[str] | None:
        path = Path(f"{side.prefix}.raw")
        if not path.exists():
            return None
        lines = read_lines(path)
        if len(lines) != len(side):
            raise DataError(
                f"{path}: {len(lines):,} lines, but the split has {len(side):,} sentences; run "
                "relu-nmt-preprocess again"
            )
        return lines

    def groups(self, lengths: tuple[int, ...] = (), seed: tuple[int, int] = (0, 0)) -> Groups:
        """Return all groups of the split; together they hold every sentence once, in order.

        Args:
            lengths: the limit of a group in tokens; several are dealt out to the documents. None
                at all: single sentences, for which no document boundaries are needed.
            seed: seed of the run and epoch, for dealing.

        Raises:
            DataError: there are limits, but no document boundaries.
        """
        sizes = longer_side(self.source_sizes, self.target_sizes)
        if not lengths:
            return single_sentences(sizes)
        documents = self.require_documents("joining sentences", max(lengths))
        return plan_groups(sizes, documents, deal_lengths(documents, lengths, seed))

    def group_sizes(self, groups: Groups) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the tokens of each group in source and target, with one ``</s>``, int [groups]."""
        source, target = groups.sizes(self.source_sizes), self.target_sizes
        if self.corpora is not None:
            source = source + (self.corpora.tag_of(groups.first) >= 0)
        return source, None if target is None else groups.sizes(target)

    def targets(self) -> Iterator[np.ndarray]:
        """Yield the token ids of each target sentence, see :meth:`joined`.

        Raises:
            DataError: source-only data, or damaged.
        """
        if self.target is None:
            raise DataError(f"{self.source.prefix}.idx: source-only data has no references")
        for index in range(len(self)):
            yield self._sentence(self.target, index, 1)

    def pair(self, index: int) -> Pair:
        """Return the token ids of pair ``index``, see :meth:`joined`."""
        return self.joined(range(index, index + 1))

    def joined(self, sentences: range) -> Pair:
        """Return the token ids of consecutive pairs as one: two int64 [n], ending in ``</s>``.

        Raises:
            DataError: a token id is not in the dictionary, or ``</s>`` is missing.
        """
        source = join_sentences([self._sentence(self.source, i, 0) for i in sentences])
        if self.corpora is not None and (tag := self.corpora.tag_of(sentences.start)) >= 0:
            source = np.append(tag, source)
        if self.target is None:
            return source, None
        return source, join_sentences([self._sentence(self.target, i, 1) for i in sentences])

    def aligned(self, sentences: range) -> np.ndarray:
        """Return the aligned tokens of consecutive pairs, in what :meth:`joined` makes of them.

        Pairs of source tokens that are cut off (:attr:`longest_source`) are left out.

        Returns:
            source and target positions, int64 [P, 2].

        Raises:
            DataError: a position is not one of its sentence.
        """
        assert self.alignments is not None and self.target is not None
        is_tagged = self.corpora is not None and self.corpora.tag_of(sentences.start) >= 0
        start, found = np.array([int(is_tagged), 0]), []
        for index in sentences:
            lengths = np.array([side.sizes[index] - 1 for side in (self.source, self.target)])
            pairs = self.alignments[index]
            if (pairs >= lengths).any():
                raise DataError(
                    f"{self.alignments.prefix}.bin: sentence {index} has {lengths[0]} source and "
                    f"{lengths[1]} target tokens, but {pairs.max(0).tolist()} among the aligned "
                    "positions, which count from 0; run relu-nmt-preprocess again"
                )
            if (kept := self._kept_of_source) is not None:
                pairs = pairs[pairs[:, 0] < kept - 1]
            found.append(pairs + start)
            start = start + lengths + self._added
        return np.concatenate(found)

    def _sentence(self, side: Dataset, index: int, which: int) -> np.ndarray:
        vocab_size = self._vocab_sizes[which]
        separator = None if self.separators is None else self.separators[which]
        ids = side[index]
        if len(ids) == 0 or ids[-1] != Dictionary.eos_index:
            raise DataError(
                f"{side.prefix}.bin: sentence {index} does not end in </s>; binarise the corpus "
                "again (fairseq-preprocess users: with --append-eos)"
            )
        if vocab_size is not None and not 0 <= ids.min() <= ids.max() < vocab_size:
            raise DataError(
                f"{side.prefix}.bin: sentence {index} holds tokens {ids.min()} to {ids.max()}, "
                f"but its dictionary has {vocab_size:,} symbols; data and dictionary do not "
                "belong together"
            )
        if which == 0 and (kept := self._kept_of_source) is not None and len(ids) > kept:
            ids = np.append(ids[: kept - 1], Dictionary.eos_index)
        if separator is None:
            return ids
        if separator in ids:
            raise DataError(
                f"{side.prefix}.bin: sentence {index} itself holds the symbol that is to end each "
                f"sentence (number {separator}); train without --sentence-separator"
            )
        return np.append(ids[:-1], (separator, Dictionary.eos_index))


def join_sentences(sentences: Sequence[np.ndarray]) -> np.ndarray:
    """Return the token ids of several sentences as one, int64 [n].

    Args:
        sentences: token ids, each ending in ``</s>``; only the last ``</s>`` stays.

    Example:
        >>> join_sentences([np.array([4, 5, 2]), np.array([2]), np.array([6, 2])]).tolist()
        [4, 5, 6, 2]
    """
    return np.concatenate([*(ids[:-1] for ids in sentences), [Dictionary.eos_index]])


def sentence_slices(tokens: Sequence[Any] | np.ndarray, separator: Any) -> list[slice]:
    """Return where the sentences stand, without their separators.

    What follows the last separator is a sentence only if it has tokens.

    Args:
        tokens: words or token ids [T], without ``</s>``.
        separator: the token that ends each sentence.

    Example:
        >>> words = "a b <sep> <sep> c".split()
        >>> [words[own] for own in sentence_slices(words, "<sep>")]
        [['a', 'b'], [], ['c']]
    """
    ends = [place for place, token in enumerate(tokens) if token == separator]
    begins = [0, *(end + 1 for end in ends)]
    if begins[-1] < len(tokens):
        ends.append(len(tokens))
    return [slice(begin, end) for begin, end in zip(begins, ends, strict=False)]


def sentence_numbers(sizes: np.ndarray, separated: bool) -> np.ndarray:
    """Return the number of the sentence of each token of joined sentences, int64 [n].

    Args:
        sizes: tokens of each, with its ``</s>``, int; only the last ``</s>`` stays.
        separated: a separator ends each; then nothing but the end follows the last one, as
            attention that stays inside sentences sees it.

    Example:
        >>> sentence_numbers(np.array([3, 2]), separated=False).tolist()
        [0, 0, 1, 1]
    """
    numbers = np.repeat(np.arange(len(sizes)), sizes - 1)
    return np.append(numbers, len(sizes) if separated else len(sizes) - 1)


def longer_side(source_sizes: np.ndarray, target_sizes: np.ndarray | None) -> np.ndarray:
    """Return what each sentence counts towards the limit of a group: its longer side, int [N].

    Args:
        source_sizes: tokens of each source sentence with ``</s>``, int [N].
        target_sizes: the same for the target; None for source-only data.
    """
    return source_sizes if target_sizes is None else np.maximum(source_sizes, target_sizes)


def check_parallel(counts: Mapping[str, int], what: str) -> None:
    """Check that all files have as many lines or sentences.

    Args:
        counts: their number by path.
        what: "lines" or "sentences", for the message.

    Raises:
        DataError: the numbers differ; the message names both.
    """
    (path, count), *others = counts.items()
    for other, other_count in others:
        if other_count != count:
            raise DataError(
                f"{path}: {count:,} {what}, but {other} has {other_count:,}; both sides must be "
                "parallel, line by line"
            )
