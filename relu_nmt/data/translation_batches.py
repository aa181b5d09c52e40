"""Batches of sentence pairs for training and validation.

A row of a batch is a group of consecutive sentences, or a single sentence, a group of one. If
several lengths are mixed, each epoch has other groups.
"""

import bisect
import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from typing_extensions import Self

from relu_nmt.config.shared import BatchLimits
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.groups import Groups, describe_lengths, longer_side
from relu_nmt.data.split import Pair, Split, first_of
from relu_nmt.errors import DataError

FIRST_EPOCH = 1
PAIRS_AS_TOKEN = 1024
DRAW = 1  # part of the seed of draws by corpus weights, so that they differ from the shuffling
Longest = tuple[int | None, int | None]  # most source and target tokens that a model accepts


class TensorBatch:
    """A dataclass of tensors, also in lists and tables. ``ids``, for messages, stay on the CPU."""

    def to(self, device: torch.device | str) -> Self:
        """Return the batch on ``device``. A copy from pinned memory does not block."""
        return self._with(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        """Return the batch in page-locked memory, from which a GPU copies faster."""
        return self._with(Tensor.pin_memory)

    def _with(self, move: Callable[[Tensor], Tensor]) -> Self:
        batch: Any = self
        fields = dict(vars(self))
        del fields["ids"]
        return replace(batch, **tree_map_only(Tensor, move, fields))


@dataclass(frozen=True)
class TranslationBatch(TensorBatch):
    """Pairs of sentences or groups, int64, padded on the right."""

    ids: Tensor  # [B], number of each row's (first) sentence in the split
    src_tokens: Tensor  # [B, S], ending in </s>
    tgt_tokens: Tensor  # [B, T], ending in </s>
    prev_output_tokens: Tensor  # [B, T], the target shifted right by one, </s> first
    num_tokens: int  # target tokens without padding, </s> included
    num_sentences: int  # B
    # [P, 3], row of the batch, source and target position of each pair of aligned tokens.
    alignments: Tensor | None = None


def pad_rows(rows: Sequence[np.ndarray], pad_index: int) -> Tensor:
    """Return the rows as int64 [B, longest], padded on the right with ``pad_index``."""
    table = np.full((len(rows), max(map(len, rows), default=0)), pad_index, dtype=np.int64)
    for row, ids in zip(table, rows, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(table)


def shift_right(tgt_tokens: Tensor, pad_index: int, eos_index: int) -> Tensor:
    """Return the decoder input that predicts targets [B, T] padded on the right: ``</s>`` first.

    Example:
        >>> shift_right(torch.tensor([[7, 8, 2], [9, 2, 1]]), pad_index=1, eos_index=2)
        tensor([[2, 7, 8],
                [2, 9, 1]])
    """
    shifted = tgt_tokens.roll(1, dims=1)
    shifted[:, 0] = eos_index
    # In shorter rows, replace the </s> after the last prediction by padding.
    return shifted.masked_fill_(tgt_tokens == pad_index, pad_index)


def collate(
    pairs: Sequence[Pair],
    ids: Sequence[int] | np.ndarray,
    alignments: Sequence[np.ndarray] | None = None,
) -> TranslationBatch:
    """Make a batch of pairs of token ids that end in ``</s>``.

    ``ids`` are the numbers of the pairs in their split. ``alignments`` are positions of tokens, int
    [P, 2].
    """
    sources = []
    targets = []
    for source, target in pairs:
        assert target is not None, "a corpus without targets is refused"
        sources.append(source)
        targets.append(target)
    tgt_tokens = pad_rows(targets, Dictionary.pad_index)
    numbered = None
    if alignments is not None:
        # Put the row of the batch before the positions, int64 [P, 3].
        rows = np.repeat(np.arange(len(alignments)), list(map(len, alignments)))
        numbered = torch.from_numpy(np.column_stack([rows, np.concatenate(alignments)]))
    return TranslationBatch(
        ids=torch.tensor(ids, dtype=torch.int64),
        src_tokens=pad_rows(sources, Dictionary.pad_index),
        tgt_tokens=tgt_tokens,
        prev_output_tokens=shift_right(tgt_tokens, Dictionary.pad_index, Dictionary.eos_index),
        num_tokens=sum(map(len, targets)),
        num_sentences=len(pairs),
        alignments=numbered,
    )


@dataclass(frozen=True)
class EpochGroups:
    """The groups of an epoch, and those of them that its batches have."""

    epoch: int
    all: Groups
    used: Groups
    sizes: tuple[np.ndarray, np.ndarray | None]  # of the used groups, in source and target tokens
    num_skipped: int = 0  # that are longer than ``--max-tokens`` or than the model accepts


@dataclass(eq=False)
class TranslationBatches:
    """The batches of a split by number. ``seed`` and the epoch alone determine them.

    ``planned`` has the groups of the planned epoch.
    """

    split: Split  # the sentence pairs, and document boundaries if sentences are joined
    limits: BatchLimits
    # Limits of a group in tokens. If there are several, each epoch draws one for each document.
    lengths: tuple[int, ...] = ()
    # Seed of shuffling and of drawn lengths. Sentences longer than their group's limit are left
    # out. None, for validation: batches are sorted by length and keep such sentences.
    seed: int | None = None
    # Leave out groups that are longer than the model accepts, and in training groups of more than
    # ``limits.max_tokens``. If False, the former raise an error and each of the latter is a batch.
    skip_too_long: bool = False
    longest: Longest = (None, None)  # longest source and target that the model accepts
    longest_sentences: Longest = (None, None)  # of a single sentence, if positions restart there
    # Number of times that an epoch reads each corpus of the split, by default once. If it is no
    # whole number, each epoch draws the documents that are read once more.
    weights: Sequence[float] = ()

    def __post_init__(self) -> None:
        assert self.seed is not None or len(self.lengths) <= 1, "dealing needs a seed"
        self._weights = np.array(self.weights)
        self._plan: list[np.ndarray] = []  # the used groups of each batch
        if not self.skip_too_long:
            self._refuse_unfit()
        self.planned = self._divide(FIRST_EPOCH)

    @property
    def _is_training(self) -> bool:
        return self.seed is not None

    def within(self, max_tokens: int) -> "TranslationBatches":
        """Return the same groups in batches of at most ``max_tokens``."""
        other = copy.copy(self)
        other.limits = replace(self.limits, max_tokens=max_tokens)
        other._plan = []
        return other

    def largest_within(self, max_tokens: int) -> TranslationBatch:
        """Return the largest batch that the planned epoch has with this ``max_tokens``."""
        other = self.within(max_tokens)
        other.begin_epoch(self.planned.epoch)
        return other.load(other.largest())

    @property
    def longest_group(self) -> int:
        """The tokens of the longest group of the planned epoch, on its longer side."""
        return int(longer_side(*self.planned.sizes).max())

    def _refuse_unfit(self) -> None:
        """Refuse groups, of any epoch, that are longer than the model accepts."""
        # Try each length for all documents, as any epoch may draw it.
        for i in range(max(1, len(self.lengths))):
            groups = self._without_over_long(self.split.groups(self.lengths[i : i + 1]))
            sizes_of_sides = self.split.group_sizes(groups)
            sides = ("source", "target")
            for side, longest, sizes in zip(sides, self.longest, sizes_of_sides, strict=True):
                if longest is None or sizes is None or sizes.max(initial=0) <= longest:
                    continue
                first, others_in_words = first_of(sizes > longest)
                name = "sentence" if groups.count[first] == 1 else "the group from sentence"
                raise DataError(
                    f"{self.split.stem}: {name} {groups.first[first]} has {sizes[first]:,} {side} "
                    f"tokens{others_in_words}, but the model can take {longest:,} "
                    f"(--max-{side}-positions, "
                    "what its attention bounds, or its --teacher); raise that, or leave such "
                    "sentences out with --skip-invalid-size-inputs-valid-test"
                )
            fits = self._sentences_fit(groups)
            if not fits.all():
                first, others_in_words = first_of(~fits)
                raise DataError(
                    f"{self.split.stem}: the group from sentence {groups.first[first]}"
                    f"{others_in_words} has a "
                    "sentence that is longer than the positions of the model or its --teacher, "
                    "which restart in each; raise --max-source-positions and "
                    "--max-target-positions, or leave such groups out with "
                    "--skip-invalid-size-inputs-valid-test"
                )

    def _sentences_fit(self, groups: Groups) -> np.ndarray:
        """Return a mask of the groups whose sentences fit the model one by one, bool [groups]."""
        fits = np.ones(len(groups), dtype=bool)
        sides = self.split.source_sizes, self.split.target_sizes
        for sizes, longest in zip(sides, self.longest_sentences, strict=True):
            if sizes is not None and longest is not None:
                # Count the long sentences before each sentence, so that equal counts mean none.
                long_before = np.append(0, np.cumsum(sizes > longest))
                has_none = long_before[groups.first + groups.count] == long_before[groups.first]
                # A sentence alone may be shorter, without its separator.
                fits &= has_none | ((groups.count == 1) & (groups.sizes(sizes) <= longest))
        return fits

    def _without_over_long(self, groups: Groups) -> Groups:
        """Return the groups. In training, leave out those that exceed their limit."""
        return groups.select(~groups.over_long) if self._is_training else groups

    def _drawn(self, groups: Groups, epoch: int) -> Groups:
        """Repeat or drop the groups by the weights of their corpora, whole documents at a time."""
        if not len(self._weights) or len(self.split.corpus_ends) == 1:
            return groups
        seeds = np.random.SeedSequence((self.seed or 0, epoch, DRAW))
        draws = np.random.Generator(np.random.PCG64(seeds)).random(len(self.split))
        weights = self._weights[self.split.corpus_of(groups.first)]
        times = np.floor(weights) + (draws[groups.document] < weights % 1)
        return groups.select(np.repeat(np.arange(len(groups)), times.astype(np.int64)))

    def _divide(self, epoch: int) -> EpochGroups:
        """Divide the split into the groups of an epoch. Leave out too long groups."""
        all_groups = self.split.groups(self.lengths, (self.seed or 0, epoch))
        used = self._without_over_long(all_groups)
        if len(all_groups) and not len(used):
            raise DataError(
                f"{self.split.source.prefix}: every sentence is longer than "
                f"{max(self.lengths)} tokens; raise --max-doc-tokens"
            )
        used = self._drawn(used, epoch)
        num_skipped = 0
        if self.skip_too_long:
            fits = self._sentences_fit(used)
            in_batch = self.limits.max_tokens if self._is_training else None
            for sizes, longest in zip(self.split.group_sizes(used), self.longest, strict=True):
                limit = least_limit([longest, in_batch])
                if sizes is not None and limit is not None:
                    fits &= sizes <= limit
            num_skipped = int((~fits).sum())
            used = used.select(fits)
        if not len(used):
            reason = ""
            if num_skipped:
                reason = f"; all {num_skipped:,} are longer than --max-tokens, or than the "
                reason += "model can take"
            raise DataError(f"{self.split.source.prefix}: no sentence to use{reason}")
        return EpochGroups(epoch, all_groups, used, self.split.group_sizes(used), num_skipped)

    def describe_lengths(self) -> list[dict[str, Any]]:
        """Return the realized lengths of the planned epoch for each limit, as JSON values."""
        return [
            describe_lengths(self.planned.all, limit, keep_over_long=not self._is_training)
            for limit in sorted(set(self.lengths))
        ]

    def begin_epoch(self, epoch: int) -> int:
        """Plan ``epoch`` (from 1) and return its number of batches."""
        changes = len(self.lengths) > 1 or bool((self._weights % 1).any())
        if epoch != self.planned.epoch and changes:
            self.planned = self._divide(epoch)
            self._plan = []
        if not self._plan or self._is_training:
            shuffle_seed = None if self.seed is None else (self.seed, epoch)
            self._plan = batches_by_length(*self.planned.sizes, self.limits, shuffle_seed)
        return len(self._plan)

    def largest(self) -> int:
        """Return the number of the batch of the planned epoch that takes the most memory."""
        rows = np.array(list(map(len, self._plan)))
        starts = np.cumsum(rows) - rows
        order = np.concatenate(self._plan)
        # Add up the costs of both sides: rows times longest row, with its pairs.
        cost = np.zeros(len(rows))
        for sizes in self.planned.sizes:
            if sizes is not None:
                longest = np.maximum.reduceat(sizes[order], starts).astype(float)
                cost += rows * longest * (longest + PAIRS_AS_TOKEN)
        return int(cost.argmax())

    def load(self, index: int) -> TranslationBatch:
        """Read batch ``index`` of the planned epoch."""
        return self._collated(self._plan[index])

    def sample(self, num_tokens: int) -> TranslationBatch:
        """Read one batch of groups, spread evenly over the split, with at most ``num_tokens``."""
        sizes = longer_side(*self.planned.sizes)
        count = num_tokens
        while True:
            members = np.linspace(0, len(sizes) - 1, count).astype(np.int64)
            if count == 1 or count * sizes[members].max() <= num_tokens:
                return self._collated(np.unique(members))
            count //= 2

    def _collated(self, members: np.ndarray) -> TranslationBatch:
        """Read some of the used groups from disk, as one batch."""
        used = self.planned.used
        groups = list(map(used.sentences, members.tolist()))
        pairs = list(map(self.split.joined, groups))
        alignments = None
        if self.split.alignments is not None:
            alignments = list(map(self.split.aligned, groups))
        return collate(pairs, used.first[members], alignments)


class ShardedBatches:
    """The batches of several data folders, one folder each epoch, in turn, as in fairseq.

    ``make`` returns the batches of a folder with the limits.
    """

    def __init__(
        self,
        folders: Sequence[str],
        limits: BatchLimits,
        make: Callable[[str, BatchLimits], TranslationBatches],
    ) -> None:
        self._folders = folders
        self._limits = limits
        self._make = make
        self._epoch = FIRST_EPOCH
        self.longest_group = 0  # in tokens, over all folders
        for folder in reversed(folders):
            self.batches = make(folder, limits)
            self.longest_group = max(self.longest_group, self.batches.longest_group)

    def limit_tokens(self, max_tokens: int) -> None:
        """Make batches of at most ``max_tokens``, also in further epochs."""
        self._limits = replace(self._limits, max_tokens=max_tokens)
        self.batches = self.batches.within(max_tokens)

    def begin_epoch(self, epoch: int) -> int:
        """Plan ``epoch`` (from 1) and return its number of batches."""
        folder = self._folders[(epoch - 1) % len(self._folders)]
        if folder != self._folders[(self._epoch - 1) % len(self._folders)]:
            self.batches = self._make(folder, self._limits)
        self._epoch = epoch
        return self.batches.begin_epoch(epoch)

    def load(self, index: int) -> TranslationBatch:
        """Read batch ``index`` of the planned epoch."""
        return self.batches.load(index)

    def largest(self) -> int:
        """Return the number of the planned epoch's batch that takes the most memory."""
        return self.batches.largest()


def least_limit(limits: Iterable[int | None]) -> int | None:
    """Return the least of several limits. None stands for no limit."""
    return min((limit for limit in limits if limit is not None), default=None)


def batches_by_length(
    source_sizes: np.ndarray,
    target_sizes: np.ndarray | None,
    limits: BatchLimits,
    shuffle_seed: tuple[int, int] | None = None,
) -> list[np.ndarray]:
    """Return the sentence numbers of each batch of an epoch, int64, grouped by similar length.

    Sentences are sorted by the longer side, then source, then target length. A sentence that is
    longer than ``max_tokens`` is a batch alone. The seed (seed, epoch) gives the order of the
    batches and of equally long sentences. Without it batches are sorted by length.

    Example:
        >>> batches = batches_by_length(np.array([3, 5, 4]), None, BatchLimits(10))
        >>> [numbers.tolist() for numbers in batches]
        [[0, 2], [1]]
    """
    count = len(source_sizes)
    targets = source_sizes if target_sizes is None else target_sizes
    longer = longer_side(source_sizes, target_sizes)
    # Sort by length. Lexsort is stable, so equal lengths stay in a random order if there is a seed.
    generator = None
    shuffled = np.arange(count)
    if shuffle_seed is not None:
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(shuffle_seed)))
        shuffled = generator.permutation(count)
    keys = (targets[shuffled], source_sizes[shuffled], longer[shuffled])
    order = shuffled[np.lexsort(keys)]
    sizes = longer[order].tolist()
    starts = [0]
    while starts[-1] < count:
        starts.append(starts[-1] + _fitting(sizes, starts[-1], limits))
    visit = np.arange(len(starts) - 1)
    if generator is not None:
        generator.shuffle(visit)
    return [order[starts[batch] : starts[batch + 1]] for batch in visit]


def _fitting(sizes: list[int], start: int, limits: BatchLimits) -> int:
    """Return the number of sentences of the batch that begins at ``start``."""
    left = len(sizes) - start
    largest = min(left, limits.max_sentences or left)
    if limits.max_tokens is not None:
        # Every sentence is at least as long as the first.
        largest = min(largest, max(1, limits.max_tokens // max(1, sizes[start])))
        # The number of sentences times the last, the longest, only grows: search for its bound.
        counts = range(1, largest + 1)
        largest = bisect.bisect(counts, limits.max_tokens, key=lambda n: n * sizes[start + n - 1])
        largest = max(1, largest)
    if limits.multiple < largest < left:
        largest -= largest % limits.multiple
    return largest
