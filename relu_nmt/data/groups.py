"""Groups of consecutive sentences and batches of them, planned from the lengths alone.

A model reads a group at once; a sentence is a group of one. No token is read for the plan, so
that one data folder serves every length. The windows of a translation are groups that may also have
the last sentences of the group before as context.

Reference: ReLUFormer paper, appendix B. The paper leaves the details open. Here a token is one of
the dictionary, a sentence counts as the longer of its two sides, ``</s>`` counts once per group,
and a separator, if any, once per sentence.
"""

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from relu_nmt.config.shared import BatchLimits
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.documents import SINGLE_SENTENCES

BUCKETS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
QUANTILES = (0.1, 0.5, 0.9)
LENGTHS_FILE = "document_lengths.json"
"""Name of the file beside the checkpoints that holds the lengths of the training."""


class Window(NamedTuple):
    """One group of sentences: numbers of its document and sentences.

    Sentences ``context`` to ``first - 1`` are context, which is translated already; ``first`` to
    ``end - 1`` are new.
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
    """Groups of consecutive sentences.

    Args:
        first: number of the first sentence of each group, int64 [groups].
        count: sentences of each group, int64 [groups].
        document: the document that each group belongs to, int64 [groups].
        limit: the limit of each group in tokens, int64 [groups].
        tokens: tokens of each group on its longer side, context and ``</s>`` included, int64
            [groups]: the sum over its sentences of the longer side, as the limit counts.
        context: number of the first sentence of each group's context, int64 [groups]; ``first``
            without context.

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
    context: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    def sentences(self, group: int) -> range:
        """Return the numbers of the sentences of a group."""
        first = int(self.first[group])
        return range(first, first + int(self.count[group]))

    def windows(self) -> list[Window]:
        """Return each group by itself."""
        columns = (self.document, self.context, self.first, self.first + self.count)
        return [Window(*row) for row in np.stack(columns, axis=1).tolist()]

    @property
    def over_long(self) -> np.ndarray:
        """Mask of the groups of one sentence that exceeds the limit, bool [groups]."""
        return (self.tokens > self.limit) & (self.limit != SINGLE_SENTENCES)

    def sizes(self, of_sentence: np.ndarray) -> np.ndarray:
        """Return the tokens of each group, int [groups], from those of each sentence of a side."""
        if self.count.max(initial=1) == 1:
            return of_sentence[self.first]
        totals = np.append(0, np.cumsum(of_sentence.astype(np.int64) - 1))
        return totals[self.first + self.count] - totals[self.first] + 1

    def select(self, chosen: np.ndarray) -> "Groups":
        """Return the groups of a mask, bool [groups], or of indices, int64."""
        return Groups(*(getattr(self, one.name)[chosen] for one in fields(self)))


def plan_groups(
    sizes: np.ndarray, documents: np.ndarray, limit: int | np.ndarray, overlap: int = 0
) -> Groups:
    """Fill groups greedily: a sentence that would exceed the limit begins the next group.

    Every sentence is in exactly one group, in order, and no group has sentences of two documents.
    A sentence that exceeds the limit on its own is a group (:attr:`Groups.over_long`).

    Args:
        sizes: tokens of each sentence on its longer side, with its ``</s>``, int [N].
        documents: sentences of each document, int [documents].
        limit: most tokens of a group, its one ``</s>`` included; one for all documents, or
            int [documents]. 1 makes each sentence a group.
        overlap: most sentences before a group that it gets as context, if they fit beside its
            first sentence.

    Example:
        >>> groups = plan_groups(np.array([4, 4, 4, 4]), np.array([4]), 10, overlap=1)
        >>> [(window.context, window.first, window.end) for window in groups.windows()]
        [(0, 0, 3), (2, 3, 4)]
    """
    assert int(documents.sum()) == len(sizes)
    limits = np.broadcast_to(np.asarray(limit, dtype=np.int64), documents.shape)
    owners = np.repeat(np.arange(len(documents)), documents)
    # Take a shortcut for single sentences, which need no walk.
    if (limits == SINGLE_SENTENCES).all():
        one = np.broadcast_to(np.int64(1), sizes.shape)  # takes no memory
        every = np.arange(len(sizes))
        return Groups(every, one, owners, one, sizes, every)
    # Walk through each document and start a group at each sentence that does not fit.
    sums = np.append(0, np.cumsum(sizes.astype(np.int64) - 1))
    totals = sums.tolist()  # tokens before each sentence
    starts: list[int] = []
    contexts: list[int] = []
    begin = 0
    for count, most in zip(documents.tolist(), limits.tolist(), strict=True):
        room = 0 if most == SINGLE_SENTENCES else most
        full = 0  # the tokens before a sentence that does not fit the group, its one </s> counted
        for i in range(begin, begin + count):
            if totals[i + 1] >= full:
                starts.append(i)
                read = i  # the first sentence that the model reads
                if overlap:
                    read = first_context(totals, max(begin, i - overlap), i, i + 1, most)
                    contexts.append(read)
                full = totals[read] + room
        begin += count
    # The start of each group gives its length, document and tokens.
    first = np.array(starts, dtype=np.int64)
    context = np.array(contexts, dtype=np.int64) if overlap else first
    ends = np.append(first[1:], len(sizes))[: len(first)]
    document = owners[first]
    tokens = sums[ends] - sums[context] + 1
    return Groups(first, ends - first, document, limits[document], tokens, context)


