"""How long the groups of a corpus really are: a limit alone does not tell."""

from typing import Any

import numpy as np

from relu_nmt.data.document_groups import SINGLE_SENTENCES, DocumentGroups

BUCKETS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
QUANTILES = (0.1, 0.5, 0.9)
LENGTHS_FILE = "document_lengths.json"
"""Name of the file beside the checkpoints that holds the lengths of the training."""


def describe_lengths(groups: DocumentGroups, limit: int, keep_over_long: bool) -> dict[str, Any]:
    """Return the realised lengths of the groups of one limit, as JSON values.

    Args:
        groups: all groups, over-long ones included.
        limit: the limit in tokens whose groups to describe.
        keep_over_long: whether over-long sentences are used (validation) or left out (training).
    """
    of_limit = groups.select(groups.limit == limit)
    over_long = of_limit.over_long
    kept = of_limit if keep_over_long else of_limit.select(~over_long)
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
    """Return what :func:`describe_lengths` found, in one line."""
    limit = description["max_doc_tokens"]
    what = "single sentences" if limit == SINGLE_SENTENCES else f"groups of up to {limit} tokens"
    parts = [
        f"{what}: {description['groups']:,} from {description['documents']:,} documents with "
        f"{description['sentences']:,} sentences"
    ]
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
