"""Batches of sentence pairs for training and validation, read from disk."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from typing_extensions import Self

from relu_nmt.config.shared import BatchLimits
from relu_nmt.data.batch_plan import (
    FIRST_EPOCH,
    BatchRules,
    batches_by_length,
    choose_groups,
    refuse_unfit,
)
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.groups import describe_lengths, longer_side
from relu_nmt.data.split import Pair, Split

PAIRS_AS_TOKEN = 1024


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


class TranslationBatches:
    """The batches of a split by number. ``planned`` has the groups of the planned epoch."""

    def __init__(self, split: Split, rules: BatchRules) -> None:
        self.split = split
        self.rules = rules
        if not rules.skip_too_long:
            refuse_unfit(split, rules)
        self.planned = choose_groups(split, rules, FIRST_EPOCH)
        self._batches: list[np.ndarray] = []  # the used groups of each batch

    def within(self, max_tokens: int) -> "TranslationBatches":
        """Return the same groups in batches of at most ``max_tokens``."""
        other = copy.copy(self)
        limits = replace(self.rules.limits, max_tokens=max_tokens)
        other.rules = replace(self.rules, limits=limits)
        other._batches = []  # not planned yet
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

    def describe_lengths(self) -> list[dict[str, Any]]:
        """Return the realized lengths of the planned epoch for each limit, as JSON values."""
        keep_over_long = not self.rules.is_training
        limits = sorted(set(self.rules.lengths))
        return [describe_lengths(self.planned.all, limit, keep_over_long) for limit in limits]

    def begin_epoch(self, epoch: int) -> int:
        """Plan ``epoch`` (from 1) and return its number of batches."""
        rules = self.rules
        if epoch != self.planned.epoch and rules.changes_groups:
            self.planned = choose_groups(self.split, rules, epoch)
        shuffle_seed = (rules.seed, epoch) if rules.is_training else None
        self._batches = batches_by_length(*self.planned.sizes, rules.limits, shuffle_seed)
        return len(self._batches)

    def largest(self) -> int:
        """Return the number of the batch of the planned epoch that takes the most memory."""
        rows = np.array(list(map(len, self._batches)))
        starts = np.cumsum(rows) - rows
        order = np.concatenate(self._batches)
        # Add up the costs of both sides: rows times longest row, with its pairs.
        cost = np.zeros(len(rows))
        for sizes in self.planned.sizes:
            if sizes is not None:
                longest = np.maximum.reduceat(sizes[order], starts).astype(float)
                cost += rows * longest * (longest + PAIRS_AS_TOKEN)
        return int(cost.argmax())

    def load(self, index: int) -> TranslationBatch:
        """Read batch ``index`` of the planned epoch."""
        return self._collated(self._batches[index])

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
        self._folder = folders[0]  # of the batches
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
        if folder != self._folder:
            self.batches = self._make(folder, self._limits)
        self._folder = folder
        return self.batches.begin_epoch(epoch)

    def load(self, index: int) -> TranslationBatch:
        """Read batch ``index`` of the planned epoch."""
        return self.batches.load(index)

    def largest(self) -> int:
        """Return the number of the planned epoch's batch that takes the most memory."""
        return self.batches.largest()
