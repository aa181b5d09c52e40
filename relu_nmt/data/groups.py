"""Groups of consecutive sentences of a document, which models read at once.

A single sentence is also a group. Groups are planned from the lengths alone, so that one data
folder serves every length. The windows of a translation are groups that may also have the last
sentences of the group before as context.

Reference: ReLUFormer paper, appendix B, which leaves details open. Here a sentence counts as the
longer of its two sides, ``</s>`` counts once per group, and a separator once per sentence.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from relu_nmt.data.document_settings import SINGLE_SENTENCES
from relu_nmt.errors import counted

BUCKETS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
QUANTILES = (0.1, 0.5, 0.9)


class Window(NamedTuple):
    """The numbers of a group's document and sentences.

    ``context`` to ``first - 1`` are context, translated already. ``first`` to ``end - 1`` are new.
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
    """Groups of consecutive sentences, all arrays int64 [groups]."""

    first: np.ndarray  # number of the first sentence of each group
    count: np.ndarray  # number of its sentences
    document: np.ndarray  # the document that it belongs to
    limit: np.ndarray  # its limit in tokens
    # Tokens of its sentences on their longer sides, context and </s> included, as the limit counts.
    tokens: np.ndarray
    context: np.ndarray  # number of the first sentence of its context, ``first`` without context

    def __len__(self) -> int:
        return len(self.first)

    def sentences(self, group: int) -> range:
        """Return the numbers of the sentences of a group."""
        first = int(self.first[group])
        return range(first, first + int(self.count[group]))

    def windows(self) -> list[Window]:
        """Return the groups one by one."""
        columns = (self.document, self.context, self.first, self.first + self.count)
        return [Window(*row) for row in np.stack(columns, axis=1).tolist()]

    @property
    def over_long(self) -> np.ndarray:
        """Mask of the groups whose only sentence exceeds the limit, bool [groups]."""
        return (self.tokens > self.limit) & (self.limit != SINGLE_SENTENCES)

    def sizes(self, sentence_sizes: np.ndarray, num_lacking: int = 0) -> np.ndarray:
        """Return the tokens of each group, int [groups], from the tokens of each sentence.

        ``num_lacking`` is the number of these tokens that a sentence lacks if it stands alone.
        """
        if self.count.max(initial=1) == 1:
            return sentence_sizes[self.first] - num_lacking
        totals = np.append(0, np.cumsum(sentence_sizes.astype(np.int64) - 1))
        sizes: np.ndarray = totals[self.first + self.count] - totals[self.first] + 1
        return sizes - num_lacking * (self.count == 1)

    def select(self, chosen: np.ndarray) -> "Groups":
        """Return the groups of a mask, bool [groups], or of indices, int64."""
        return Groups(**{name: values[chosen] for name, values in vars(self).items()})


def plan_groups(
    sizes: np.ndarray,
    documents: np.ndarray,
    limit: int | np.ndarray,
    overlap: int = 0,
    num_lacking: int = 0,
) -> Groups:
    """Fill groups greedily: a sentence that would exceed the limit begins the next group.

    Every sentence is in exactly one group, in order, and no group has sentences of two documents.
    A sentence that exceeds the limit on its own is a group (:attr:`Groups.over_long`).

    Args:
        sizes: tokens of each sentence on its longer side, with its ``</s>``, int [N].
        documents: sentences of each document, int [documents].
        limit: most tokens of a group, for all documents or int [documents]. 1: single sentences.
        overlap: most sentences of context before a group. Context and first sentence must fit
            ``limit``.
        num_lacking: number of the tokens of a sentence that it lacks if it is its own group.

    Example:
        >>> groups = plan_groups(np.array([4, 4, 4, 4]), np.array([4]), 10, overlap=1)
        >>> [(window.context, window.first, window.end) for window in groups.windows()]
        [(0, 0, 3), (2, 3, 4)]
    """
    assert int(documents.sum()) == len(sizes)
    limits = np.broadcast_to(np.asarray(limit, dtype=np.int64), documents.shape)
    document_of = np.repeat(np.arange(len(documents)), documents)
    if (limits == SINGLE_SENTENCES).all():
        single = np.broadcast_to(np.int64(1), sizes.shape)  # takes no memory
        indices = np.arange(len(sizes))
        return Groups(indices, single, document_of, single, sizes - num_lacking, indices)
    # Tokens before each sentence, without ``</s>``, as an array and as a list.
    totals = np.append(0, np.cumsum(sizes.astype(np.int64) - 1))
    tokens_before = totals.tolist()
    starts: list[int] = []
    contexts: list[int] = []
    begin = 0
    for count, most_tokens in zip(documents.tolist(), limits.tolist(), strict=True):
        first_read = begin
        for i in range(begin, begin + count):
            tokens_in_group = tokens_before[i + 1] - tokens_before[first_read] + 1
            fits = tokens_in_group <= most_tokens and most_tokens != SINGLE_SENTENCES
            if i == begin or not fits:
                starts.append(i)
                first_read = i
                if overlap:
                    earliest = max(begin, i - overlap)
                    first_read = first_context(tokens_before, earliest, i, i + 1, most_tokens)
                    contexts.append(first_read)
        begin += count
    first = np.array(starts, dtype=np.int64)
    context = np.array(contexts, dtype=np.int64) if overlap else first
    ends = np.append(first[1:], len(sizes))[: len(first)]
    document = document_of[first]
    tokens = totals[ends] - totals[context] + 1
    tokens -= num_lacking * (ends - context == 1)
    return Groups(first, ends - first, document, limits[document], tokens, context)


