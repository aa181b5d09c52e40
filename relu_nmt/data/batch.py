"""A batch of sentence pairs as tensors."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

Pair = tuple[np.ndarray, np.ndarray | None]


@dataclass(frozen=True)
class TranslationBatch:
    """Sentence pairs, padded on the right with the pad symbol.

    Args:
        ids: [B] int64, numbers of the pairs in their split.
        src_tokens: [B, S] int64, ending in ``</s>``.
        src_lengths: [B] int64, tokens of each source sentence, ``</s>`` included.
        tgt_tokens: [B, T] int64, ending in ``</s>``; None for source-only data.
        prev_output_tokens: [B, T] int64, the target moved right by one, ``</s>`` first; None for
            source-only data.
        num_tokens: target tokens without padding (``</s>`` included); 0 for source-only data.
        num_sentences: B.
    """

    ids: Tensor
    src_tokens: Tensor
    src_lengths: Tensor
    tgt_tokens: Tensor | None
    prev_output_tokens: Tensor | None
    num_tokens: int
    num_sentences: int

    def to(self, device: torch.device | str) -> "TranslationBatch":
        """Return the batch on ``device``; from pinned memory the copy does not block."""
        tensors = {
            field.name: value.to(device, non_blocking=True)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)

    def pin_memory(self) -> "TranslationBatch":
        """Return the batch in page-locked memory, from which a GPU copies faster."""
        tensors = {
            field.name: value.pin_memory()
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)


def pad_rows(rows: Sequence[np.ndarray], pad_index: int) -> np.ndarray:
    """Return the rows as int64 [B, longest], filled up on the right with ``pad_index``."""
    table = np.full((len(rows), max(map(len, rows), default=0)), pad_index, dtype=np.int64)
    for row, ids in zip(table, rows, strict=True):
        row[: len(ids)] = ids
    return table


def collate(
    pairs: Sequence[Pair], ids: Sequence[int], pad_index: int, eos_index: int
) -> TranslationBatch:
    """Join pairs of one split to a batch.

    Args:
        pairs: source and target token numbers, both ending in ``</s>``; the target is None in
            source-only data.
        ids: number of each pair in its split.
        pad_index: number of the pad symbol, the same in both dictionaries.
        eos_index: number of ``</s>``, the same in both dictionaries.

    Example:
        >>> pair = (np.array([5, 2]), np.array([7, 8, 2]))
        >>> collate([pair], [0], pad_index=1, eos_index=2).prev_output_tokens
        tensor([[2, 7, 8]])
    """
    sources = [source for source, _ in pairs]
    targets = [target for _, target in pairs if target is not None]
    tgt_tokens = prev_output_tokens = None
    if targets:
        shifted = [np.concatenate(([eos_index], target[:-1])) for target in targets]
        tgt_tokens = torch.from_numpy(pad_rows(targets, pad_index))
        prev_output_tokens = torch.from_numpy(pad_rows(shifted, pad_index))
    return TranslationBatch(
        ids=torch.tensor(ids, dtype=torch.int64),
        src_tokens=torch.from_numpy(pad_rows(sources, pad_index)),
        src_lengths=torch.tensor([len(source) for source in sources], dtype=torch.int64),
        tgt_tokens=tgt_tokens,
        prev_output_tokens=prev_output_tokens,
        num_tokens=sum(map(len, targets)),
        num_sentences=len(pairs),
    )
