"""The sentence pairs of one split, read from disk on demand."""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.document_settings import SINGLE_SENTENCES
from relu_nmt.data.documents import read_documents
from relu_nmt.data.groups import Groups, deal_lengths, longer_side, plan_groups
from relu_nmt.data.indexed_dataset import Dataset, DatasetParts
from relu_nmt.data.separators import Separators, join_sentences
from relu_nmt.errors import DataError, counted
from relu_nmt.io.safe_write import plain_file

SOURCE, TARGET = 0, 1  # positions of the sides in pairs
NO_LIMIT = 2**31 - 1  # the largest number of tokens in an index
LENGTHS_FILE = "document_lengths.json"  # beside the checkpoints, with the lengths of the training
Pair = tuple[np.ndarray, np.ndarray | None]


@dataclass(frozen=True, eq=False)
class Split:
    """Source and target sentences side by side.

    Sides of different lengths are a DataError, and so are token ids outside of a side's vocabulary.
    ``separators`` end each sentence before ``</s>``. The files do not contain them.
    """

    source: Dataset
    target: Dataset | None = None
    source_vocab_size: int | None = None
    target_vocab_size: int | None = None
    separators: Separators | None = None
    alignments: Dataset | None = None
    documents: np.ndarray | None = None  # sentences of each document, int64. None: unknown
    # Cut longer source sentences to this many tokens. The last one is still </s>.
    longest_source: int = NO_LIMIT
    later_corpora: tuple[int, ...] = ()  # first sentence of each chained corpus but the first
    # For each corpus, the id of the symbol that begins its source groups. -1 for none.
    corpus_tags: tuple[int, ...] = (-1,)

    def __post_init__(self) -> None:
        for other in (self.target, self.alignments):
            if other is not None and len(self) != len(other):
                raise DataError(
                    f"{self.source.prefix}.idx: {counted(len(self), 'sentence')}, but "
                    f"{other.prefix}.idx has {len(other):,}; both sides must be "
                    "parallel, re-run relu-nmt-preprocess"
                )

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def chained(cls, splits: Sequence["Split"], tags: Sequence[int] = ()) -> "Split":
        """Return the sentences of several splits of one task as one, under the name of the first.

        If only some splits have document boundaries, each sentence of the other splits is a
        document. ``tags`` are ids of the symbols that begin the source sentences of each split, -1
        for none.
        """
        first, *further_splits = splits
        if not further_splits:
            return first
        for part, name in (("target", "target side"), ("alignments", "word alignments")):
            having = [split for split in splits if getattr(split, part) is not None]
            lacking = [split for split in splits if getattr(split, part) is None]
            if having and lacking:
                raise DataError(
                    f"{lacking[0].stem}: has no {name}, but {having[0].stem}, to which it is "
                    f"joined, has; give both {name}, or neither"
                )
        documents = None
        if any(split.documents is not None for split in splits):
            sizes = [split.require_documents("", SINGLE_SENTENCES) for split in splits]
            documents = np.concatenate(sizes)
        return replace(
            first,
            **_sides_of([(split, range(len(split))) for split in splits]),
            documents=documents,
            later_corpora=tuple(np.cumsum(list(map(len, splits)))[:-1].tolist()),
            corpus_tags=tuple(tags) or (-1,) * len(splits),
        )

    def corpus_of(self, sentences: np.ndarray) -> np.ndarray:
        """Return the corpus of each sentence number of a chained split, int64 of the same shape."""
        return np.searchsorted(self.later_corpora, sentences, side="right")

    def _tag_of(self, sentence: int) -> int:
        return self.corpus_tags[bisect.bisect(self.later_corpora, sentence)]

    def cut(self, shard: int, num_shards: int) -> tuple["Split", "Split"]:
        """Return all before part ``shard`` (from 0), and the part. Documents stay whole."""
        begins = np.arange(len(self) + 1)
        if self.documents is not None:
            begins = np.append(0, np.cumsum(self.documents))
        number = len(begins) - 1
        first = number * shard // num_shards
        last = number * (shard + 1) // num_shards
        return self._part(begins, 0, first), self._part(begins, first, last)

    def _part(self, begins: np.ndarray, first: int, last: int) -> "Split":
        """Return documents ``first`` to ``last - 1``. Each begins at its sentence in ``begins``."""
        sentences = range(int(begins[first]), int(begins[last]))
        return replace(
            self,
            **_sides_of([(self, sentences)]),
            documents=None if self.documents is None else self.documents[first:last],
            later_corpora=(),
            corpus_tags=(-1,),
        )

    @property
    def stem(self) -> str:
        """The common beginning of its file names: ``data-bin/train.de-en``."""
        return str(Path(self.source.prefix).with_suffix(""))

    @property
    def name(self) -> str:
        """``train``, ``valid``, ``test``..."""
        return Path(self.source.prefix).name.partition(".")[0]

    @property
    def source_sizes(self) -> np.ndarray:
        """Tokens of each source sentence with ``</s>``, int32 [N]."""
        return np.minimum(self.source.sizes, self._most_source_tokens) + self._num_separators

    @property
    def _num_separators(self) -> int:
        """Number of separators in the size of a sentence, 0 or 1."""
        return int(self.separators is not None)

    @property
    def num_lacking(self) -> int:
        """Number of separators in the size of a sentence that it lacks if it stands alone."""
        return 0 if self.separators is None else self.separators.num_lacking

    @property
    def _most_source_tokens(self) -> int:
        """Most tokens that are read from a stored source sentence, ``</s>`` included."""
        return max(1, self.longest_source - self._num_separators)

    @property
    def num_truncated(self) -> int:
        """Number of source sentences that are longer than :attr:`longest_source`."""
        return int((self.source.sizes > self._most_source_tokens).sum())

    @property
    def target_sizes(self) -> np.ndarray | None:
        """Tokens of each target sentence with ``</s>``, int32 [N]. None for source-only data."""
        return None if self.target is None else self.target.sizes + self._num_separators

    @cached_property
    def raw_source(self) -> list[str] | None:
        """The source sentences before any text step. Kept for validation and test sets only."""
        return self.source.raw_lines()

    @cached_property
    def raw_target(self) -> list[str] | None:
        """The target sentences before any text step. None for source-only data too."""
        return None if self.target is None else self.target.raw_lines()

    def require_documents(self, purpose: str, length: int) -> np.ndarray:
        """Return the sentences of each document, int64 [documents], for the flag ``purpose``."""
        if self.documents is None and length == SINGLE_SENTENCES:
            return np.ones(len(self), dtype=np.int64)
        if self.documents is None:
            raise DataError(
                f"{self.stem}.documents: no such file, but {purpose} needs the document "
                "boundaries; run relu-nmt-preprocess with --document-separator, or write the file "
                "(a line per document: its number of sentences)"
            )
        return self.documents

    def groups(self, lengths: tuple[int, ...] = (), seed: tuple[int, int] = (0, 0)) -> Groups:
        """Return all groups of the split. Together they hold every sentence once, in order.

        ``lengths`` are the limits of a group in tokens. From several, one is drawn for each
        document by ``seed``: seed of the run and epoch. Without limits, groups are single
        sentences.
        """
        sizes = longer_side(self.source_sizes, self.target_sizes)
        documents = np.ones_like(sizes)
        limits = np.array(SINGLE_SENTENCES)
        if lengths:
            documents = self.require_documents("joining sentences", max(lengths))
            limits = deal_lengths(documents, lengths, seed)
        return plan_groups(sizes, documents, limits, num_lacking=self.num_lacking)

    def group_sizes(self, groups: Groups) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the tokens of each group in source and target, with one ``</s>``, int [groups]."""
        source = groups.sizes(self.source_sizes, self.num_lacking)
        if max(self.corpus_tags) >= 0:
            source = source + (np.array(self.corpus_tags)[self.corpus_of(groups.first)] >= 0)
        if self.target_sizes is None:
            return source, None
        return source, groups.sizes(self.target_sizes, self.num_lacking)

    def refuse_too_long(self, max_tokens: int | None) -> None:
        """Raise a DataError if a sentence is longer than a batch of ``max_tokens``."""
        longest = self.groups().tokens
        if max_tokens is not None and longest.max(initial=0) > max_tokens:
            first, others_in_words = first_of(longest > max_tokens)
            raise DataError(
                f"{self.source.prefix}: sentence {first} has {longest[first]:,} tokens"
                f"{others_in_words}, but "
                f"--max-tokens is {max_tokens:,}; raise --max-tokens, or leave such sentences out "
                "with --skip-invalid-size-inputs"
            )

    def targets(self) -> Iterator[np.ndarray]:
        """Yield the token ids of each target sentence, see :meth:`joined`."""
        if self.target is None:
            raise DataError(f"{self.source.prefix}.idx: source-only data has no references")
        separators = self._separators_of(1)
        for index in range(len(self)):
            yield self._sentence(TARGET, index, separators)

    def pair(self, index: int) -> Pair:
        """Return the token ids of pair ``index``, see :meth:`joined`."""
        return self.joined(range(index, index + 1))

    def _separators_of(self, num_sentences: int) -> Separators | None:
        """Return the separators of a group. None: it has none."""
        return None if self.separators is None else self.separators.of_group(num_sentences)

    def joined(self, sentences: range) -> Pair:
        """Return the ids of consecutive pairs as one: two int64 [n], ending in ``</s>``."""
        separators = self._separators_of(len(sentences))
        source = join_sentences([self._sentence(SOURCE, i, separators) for i in sentences])
        tag = self._tag_of(sentences.start)
        if tag >= 0:
            source = np.append(tag, source)
        if self.target is None:
            return source, None
        return source, join_sentences([self._sentence(TARGET, i, separators) for i in sentences])

    def aligned(self, sentences: range) -> np.ndarray:
        """Return the aligned positions in the pairs that :meth:`joined` returns, int64 [P, 2]."""
        assert self.alignments is not None and self.target is not None
        start = np.array([int(self._tag_of(sentences.start) >= 0), 0])
        pairs_of_sentences = []
        for index in sentences:
            lengths = np.array([self.source.sizes[index], self.target.sizes[index]]) - 1
            pairs = self.alignments[index]
            if (pairs >= lengths).any():
                raise DataError(
                    f"{self.alignments.prefix}.bin: sentence {index} has {lengths[0]} source and "
                    f"{lengths[1]} target tokens, but {pairs.max(0).tolist()} among the aligned "
                    "positions, which count from 0; run relu-nmt-preprocess again"
                )
            pairs = pairs[pairs[:, 0] < self._most_source_tokens - 1]
            pairs_of_sentences.append(pairs + start)
            start = start + lengths + self._num_separators
        return np.concatenate(pairs_of_sentences)

    def _sentence(self, side: int, index: int, separators: Separators | None) -> np.ndarray:
        """Return the checked token ids of a sentence of SOURCE or TARGET."""
        dataset = self.source if side == SOURCE else self.target
        assert dataset is not None, "there is a target side"
        vocab_size = (self.source_vocab_size, self.target_vocab_size)[side]
        ids = dataset[index]
        if len(ids) == 0 or ids[-1] != Dictionary.eos_index:
            raise DataError(
                f"{dataset.prefix}.bin: sentence {index} does not end in </s>; binarize the corpus "
                "again (fairseq-preprocess users: with --append-eos)"
            )
        if vocab_size is not None and not 0 <= ids.min() <= ids.max() < vocab_size:
            raise DataError(
                f"{dataset.prefix}.bin: sentence {index} holds tokens {ids.min()} to {ids.max()}, "
                f"but its dictionary has {vocab_size:,} symbols; data and dictionary do not "
                "belong together"
            )
        if side == SOURCE and len(ids) > self._most_source_tokens:
            ids = np.append(ids[: self._most_source_tokens - 1], Dictionary.eos_index)
        if separators is None:
            return ids
        separator = separators[side]
        # Refuse a separator in the text, where it would divide a sentence.
        if separator in ids:
            raise DataError(
                f"{dataset.prefix}.bin: sentence {index} already holds the sentence separator "
                f"(symbol number {separator}); train without --sentence-separator"
            )
        return np.append(ids[:-1], (separator, Dictionary.eos_index))


def _sides_of(parts: Sequence[tuple[Split, range]]) -> dict[str, Any]:
    """Join ranges of sentences of splits to the sides, and alignments, of one split."""
    sides = {}
    for name in ("source", "target", "alignments"):
        if getattr(parts[0][0], name) is not None:
            sides[name] = DatasetParts(
                [(getattr(split, name), numbers) for split, numbers in parts]
            )
    return sides


def stored_documents(source: Dataset) -> np.ndarray | None:
    """Return the sentences of each document of a split, int64 [documents]. None if unknown."""
    path = Path(source.prefix).with_suffix(".documents")
    return read_documents(plain_file(path), len(source)) if path.exists() else None


def first_of(mask: np.ndarray) -> tuple[int, str]:
    """Return the first number of a mask, and the number of further ones in words."""
    first, *further = np.flatnonzero(mask).tolist()
    return first, f" (and {len(further):,} more)" if further else ""