def first_context(totals: Sequence[int], earliest: int, first: int, end: int, limit: int) -> int:
    """Return the first sentence of the longest context from ``earliest`` on that fits a window.

    The window ends with the sentences from ``first`` to ``end`` - 1, and has at most ``limit``
    tokens. ``totals`` are the tokens before each sentence, without ``</s>``.
    """
    return bisect.bisect_left(totals, 1 + totals[end] - limit, earliest, first)


def deal_lengths(
    documents: np.ndarray, lengths: tuple[int, ...], seed: tuple[int, int]
) -> np.ndarray:
    """Draw a limit in tokens for each document, int64. All limits get equally many sentences."""
    if len(lengths) == 1:
        return np.full(len(documents), lengths[0], dtype=np.int64)
    # The third number separates this stream from the stream of the shuffled batches.
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((*seed, 1))))
    order = generator.permutation(len(documents))
    # A document belongs to the share in which its middle sentence falls.
    ends = np.cumsum(documents[order])
    middles = ends - documents[order] / 2
    shares = (middles * len(lengths) / max(1, documents.sum())).astype(np.int64)
    result = np.empty(len(documents), dtype=np.int64)
    result[order] = np.array(generator.permutation(lengths), dtype=np.int64)[shares]
    return result


def longer_side(source_sizes: np.ndarray, target_sizes: np.ndarray | None) -> np.ndarray:
    """Return the tokens of each pair's longer side, which count toward a limit, int [N]."""
    return source_sizes if target_sizes is None else np.maximum(source_sizes, target_sizes)


def describe_lengths(groups: Groups, limit: int, keep_over_long: bool) -> dict[str, Any]:
    """Return statistics of the lengths of the groups with one limit, as JSON values."""
    groups = groups.select(groups.limit == limit)
    over_long = groups.over_long
    used = groups.select(~over_long | keep_over_long)
    result: dict[str, Any] = {
        "max_doc_tokens": limit,
        "documents": len(np.unique(groups.document)),
        "sentences": int(groups.count.sum()),
        "groups": len(used),
        "over_long_sentences": int(over_long.sum()),
        "over_long_kept": keep_over_long,
    }
    if not len(used):
        return result
    quantiles = np.quantile(used.tokens, QUANTILES)
    # Count the groups of each bucket, from its first to its last number of tokens.
    begins = [1, *(bucket + 1 for bucket in BUCKETS)]
    counts, _ = np.histogram(used.tokens, [*begins, np.inf])
    groups_by_tokens = {}
    for begin, end, count in zip(begins, (*BUCKETS, ""), counts.tolist(), strict=True):
        if count:
            groups_by_tokens[f"{begin}-{end}"] = count
    result |= {
        "tokens": int(used.tokens.sum()),
        "mean_tokens": round(float(used.tokens.mean()), 2),
        "quantiles_tokens": dict(zip(map(str, QUANTILES), quantiles.tolist(), strict=True)),
        "longest_tokens": int(used.tokens.max()),
        "mean_sentences": round(float(used.count.mean()), 2),
        "groups_by_tokens": groups_by_tokens,
    }
    return result


def lengths_in_words(description: dict[str, Any]) -> str:
    """Return the result of :func:`describe_lengths` in one line."""
    limit = description["max_doc_tokens"]
    kind = "single sentences" if limit == SINGLE_SENTENCES else f"groups of up to {limit} tokens"
    documents = counted(description["documents"], "document")
    sentences = counted(description["sentences"], "sentence")
    text = f"{description['groups']:,} from {documents} with {sentences}"
    if "tokens" in description:
        low, middle, high = description["quantiles_tokens"].values()
        text += (
            f"; tokens mean {description['mean_tokens']:.0f}, 10% {low:.0f}, median {middle:.0f}, "
        )
        text += f"90% {high:.0f}, longest {description['longest_tokens']:,}; "
        text += f"sentences mean {description['mean_sentences']:.1f}"
    if description["over_long_sentences"]:
        action = "kept whole" if description["over_long_kept"] else "left out"
        text += f"; {counted(description['over_long_sentences'], 'longer sentence')} {action}"
    return f"{kind}: {text}"
