"""Batches of sentence pairs for training and validation, planned from the lengths alone.

A row of a batch is a group of consecutive sentences. Single sentences are groups of one; where
several lengths are mixed, the groups are planned anew each epoch.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relu_nmt.config.shared import BatchLimits
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.groups import Groups, describe_lengths
from relu_nmt.data.split import Pair, Split, longer_side
from relu_nmt.errors import DataError

FIRST_EPOCH = 1
PAIRS_AS_TOKEN = 1024
DRAW = 1
"""Makes the random numbers that weights draw others than those that shuffle."""

Longest = tuple[int | None, int | None]
"""The longest source and target that a model can take, in tokens, ``</s>`` included; None: any."""


def least_limit(limits: Iterable[int | None]) -> int | None:
    """Return the least of limits, of which None is none; None if all are."""
    return min((limit for limit in limits if limit is not None), default=None)


@dataclass(frozen=True)
class TranslationBatch:
    """Pairs of sentences or of groups of them, padded on the right with the pad symbol.

    Args:
        ids: [B] int64, number of each row's (first) sentence in the split.
        src_tokens: [B, S] int64, ending in ``</s>``.
        tgt_tokens: [B, T] int64, ending in ``</s>``; None for source-only data.
        prev_output_tokens: [B, T] int64, the target moved right by one, ``</s>`` first; None for
            source-only data.
        num_tokens: target tokens without padding (``</s>`` included); 0 for source-only data.
        num_sentences: B.
        alignments: [P, 3] int64, row of the batch, source and target position of each pair of
            aligned tokens; None if they are not known.
    """

    ids: Tensor
    src_tokens: Tensor
    tgt_tokens: Tensor | None
    prev_output_tokens: Tensor | None
    num_tokens: int
    num_sentences: int
    alignments: Tensor | None = None

    def to(self, device: torch.device | str) -> "TranslationBatch":
        """Return the batch on ``device``; from pinned memory the copy does not block."""
        return self._with_each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "TranslationBatch":
        """Return the batch in page-locked memory, from which a GPU copies faster."""
        return self._with_each(Tensor.pin_memory)

    def _with_each(self, moved: Callable[[Tensor], Tensor]) -> "TranslationBatch":
        values = vars(self).items()
        tensors: dict[str, Any] = {k: moved(one) for k, one in values if isinstance(one, Tensor)}
        return replace(self, **tensors)


def pad_rows(rows: Sequence[np.ndarray], pad_index: int) -> Tensor:
    """Return the rows as int64 [B, longest], filled up on the right with ``pad_index``."""
    table = np.full((len(rows), max(map(len, rows), default=0)), pad_index, dtype=np.int64)
    for row, ids in zip(table, rows, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(table)


def shift_right(tgt_tokens: Tensor, pad_index: int, eos_index: int) -> Tensor:
    """Return what the decoder reads where it is to predict the target, int64 [B, T].

    Args:
        tgt_tokens: [B, T] int64, each row ending in ``</s>`` and padded on the right.
        pad_index: id of the pad symbol.
        eos_index: id of ``</s>``, which comes first.

    Example:
        >>> shift_right(torch.tensor([[7, 8, 2], [9, 2, 1]]), pad_index=1, eos_index=2)
        tensor([[2, 7, 8],
                [2, 9, 1]])
    """
    shifted = tgt_tokens.roll(1, dims=1)
    shifted[:, 0] = eos_index
    # Shorter rows now have their </s> behind their last prediction, where padding belongs.
    return shifted.masked_fill_(tgt_tokens == pad_index, pad_index)


def collate(
    pairs: Sequence[Pair],
    ids: Sequence[int] | np.ndarray,
    alignments: Sequence[np.ndarray] | None = None,
) -> TranslationBatch:
    """Join pairs of one split to a batch.

    Args:
        pairs: source and target token ids, both ending in ``</s>``; the target is None in
            source-only data.
        ids: number of each pair's (first) sentence in its split.
        alignments: source and target positions of each pair's aligned tokens, int [P, 2].

    Example:
        >>> pair = (np.array([5, 2]), np.array([7, 8, 2]))
        >>> collate([pair], [0]).prev_output_tokens
        tensor([[2, 7, 8]])
    """
    sources = [source for source, _ in pairs]
    targets = [target for _, target in pairs if target is not None]
    tgt_tokens = prev_output_tokens = None
    if targets:
        tgt_tokens = pad_rows(targets, Dictionary.pad_index)
        prev_output_tokens = shift_right(tgt_tokens, Dictionary.pad_index, Dictionary.eos_index)
    return TranslationBatch(
        ids=torch.tensor(ids, dtype=torch.int64),
        src_tokens=pad_rows(sources, Dictionary.pad_index),
        tgt_tokens=tgt_tokens,
        prev_output_tokens=prev_output_tokens,
        num_tokens=sum(map(len, targets)),
        num_sentences=len(pairs),
        alignments=None if alignments is None else _numbered(alignments),
    )


def _numbered(alignments: Sequence[np.ndarray]) -> Tensor:
    """Return all of them, each with its row before it, int64 [P, 3]."""
    rows = np.repeat(np.arange(len(alignments)), [len(own) for own in alignments])
    return torch.from_numpy(np.column_stack([rows, np.concatenate(alignments)]))


def plan_batches(
    source_sizes: np.ndarray,
    target_sizes: np.ndarray | None,
    limits: BatchLimits,
    shuffle_seed: tuple[int, int] | None = None,
) -> list[np.ndarray]:
    """Return the batches of an epoch, each the numbers of sentences of like lengths, int64.

    Only this plan is kept (8 bytes a sentence), so an epoch is resumed by going on at a batch
    number.

    Sentences are sorted by the longer side, then source, then target length, so that neither side
    is padded much. A sentence longer than ``max_tokens`` gets a batch of its own.

    Args:
        source_sizes: int [N], tokens of each source sentence.
        target_sizes: int [N], tokens of each target sentence; None for source-only data.
        limits: what a batch may hold.
        shuffle_seed: (seed, epoch) for the order of the batches and of equally long sentences;
            None keeps batches and sentences in order of length.

    Example:
        >>> [one.tolist() for one in plan_batches(np.array([3, 5, 4]), None, BatchLimits(10))]
        [[0, 2], [1]]
    """
    count = len(source_sizes)
    targets = source_sizes if target_sizes is None else target_sizes
    longer = longer_side(source_sizes, target_sizes)
    if shuffle_seed is None:
        generator = None
        order = np.lexsort((targets, source_sizes, longer))
    else:
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(shuffle_seed)))
        shuffled = generator.permutation(count)
        # lexsort is stable, so equal lengths stay in the random order.
        keys = (targets[shuffled], source_sizes[shuffled], longer[shuffled])
        order = shuffled[np.lexsort(keys)]
    starts = _cut(longer[order], limits)
    visit = np.arange(len(starts) - 1)
    if generator is not None:
        generator.shuffle(visit)
    order = order.astype(np.int64, copy=False)
    return [order[starts[batch] : starts[batch + 1]] for batch in visit]


def _cut(sorted_sizes: np.ndarray, limits: BatchLimits) -> np.ndarray:
    """Return where batches begin, each as large as the limits allow.

    The cost of a batch, its last (longest) sentence x its sentences, only grows with its end, so
    the end is found by binary search.
    """
    count = len(sorted_sizes)
    sizes = sorted_sizes.tolist()
    starts = [0]
    while starts[-1] < count:
        start = starts[-1]
        most = count - start
        if limits.max_sentences is not None:
            most = min(most, limits.max_sentences)
        if limits.max_tokens is not None:
            # Every sentence is at least as long as the first.
            most = min(most, max(1, limits.max_tokens // max(1, sizes[start])))
            fits = 1
            while fits < most:
                middle = (fits + most + 1) // 2
                if middle * sizes[start + middle - 1] <= limits.max_tokens:
                    fits = middle
                else:
                    most = middle - 1
        if limits.multiple < most < count - start:
            most -= most % limits.multiple
        starts.append(start + most)
    return np.array(starts, dtype=np.int64)


def longest_first(lengths: np.ndarray, most: Callable[[int], int]) -> Iterator[np.ndarray]:
    """Yield the numbers of the sentences of each batch, those of the longest first.

    Args:
        lengths: tokens of each sentence, int [N].
        most: returns how many sentences of so many tokens a batch may hold; it holds one anyway.
    """
    order, first = np.argsort(-lengths, kind="stable"), 0
    while first < len(order):
        last = first + max(1, most(max(1, int(lengths[order[first]]))))
        yield order[first:last]
        first = last


def refuse_too_long(split: Split, max_tokens: int | None) -> None:
    """Stop if a sentence does not fit into a batch.

    Raises:
        DataError: a sentence is longer than ``max_tokens``; names the first one and the count.
    """
    longest = longer_side(split.source_sizes, split.target_sizes)
    if max_tokens is None or longest.max(initial=0) <= max_tokens:
        return
    first, *others = np.flatnonzero(longest > max_tokens)
    more = f" (and {len(others):,} more)" if others else ""
    raise DataError(
        f"{split.source.prefix}: sentence {first} has {longest[first]:,} tokens{more}, but "
        f"--max-tokens is {max_tokens:,}; raise --max-tokens, or leave such sentences out with "
        "--skip-invalid-size-inputs"
    )


class TranslationBatches:
    """The batches of a split, epoch by epoch, each loaded by its number.

    The groups and batches of an epoch follow from ``seed`` and its number, so that an epoch is
    resumed by planning it again.

    Args:
        split: the sentence pairs, and document boundaries if sentences are joined.
        limits: what a batch may hold.
        lengths: how sentences are joined, see :meth:`Split.groups`: limits in tokens, 1 for single
            sentences; with several, each epoch deals them out anew. None at all: single sentences.
        seed: shuffles batches and deals lengths; sentences longer than their group's limit are
            left out. None (validation) keeps batches in order of length, and such sentences whole.
        skip_too_long: leave out groups that are longer than the model can take, and for training
            than ``limits.max_tokens``; otherwise the former are an error, and each of the latter
            gets a batch of its own. :attr:`num_skipped` counts them.
        longest: what the model can take.
        weights: how often each corpus of the split is read in an epoch; of a fraction as much is
            drawn anew in each. None at all: everything once.

    Attributes:
        groups: all groups of the planned epoch, at first of epoch 1; left out ones included.
        num_skipped: groups (single sentences) of the epoch that are longer than a batch.

    Raises:
        DataError: there is no sentence left, or one that the model cannot take, in this epoch or
            any other; or no document boundaries are known to join within.

    Example:
        >>> import tempfile
        >>> from relu_nmt.data.indexed_dataset import IndexedDataset, IndexedDatasetWriter
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with IndexedDatasetWriter(folder + "/x", np.uint16) as writer:
        ...         writer.add(np.array([4, 5, 2, 6, 2]), np.array([3, 2]))
        ...     side = IndexedDataset(folder + "/x")
        >>> batches = TranslationBatches(Split(side, side), BatchLimits(max_tokens=6))
        >>> batches.begin_epoch(1), batches.load(0).src_tokens.tolist()
        (1, [[6, 2, 1], [4, 5, 2]])
    """

    def __init__(
        self,
        split: Split,
        limits: BatchLimits,
        lengths: tuple[int, ...] = (),
        seed: int | None = None,
        skip_too_long: bool = False,
        longest: Longest = (None, None),
        weights: Sequence[float] = (),
    ) -> None:
        assert seed is not None or len(lengths) <= 1, "dealing needs a seed"
        self.split = split
        self._limits = limits
        self._lengths = lengths
        self._seed = seed
        self._skip_too_long = skip_too_long
        self._longest = longest
        self._weights = np.array(weights)
        self._plan: list[np.ndarray] | None = None
        if not skip_too_long:
            self._refuse_unreadable()
        self._divide(FIRST_EPOCH)

    def _refuse_unreadable(self) -> None:
        """See that the model can take the groups of every epoch: each length may be dealt to all.

        Raises:
            DataError: it cannot.
        """
        # None at all are single sentences, as length 1 is.
        plans = [self._lengths[i : i + 1] for i in range(max(1, len(self._lengths)))]
        for lengths in plans:
            groups = self._usable(self.split.groups(lengths))
            found = zip(
                ("source", "target"), self._longest, self.split.group_sizes(groups), strict=True
            )
            for side, most, sizes in found:
                if most is None or sizes is None or sizes.max(initial=0) <= most:
                    continue
                first, *others = np.flatnonzero(sizes > most)
                more = f" (and {len(others):,} more)" if others else ""
                what = "sentence" if groups.count[first] == 1 else "the group from sentence"
                raise DataError(
                    f"{self.split.stem}: {what} {groups.first[first]} has {sizes[first]:,} {side} "
                    f"tokens{more}, but the model can take {most:,} (--max-{side}-positions, or "
                    "what its attention bounds); raise that, or leave such sentences out with "
                    "--skip-invalid-size-inputs-valid-test"
                )

    def _usable(self, groups: Groups) -> Groups:
        """Return what is left of groups without those that are too long for their limit."""
        return groups if self._seed is None else groups.select(~groups.over_long)

    def _drawn(self, groups: Groups, epoch: int) -> Groups:
        """Return the groups as often as the weights of their corpora say, documents as a whole."""
        corpora = self.split.corpora
        if not len(self._weights) or corpora is None:
            return groups
        seeds = np.random.SeedSequence((self._seed or 0, epoch, DRAW))
        draws = np.random.Generator(np.random.PCG64(seeds)).random(len(self.split))
        weights = self._weights[corpora.number_of(groups.first)]
        times = np.floor(weights) + (draws[groups.document] < weights % 1)
        return groups.select(np.repeat(np.arange(len(groups)), times.astype(np.int64)))

    def _divide(self, epoch: int) -> None:
        """Divide the split into the groups of an epoch, and leave out those that are too long."""
        self._epoch = epoch
        self.groups = used = self.split.groups(self._lengths, (self._seed or 0, epoch))
        used = self._usable(used)
        if len(self.groups) and not len(used):
            raise DataError(
                f"{self.split.source.prefix}: every sentence is longer than "
                f"{max(self._lengths)} tokens; raise --max-doc-tokens"
            )
        used = self._drawn(used, epoch)
        sizes = self.split.group_sizes(used)
        fits = np.ones(len(used), dtype=bool)
        if self._skip_too_long:
            in_batch = None if self._seed is None else self._limits.max_tokens
            for own, *limits in zip(sizes, self._longest, (in_batch, in_batch), strict=True):
                most = least_limit(limits)
                if own is not None and most is not None:
                    fits &= own <= most
        self.num_skipped = int((~fits).sum())
        if self.num_skipped:
            used = used.select(fits)
            sizes = self.split.group_sizes(used)
        if not len(used):
            longer = f"; all {self.num_skipped:,} are longer than --max-tokens, or than the model"
            reason = f"{longer} can take" if self.num_skipped else ""
            raise DataError(f"{self.split.source.prefix}: no sentence to use{reason}")
        self._used, self._sizes = used, sizes

    def describe_lengths(self) -> list[dict[str, Any]]:
        """Return the realised lengths of the planned epoch for each limit, as JSON values."""
        return [
            describe_lengths(self.groups, limit, keep_over_long=self._seed is None)
            for limit in sorted(set(self._lengths))
        ]

    def begin_epoch(self, epoch: int) -> int:
        """Plan ``epoch`` (from 1) and return its number of batches."""
        changes = len(self._lengths) > 1 or bool((self._weights % 1).any())
        if epoch != self._epoch and changes:
            self._divide(epoch)
            self._plan = None
        if self._plan is None or self._seed is not None:
            shuffle_seed = None if self._seed is None else (self._seed, epoch)
            self._plan = plan_batches(*self._sizes, self._limits, shuffle_seed)
        return len(self._plan)

    def largest(self) -> int:
        """Return the number of the batch of the planned epoch that takes the most memory.

        Memory grows with the padded tokens, and with the pairs of them in attention, of which
        PAIRS_AS_TOKEN take as much as what else is kept of a token.
        """
        assert self._plan is not None, "begin_epoch comes first"
        rows = np.array([len(members) for members in self._plan])
        starts = np.cumsum(rows) - rows
        order = np.concatenate(self._plan)
        cost = np.zeros(len(rows))
        for sizes in self._sizes:
            if sizes is not None:
                longest = np.maximum.reduceat(sizes[order], starts).astype(float)
                cost += rows * longest * (longest + PAIRS_AS_TOKEN)
        return int(cost.argmax())

    def load(self, index: int) -> TranslationBatch:
        """Read batch ``index`` of the planned epoch; its ids are the groups' first sentences."""
        assert self._plan is not None, "begin_epoch comes first"
        members = self._plan[index]
        groups = [self._used.sentences(member) for member in members.tolist()]
        alignments = None
        if self.split.alignments is not None:
            alignments = [self.split.aligned(group) for group in groups]
        pairs = [self.split.joined(group) for group in groups]
        return collate(pairs, self._used.first[members], alignments)