def first_context(totals: Sequence[int], least: int, first: int, end: int, limit: int) -> int:
    """Return the first sentence of the longest context from ``least`` on that fits a window.

    The window of sentences ``first`` to ``end - 1`` with its context has at most ``limit`` tokens.
    ``totals`` has the tokens before each sentence, without ``</s>``.
    """
    return bisect.bisect_left(totals, 1 + totals[end] - limit, least, first)


def deal_lengths(
    documents: np.ndarray, lengths: tuple[int, ...], seed: tuple[int, int]
) -> np.ndarray:
    """Draw a length for each document, so that each length gets the same number of sentences.

    Args:
        documents: sentences of each document, int [documents].
        lengths: the limits in tokens; one that stands twice gets two shares.
        seed: seed of the run and the epoch; each epoch has a draw of its own.

    Returns:
        The limit of each document in tokens, int64 [documents].
    """
    if len(lengths) == 1:
        return np.full(len(documents), lengths[0], dtype=np.int64)
    # The third number keeps this stream apart from the one that shuffles the batches.
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((*seed, 1))))
    order = generator.permutation(len(documents))
    # A document belongs to the share in which its middle sentence falls.
    ends = np.cumsum(documents[order])
    middles = ends - documents[order] / 2
    shares = (middles * len(lengths) / max(1, documents.sum())).astype(np.int64)
    result = np.empty(len(documents), dtype=np.int64)
    result[order] = np.array(generator.permutation(lengths), dtype=np.int64)[shares]
    return result


def describe_lengths(groups: Groups, limit: int, keep_over_long: bool) -> dict[str, Any]:
    """Return the realised lengths of the groups of one limit, as JSON values.

    Validation uses over-long sentences (``keep_over_long``), training leaves them out.
    """
    of_limit = groups.select(groups.limit == limit)
    over_long = of_limit.over_long
    kept = of_limit if keep_over_long else of_limit.select(~over_long)
    # Count documents, sentences and groups.
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
    # Add quantiles and a histogram of the lengths in tokens.
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
    """Return the result of :func:`describe_lengths` in one line."""
    limit = description["max_doc_tokens"]
    kind = "single sentences" if limit == SINGLE_SENTENCES else f"groups of up to {limit} tokens"
    parts = [
        f"{kind}: {description['groups']:,} from {description['documents']:,} documents with "
        f"{description['sentences']:,} sentences"
    ]
    # Add the distribution of the lengths, if any group is left.
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


def longer_side(source_sizes: np.ndarray, target_sizes: np.ndarray | None) -> np.ndarray:
    """Return the tokens of each pair's longer side, which count towards a limit, int [N]."""
    return source_sizes if target_sizes is None else np.maximum(source_sizes, target_sizes)


