"""The sentence pairs of one split, read from disk on demand."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.documents import SINGLE_SENTENCES, Separators, read_documents
from relu_nmt.data.groups import Groups, deal_lengths, join_sentences, longer_side, plan_groups
from relu_nmt.data.indexed_dataset import Dataset, DatasetParts
from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import read_lines

Pair = tuple[np.ndarray, np.ndarray | None]


class Split:
    """Source and target sentences side by side, with document boundaries and raw text if kept.

    A split is read group by group (:class:`relu_nmt.data.groups.Groups`).

    Args:
        source: the source sentences.
        target: the target sentences in the same order; None for source-only data.
        source_vocab_size: token ids at or above it are an error; None skips the check.
        target_vocab_size: the same for the target.
        separators: ids of the symbols that end each source and each target sentence, before
            ``</s>``; the files do not contain them. None for no such symbol.
        alignments: an :class:`relu_nmt.data.indexed_dataset.AlignmentDataset`, for training on
            word alignments; None for none.

    Attributes:
        longest_source: longer source sentences are cut to this many tokens, of which ``</s>`` is
            still the last; None keeps them whole.
        corpus_ends: sentences up to the end of each corpus of a chained split, int64 [C]; else
            None.
        corpus_tags: id of the symbol that begins each source sentence (or group of sentences) of a
            corpus, int64 [C]; -1 for none.

    Raises:
        DataError: source, target and alignments have different numbers of sentences.
    """

    def __init__(
        self,
        source: Dataset,
        target: Dataset | None = None,
        source_vocab_size: int | None = None,
        target_vocab_size: int | None = None,
        separators: tuple[int, int] | Separators | None = None,
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
        self.separators = None if separators is None else Separators(*separators)
        self._added = int(separators is not None)
        self.corpus_ends: np.ndarray | None = None
        self.corpus_tags = np.array([-1])
        self.longest_source: int | None = None

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def chained(cls, splits: Sequence["Split"], tags: Sequence[int] = ()) -> "Split":
        """Return the sentences of several splits of one task as one, under the name of the first.

        If only some splits have document boundaries, each sentence of the others is a document.

        Args:
            splits: the splits, in order.
            tags: id of the symbol that begins the source sentences of each split, -1 for none;
                empty: no split has one.

        Raises:
            DataError: some splits have a target side, or word alignments, and others do not.
        """
        first, *others = splits
        if not others:
            return first
        # Either all splits have a target side (and alignments), or none.
        for part, name in (("target", "target side"), ("alignments", "word alignments")):
            having = [split for split in splits if getattr(split, part) is not None]
            if 0 < len(having) < len(splits):
                without = next(split for split in splits if split not in having)
                raise DataError(
                    f"{without.stem}: has no {name}, but {having[0].stem}, to which it is joined, "
                    f"has; give both {name}, or neither"
                )
        joined = cls._of([(split, range(len(split))) for split in splits])
        # Document boundaries count if one split has them.
        known = [split.documents for split in splits]
        joined.documents = None
        if any(own is not None for own in known):
            joined.documents = np.concatenate(
                [
                    np.ones(len(split), np.int64) if own is None else own
                    for split, own in zip(splits, known, strict=True)
                ]
            )
        joined.corpus_ends = np.cumsum([len(split) for split in splits])
        joined.corpus_tags = np.array(tags or [-1] * len(splits))
        return joined

    def corpus_of(self, sentences: np.ndarray | int) -> np.ndarray:
        """Return the corpus of each sentence number of a chained split, int64 of the same shape."""
        assert self.corpus_ends is not None
        return np.searchsorted(self.corpus_ends, sentences, side="right")

    def _tag_of(self, sentence: int) -> int:
        return -1 if self.corpus_ends is None else int(self.corpus_tags[self.corpus_of(sentence)])

    def cut(self, shard: int, num_shards: int) -> tuple["Split", "Split"]:
        """Divide the split into equal parts; return all before part ``shard`` (from 0), and this.

        Known documents stay whole.
        """
        begins = np.arange(len(self) + 1)
        if self.documents is not None:
            begins = np.append(0, np.cumsum(self.documents))
        first, last = ((len(begins) - 1) * i // num_shards for i in (shard, shard + 1))
        return self._part(begins, 0, first), self._part(begins, first, last)

    def _part(self, begins: np.ndarray, first: int, last: int) -> "Split":
        """Return documents ``first`` to ``last - 1``, which begin at these sentences."""
        own = range(int(begins[first]), int(begins[last]))
        part = self._of([(self, own)])
        part.documents = None if self.documents is None else self.documents[first:last]
        for name in ("raw_source", "raw_target"):
            raw = getattr(self, name)
            setattr(part, name, None if raw is None else raw[own.start : own.stop])
        return part

    @classmethod
    def _of(cls, parts: Sequence[tuple["Split", range]]) -> "Split":
        """Return ranges of sentences of splits as one split, with the settings of the first."""
        first = parts[0][0]
        source, target, alignments = (
            DatasetParts([(getattr(split, name), own) for split, own in parts])
            if getattr(first, name) is not None
            else None
            for name in ("source", "target", "alignments")
        )
        assert source is not None
        return cls(source, target, *first._vocab_sizes, first.separators, alignments)

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
        sizes, kept = self.source.sizes, self._kept_of_source
        return (sizes if kept is None else np.minimum(sizes, kept)) + self._added

    @property
    def _kept_of_source(self) -> int | None:
        """Limit of the tokens that are read from a stored source sentence, ``</s>`` included."""
        return None if self.longest_source is None else max(1, self.longest_source - self._added)

    @property
    def num_truncated(self) -> int:
        """Number of source sentences that are longer than :attr:`longest_source`."""
        kept = self._kept_of_source
        return 0 if kept is None else int((self.source.sizes > kept).sum())

    @property
    def target_sizes(self) -> np.ndarray | None:
        """Tokens of each target sentence with ``</s>``, int32 [N]; None for source-only data."""
        return None if self.target is None else self.target.sizes + self._added

    @cached_property
    def documents(self) -> np.ndarray | None:
        """Sentences of each document, int64 [documents]; None if unknown."""
        return read_documents(f"{self.stem}.documents", len(self)) if self.has_documents else None

    @property
    def has_documents(self) -> bool:
        """True if document boundaries are stored."""
        return Path(f"{self.stem}.documents").exists()

    def require_documents(self, purpose: str, length: int) -> np.ndarray:
        """Return the sentences of each document, int64 [documents], for the flag ``purpose``.

        Single sentences need no boundaries: each sentence is then a document.

        Raises:
            DataError: the boundaries are unknown, or the side file is damaged.
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
        """The source sentences before any text step, or None if not kept.

        relu-nmt-preprocess keeps them for validation and test sets.
        """
        return self._raw(self.source)

    @cached_property
    def raw_target(self) -> list[str] | None:
        """The target sentences before any text step; None for source-only data too."""
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
            lengths: the limits of a group in tokens; each document gets one of several. Empty:
                single sentences, which need no document boundaries.
            seed: seed of the run and epoch, for the draw of lengths.
        """
        sizes = longer_side(self.source_sizes, self.target_sizes)
        if not lengths:
            return plan_groups(sizes, np.ones_like(sizes), SINGLE_SENTENCES)
        documents = self.require_documents("joining sentences", max(lengths))
        return plan_groups(sizes, documents, deal_lengths(documents, lengths, seed))

    def group_sizes(self, groups: Groups) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the tokens of each group in source and target, with one ``</s>``, int [groups]."""
        source, target = groups.sizes(self.source_sizes), self.target_sizes
        if self.corpus_ends is not None:
            source = source + (self.corpus_tags[self.corpus_of(groups.first)] >= 0)
        return source, None if target is None else groups.sizes(target)

    def targets(self) -> Iterator[np.ndarray]:
        """Yield the token ids of each target sentence, see :meth:`joined`."""
        if self.target is None:
            raise DataError(f"{self.source.prefix}.idx: source-only data has no references")
        for index in range(len(self)):
            yield self._sentence(self.target, index, 1, self.separators)

    def pair(self, index: int) -> Pair:
        """Return the token ids of pair ``index``, with separators if the data has them."""
        return self._joined(range(index, index + 1), self.separators)

    def joined(self, sentences: range) -> Pair:
        """Return the token ids of consecutive pairs as one: two int64 [n], ending in ``</s>``.

        A single sentence has no separator if the model reads it without (:class:`Separators`).
        """
        separators = self.separators
        if separators is not None and not separators.alone and len(sentences) == 1:
            separators = None
        return self._joined(sentences, separators)

    def _joined(self, sentences: range, separators: Separators | None) -> Pair:
        source = join_sentences([self._sentence(self.source, i, 0, separators) for i in sentences])
        if (tag := self._tag_of(sentences.start)) >= 0:
            source = np.append(tag, source)
        if self.target is None:
            return source, None
        return source, join_sentences(
            [self._sentence(self.target, i, 1, separators) for i in sentences]
        )

    def aligned(self, sentences: range) -> np.ndarray:
        """Return the aligned source and target positions of consecutive pairs, int64 [P, 2].

        They are joined as :meth:`joined` does. Source tokens that are cut off have no alignments.
        """
        assert self.alignments is not None and self.target is not None
        # Begin behind the tag, if the source has one.
        start, found = np.array([int(self._tag_of(sentences.start) >= 0), 0]), []
        for index in sentences:
            # Check the positions, and shift them to the place of the sentence.
            lengths = np.array([side.sizes[index] - 1 for side in (self.source, self.target)])
            pairs = self.alignments[index]
            if (pairs >= lengths).any():
                raise DataError(
                    f"{self.alignments.prefix}.bin: sentence {index} has {lengths[0]} source and "
                    f"{lengths[1]} target tokens, but {pairs.max(0).tolist()} among the aligned "
                    "positions, which count from 0; run relu-nmt-preprocess again"
                )
            # Leave out pairs beyond the cut of the source.
            if (kept := self._kept_of_source) is not None:
                pairs = pairs[pairs[:, 0] < kept - 1]
            found.append(pairs + start)
            # Begin the next sentence behind this one and its separator.
            start = start + lengths + self._added
        return np.concatenate(found)

    def _sentence(
        self, side: Dataset, index: int, number: int, separators: Separators | None
    ) -> np.ndarray:
        """Return the checked token ids of a sentence; ``number`` is 0 for the source side."""
        vocab_size = self._vocab_sizes[number]
        separator = None if separators is None else separators[number]
        ids = side[index]
        # Check the stored ids.
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
        # Cut a long source, and add the separator.
        if number == 0 and (kept := self._kept_of_source) is not None and len(ids) > kept:
            ids = np.append(ids[: kept - 1], Dictionary.eos_index)
        if separator is None:
            return ids
        # Refuse a separator in the text, where it would divide a sentence.
        if separator in ids:
            raise DataError(
                f"{side.prefix}.bin: sentence {index} already holds the sentence separator "
                f"(symbol number {separator}); train without --sentence-separator"
            )
        return np.append(ids[:-1], (separator, Dictionary.eos_index))
