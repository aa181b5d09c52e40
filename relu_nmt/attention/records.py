"""What one attention module did in one forward pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from relu_nmt.attention.base import NOTHING, Attention, AttentionOutput
from relu_nmt.attention.masks import Visibility

NEED_POSITION = 4
"""Of ``need`` among the arguments of :meth:`Attention.forward`."""


@dataclass
class AttentionRecord:
    """Row statistics and weights of one module.

    Args:
        slot: ``encoder``, ``decoder`` (self-attention) or ``cross``.
        layer: index of the layer, from 0.
        output: the statistics and weights that were asked for; its values are the sublayer's.
        visibility: which keys each query could see, and which query rows are real.
    """

    slot: str
    layer: int
    output: AttentionOutput
    visibility: Visibility


@contextmanager
def capture_weights(attention: Attention) -> Iterator[list[Tensor | None]]:
    """Let one mechanism, in whatever model, return its weights in every pass inside the block.

    The other mechanisms are not asked, so some of them may have none.

    Args:
        attention: the mechanism.

    Yields:
        a list that gets the weights [B, H, Nq, Nk] of each pass, before dropout.

    Example:
        >>> import torch
        >>> from relu_nmt.attention.base import build_attention
        >>> from relu_nmt.attention.spec import AttentionSpec
        >>> attention = build_attention(AttentionSpec("softmax"), "encoder", 1, 4, dropout=0.0)
        >>> x = torch.zeros(1, 1, 2, 4)
        >>> with capture_weights(attention) as captured:
        ...     _ = attention(x, x, x, Visibility(2, 2))
        >>> captured[0].tolist()
        [[[[0.5, 0.5], [0.5, 0.5]]]]
    """
    captured: list[Tensor | None] = []

    def ask(
        module: Attention, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        need = kwargs.get("need", args[NEED_POSITION] if len(args) > NEED_POSITION else NOTHING)
        return args[:NEED_POSITION], {**kwargs, "need": replace(need, weights=True)}

    def keep(module: Attention, args: tuple[Any, ...], output: AttentionOutput) -> None:
        captured.append(output.weights)

    handles = [
        attention.register_forward_pre_hook(ask, with_kwargs=True),
        attention.register_forward_hook(keep),
    ]
    try:
        yield captured
    finally:
        for handle in handles:
            handle.remove()
