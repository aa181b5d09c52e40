"""Layers that compute their activations again in the backward pass instead of keeping them."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from relu_nmt.attention.base import NOTHING, Attention, Need
from relu_nmt.attention.records import without_records


def run_layer(layer: nn.Module, inputs: tuple[Any, ...], recompute: bool) -> Tensor:
    """Return the layer's output; with ``recompute`` its inputs are all that backward keeps.

    Dropout repeats its random numbers. What attention records, such as the differentiable row
    statistics of the regulariser, is recorded in the first pass, and computed once more with the
    rest, since the second pass must ask for what the first one asked for.

    Args:
        layer: gives one tensor.
        inputs: its arguments.
        recompute: save memory at the price of a second pass; only in training, with gradients.

    Reference: Chen et al. 2016, "Training deep nets with sublinear memory cost", section 3.
    """
    if not (recompute and layer.training and torch.is_grad_enabled()):
        return layer(*inputs)
    needs: dict[Attention, Need] = {}

    def same_need(
        module: Attention, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Note in the first pass, after the recorders' hooks, what to ask for in the second."""
        return args, {**kwargs, "need": needs.setdefault(module, kwargs.get("need", NOTHING))}

    @contextmanager
    def first_pass() -> Iterator[None]:
        mechanisms = [module for module in layer.modules() if isinstance(module, Attention)]
        handles = [m.register_forward_pre_hook(same_need, with_kwargs=True) for m in mechanisms]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def second_pass() -> Iterator[None]:
        with first_pass(), without_records():
            yield

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return first_pass(), second_pass()

    return checkpoint(layer, *inputs, use_reentrant=False, context_fn=contexts)
