"""The plan of an epoch: the groups of a split that it reads, and their batches.

A row of a batch is a group of consecutive sentences, or a single sentence, a group of one. If
several lengths are mixed, each epoch has other groups. Rules and epoch alone determine the plan.
"""

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from relu_nmt.config.shared import BatchLimits
from relu_nmt.data.groups import Groups, longer_side
from relu_nmt.data.split import Split, first_of
from relu_nmt.errors import DataError

FIRST_EPOCH = 1
DRAW = 1  # part of the seed of draws by corpus weights, so that they differ from the shuffling
Longest = tuple[int | None, int | None]  # most source and target tokens that a model accepts


@dataclass(frozen=True)
class BatchRules:
    """The rules by which a split becomes groups and batches."""

    limits: BatchLimits
    # Limits of a group in tokens. If there are several, each epoch draws one for each document.
    lengths: tuple[int, ...] = ()
    # Training shuffles the batches, and leaves out sentences that are longer than their group's
    # limit. Validation sorts by length, and keeps such sentences.
    is_training: bool = False
    seed: int = 0  # of shuffling, drawn lengths and drawn documents
    # Leave out groups that are longer than the model accepts, and in training groups of more than
    # ``limits.max_tokens``. If False, the former raise an error and each of the latter is a batch.
    skip_too_long: bool = False
    longest: Longest = (None, None)  # longest source and target that the model accepts
    longest_sentences: Longest = (None, None)  # of a single sentence, if positions restart there
    # Number of times that an epoch reads each corpus of the split, by default once. If it is no
    # whole number, each epoch draws the documents that are read once more.
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        assert self.is_training or len(self.lengths) <= 1, "validation has groups of one length"

    @property
    def changes_groups(self) -> bool:
        """True if each epoch has other groups."""
        return len(self.lengths) > 1 or any(weight % 1 for weight in self.weights)


@dataclass(frozen=True)
class EpochGroups:
    """The groups of an epoch, and those of them that its batches have."""

    epoch: int
    all: Groups
    used: Groups
    sizes: tuple[np.ndarray, np.ndarray | None]  # of the used groups, in source and target tokens
    num_skipped: int  # that are longer than ``--max-tokens`` or than the model accepts


def choose_groups(split: Split, rules: BatchRules, epoch: int) -> EpochGroups:
    """Divide a split into the groups of an epoch, and choose those that its batches have."""
    groups = split.groups(rules.lengths, (rules.seed, epoch))
    numbers = np.arange(len(groups))
    if rules.is_training:
        numbers = numbers[~groups.over_long]
        if len(groups) and not len(numbers):
            raise DataError(
                f"{split.source.prefix}: every sentence is longer than {max(rules.lengths)} "
                "tokens; raise --max-doc-tokens"
            )
    if rules.weights and len(split.corpus_tags) > 1:
        numbers = np.repeat(numbers, _times(split, groups, rules, epoch)[numbers])
    num_skipped = 0
    if rules.skip_too_long:
        fits = _fits(split, groups, rules)[numbers]
        num_skipped = int((~fits).sum())
        numbers = numbers[fits]
    if not len(numbers):
        reason = ""
        if num_skipped:
            reason = f"; all {num_skipped:,} are longer than --max-tokens, or than the model can "
            reason += "take"
        raise DataError(f"{split.source.prefix}: no sentence to use{reason}")
    used = groups.select(numbers)
    return EpochGroups(epoch, groups, used, split.group_sizes(used), num_skipped)


def _times(split: Split, groups: Groups, rules: BatchRules, epoch: int) -> np.ndarray:
    """Return the number of times that an epoch reads each group, the same in a whole document."""
    seeds = np.random.SeedSequence((rules.seed, epoch, DRAW))
    draws = np.random.Generator(np.random.PCG64(seeds)).random(len(split))
    weights = np.array(rules.weights)[split.corpus_of(groups.first)]
    times = np.floor(weights) + (draws[groups.document] < weights % 1)
    return times.astype(np.int64)


def _fits(split: Split, groups: Groups, rules: BatchRules) -> np.ndarray:
    """Return a mask of the groups that the model accepts and a batch can have, bool [groups]."""
    fits = _sentences_fit(split, groups, rules)
    in_batch = rules.limits.max_tokens if rules.is_training else None
    for sizes, longest in zip(split.group_sizes(groups), rules.longest, strict=True):
        limit = least_limit([longest, in_batch])
        if sizes is not None and limit is not None:
            fits &= sizes <= limit
    return fits


def _sentences_fit(split: Split, groups: Groups, rules: BatchRules) -> np.ndarray:
    """Return a mask of all groups of a split: whose sentences fit the model one by one."""
    fits = np.ones(len(groups), dtype=bool)
    sides = split.source_sizes, split.target_sizes
    for sizes, longest in zip(sides, rules.longest_sentences, strict=True):
        if sizes is not None and longest is not None:
            # A sentence alone may be shorter, without its separator.
            num_lacking = split.num_lacking * (groups.count == 1)
            fits &= np.maximum.reduceat(sizes, groups.first) - num_lacking <= longest
    return fits


def refuse_unfit(split: Split, rules: BatchRules) -> None:
    """Refuse groups, of any epoch, that are longer than the model accepts."""
    # Try each length for all documents, as any epoch may draw it.
    lengths_to_try: list[tuple[int, ...]] = [(length,) for length in rules.lengths]
    for lengths in lengths_to_try or [()]:
        groups = split.groups(lengths)
        is_used = ~(groups.over_long & rules.is_training)
        sizes_of_sides = split.group_sizes(groups)
        sides = ("source", "target")
        for side, longest, sizes in zip(sides, rules.longest, sizes_of_sides, strict=True):
            if longest is None or sizes is None:
                continue
            too_long = is_used & (sizes > longest)
            if not too_long.any():
                continue
            first, others_in_words = first_of(too_long)
            name = "sentence" if groups.count[first] == 1 else "the group from sentence"
            raise DataError(
                f"{split.stem}: {name} {groups.first[first]} has {sizes[first]:,} {side} "
                f"tokens{others_in_words}, but the model can take {longest:,} "
                f"(--max-{side}-positions, "
                "what its attention bounds, or its --teacher); raise that, or leave such "
                "sentences out with --skip-invalid-size-inputs-valid-test"
            )
        misfits = is_used & ~_sentences_fit(split, groups, rules)
        if misfits.any():
            first, others_in_words = first_of(misfits)
            raise DataError(
                f"{split.stem}: the group from sentence {groups.first[first]}"
                f"{others_in_words} has a "
                "sentence that is longer than the positions of the model or its --teacher, "
                "which restart in each; raise --max-source-positions and "
                "--max-target-positions, or leave such groups out with "
                "--skip-invalid-size-inputs-valid-test"
            )


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
