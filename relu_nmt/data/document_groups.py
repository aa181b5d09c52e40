"""Consecutive sentences of a document, joined to groups of limited length.

Groups are planned from the lengths alone, before any token is read, so that one data folder
serves every length.

Reference: ReLUFormer paper, appendix B. The paper leaves the details open; here a token is one of
the dictionary, a sentence counts as the longer of its two sides, ``</s>`` counts once per group,
and a separator, if any, once per sentence.
"""

from dataclasses import dataclass

import numpy as np

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.documents import document_of_sentence
from relu_nmt.data.parallel import ParallelDataset

SINGLE_SENTENCES = 1
"""The limit that stands for single sentences, however long."""


@dataclass(frozen=True)
class DocumentGroups:
    """Groups of consecutive sentences.

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

    def select(self, chosen: np.ndarray) -> "DocumentGroups":
        """Return some of the groups.

        Args:
            chosen: bool [groups], or their numbers.
        """
        return DocumentGroups(
            self.first[chosen],
            self.count[chosen],
            self.document[chosen],
            self.limit[chosen],
            self.tokens[chosen],
        )


def sentence_lengths(source_sizes: np.ndarray, target_sizes: np.ndarray | None) -> np.ndarray:
    """Return what each sentence counts towards the limit: its longer side, int [N].

    Args:
        source_sizes: tokens of each source sentence with ``</s>``, int [N].
        target_sizes: the same for the target; None for source-only data.
    """
    return source_sizes if target_sizes is None else np.maximum(source_sizes, target_sizes)


def plan_groups(
    sizes: np.ndarray, documents: np.ndarray, limit: int | np.ndarray
) -> DocumentGroups:
    """Fill groups greedily: a sentence that would exceed the limit begins the next group.

    Every sentence is in exactly one group, in order, and no group has sentences of two documents.
    A sentence that is longer than the limit on its own is a group (:attr:`over_long`).

    Args:
        sizes: tokens of each sentence with its ``</s>``, see :func:`sentence_lengths`, int [N].
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
    document = document_of_sentence(documents)[first]
    return DocumentGroups(
        first,
        np.diff(np.append(first, len(sizes))),
        document,
        limits[document],
        _sums(sizes, first),
    )


def _sums(sizes: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return the tokens of each of the groups that together hold all sentences, one ``</s>``."""
    if not len(first):
        return np.zeros(0, dtype=np.int64)
    return np.add.reduceat(sizes.astype(np.int64) - 1, first) + 1


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


class GroupedDataset:
    """Groups of sentence pairs, used like the sentence pairs of a :class:`ParallelDataset`.

    Args:
        dataset: the sentence pairs.
        groups: which of them to join.

    Raises:
        DataError: see :meth:`ParallelDataset.pair`.
    """

    def __init__(self, dataset: ParallelDataset, groups: DocumentGroups) -> None:
        self.groups = groups
        self.source = dataset.source
        self.target = dataset.target
        self._dataset = dataset
        self._totals = [
            None if sizes is None else np.append(0, np.cumsum(sizes.astype(np.int64) - 1))
            for sizes in (dataset.source_sizes, dataset.target_sizes)
        ]

    def __len__(self) -> int:
        return len(self.groups)

    def _sizes(self, side: int) -> np.ndarray | None:
        totals, groups = self._totals[side], self.groups
        if totals is None:
            return None
        return totals[groups.first + groups.count] - totals[groups.first] + 1

    @property
    def source_sizes(self) -> np.ndarray:
        """Source tokens of each group with its one ``</s>``, int64 [groups]."""
        sizes = self._sizes(0)
        assert sizes is not None
        return sizes

    @property
    def target_sizes(self) -> np.ndarray | None:
        """Target tokens of each group with ``</s>``, int64 [groups]; None: source-only data."""
        return self._sizes(1)

    def pair(self, index: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the tokens of a group: int64 [n] of each side, ending in one ``</s>``."""
        pairs = [self._dataset.pair(number) for number in self.groups.sentences(index)]
        end = [np.array([Dictionary.eos_index])]
        source = np.concatenate([source[:-1] for source, _ in pairs] + end)
        targets = [target[:-1] for _, target in pairs if target is not None]
        return source, np.concatenate(targets + end) if targets else None
