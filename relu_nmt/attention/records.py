"""What attention modules did in a forward pass, recorded by hooks."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from relu_nmt.attention.base import NOTHING, Attention, AttentionOutput, Need, RowStatistics
from relu_nmt.attention.masks import Visibility

_paused: ContextVar[bool] = ContextVar("recording_paused", default=False)


@dataclass
class AttentionRecord:
    """Row statistics and weights of one mechanism in one pass, as far as they were asked for.

    Args:
        slot: ``encoder``, ``decoder`` (self-attention) or ``cross``.
        layer: index of the layer, from 0.
        rows: statistics of the rows of weights; ``None`` if the mechanism has no weights.
        weights: [B, H, Nq, Nk] before dropout.
        visibility: which keys each query could see, and which query rows are real.
    """

    slot: str
    layer: int
    rows: RowStatistics | None
    weights: Tensor | None
    visibility: Visibility


@contextmanager
def record_attention(model: nn.Module, need: Need) -> Iterator[list[AttentionRecord]]:
    """Let every attention in a model return more in the passes inside the block, and record it.

    So the layers between need not know who watches. Blocks may be nested.

    Args:
        model: the model; or one mechanism, where the others are to keep their fast code.
        need: what to record. With nothing needed nothing is recorded and nothing costs time.

    Yields:
        a list that gets a record for every call of a mechanism, in their order.

    Example:
        >>> import torch
        >>> from relu_nmt.attention.base import build_attention
        >>> from relu_nmt.attention.spec import AttentionSpec
        >>> attention = build_attention(AttentionSpec("softmax"), "encoder", 0, 1, 4, dropout=0.0)
        >>> x = torch.zeros(1, 1, 2, 4)
        >>> with record_attention(attention, Need(weights=True)) as records:
        ...     _ = attention(x, x, x, Visibility(2, 2))
        >>> records[0].weights.tolist()
        [[[[0.5, 0.5], [0.5, 0.5]]]]
    """
    records: list[AttentionRecord] = []

    def ask(
        module: Attention, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, {**kwargs, "need": kwargs.get("need", NOTHING) | need}

    def keep(
        module: Attention, args: tuple[Any, ...], kwargs: dict[str, Any], output: AttentionOutput
    ) -> None:
        if _paused.get():
            return
        visibility = kwargs["visibility"] if "visibility" in kwargs else args[3]
        records.append(
            AttentionRecord(module.slot, module.layer, output.rows, output.weights, visibility)
        )

    handles = []
    for module in model.modules() if need != NOTHING else ():
        if isinstance(module, Attention):
            handles.append(module.register_forward_pre_hook(ask, with_kwargs=True))
            handles.append(module.register_forward_hook(keep, with_kwargs=True))
    try:
        yield records
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def without_records() -> Iterator[None]:
    """Let passes inside the block leave no records, as when activations are computed again."""
    token = _paused.set(True)
    try:
        yield
    finally:
        _paused.reset(token)