def join_sentences(sentences: Sequence[np.ndarray]) -> np.ndarray:
    """Join the token ids of sentences to one, int64 [n]; only the last ``</s>`` stays.

    Example:
        >>> join_sentences([np.array([4, 5, 2]), np.array([2]), np.array([6, 2])]).tolist()
        [4, 5, 6, 2]
    """
    return np.concatenate([*(ids[:-1] for ids in sentences), [Dictionary.eos_index]])


def sentence_slices(tokens: Sequence[Any] | np.ndarray, separator: Any) -> list[slice]:
    """Return the slice of each sentence, without its separator.

    Tokens after the last separator are a sentence too.

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
    """Return the sentence number of each token of joined sentences, int64 [n].

    Args:
        sizes: tokens of each sentence with its ``</s>``, int; only the last ``</s>`` stays.
        separated: a separator ends each sentence. The final ``</s>`` then gets a number of its
            own, as for attention that stays inside sentences.

    Example:
        >>> sentence_numbers(np.array([3, 2]), separated=False).tolist()
        [0, 0, 1, 1]
    """
    numbers = np.repeat(np.arange(len(sizes)), sizes - 1)
    return np.append(numbers, len(sizes) if separated else len(sizes) - 1)


def least_limit(limits: Iterable[int | None]) -> int | None:
    """Return the least of several limits; None stands for no limit."""
    return min((limit for limit in limits if limit is not None), default=None)


def plan_batches(
    source_sizes: np.ndarray,
    target_sizes: np.ndarray | None,
    limits: BatchLimits,
    shuffle_seed: tuple[int, int] | None = None,
) -> list[np.ndarray]:
    """Return the sentence numbers of each batch of an epoch, int64, grouped by similar length.

    The plan takes 8 bytes a sentence. A resumed epoch continues at a batch number of the same plan.

    Sentences are sorted by the longer side, then source, then target length, so that neither side
    needs much padding. A sentence longer than ``max_tokens`` gets a batch of its own. The seed
    (seed, epoch) gives the order of the batches and of equally long sentences; without it batches
    and sentences are sorted by length.

    Example:
        >>> [one.tolist() for one in plan_batches(np.array([3, 5, 4]), None, BatchLimits(10))]
        [[0, 2], [1]]
    """
    count = len(source_sizes)
    targets = source_sizes if target_sizes is None else target_sizes
    longer = longer_side(source_sizes, target_sizes)
    # Sort by length; equal lengths come in random order if there is a seed.
    if shuffle_seed is None:
        generator = None
        order = np.lexsort((targets, source_sizes, longer))
    else:
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(shuffle_seed)))
        shuffled = generator.permutation(count)
        # lexsort is stable, so equal lengths stay in the random order.
        keys = (targets[shuffled], source_sizes[shuffled], longer[shuffled])
        order = shuffled[np.lexsort(keys)]
    # Cut the sorted sentences into batches, and shuffle the batches.
    starts = _cut(longer[order], limits)
    visit = np.arange(len(starts) - 1)
    if generator is not None:
        generator.shuffle(visit)
    order = order.astype(np.int64, copy=False)
    return [order[starts[batch] : starts[batch + 1]] for batch in visit]


def _cut(sorted_sizes: np.ndarray, limits: BatchLimits) -> np.ndarray:
    """Return the starts of the batches, each as large as the limits allow, int64 [batches + 1].

    The cost of a batch is its number of sentences times its last (longest) sentence. It only grows
    with the end of the batch, so that a binary search finds the end.
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
            # Search for the most sentences whose cost fits, between 1 and the bound.
            fits = 1
            while fits < most:
                middle = (fits + most + 1) // 2
                if middle * sizes[start + middle - 1] <= limits.max_tokens:
                    fits = middle
                else:
                    most = middle - 1
        # Round down to the multiple, except in the last batch.
        if limits.multiple < most < count - start:
            most -= most % limits.multiple
        starts.append(start + most)
    return np.array(starts, dtype=np.int64)


def longest_first(lengths: np.ndarray, most: Callable[[int], int]) -> Iterator[np.ndarray]:
    """Yield the sentences of each batch, longest first: ``most(longest)`` of them, at least one."""
    order, first = np.argsort(-lengths, kind="stable"), 0
    while first < len(order):
        last = first + max(1, most(max(1, int(lengths[order[first]]))))
        yield order[first:last]
        first = last
