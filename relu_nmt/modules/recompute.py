"""Layers that keep only their inputs for the backward pass, which computes them again."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from relu_nmt.attention.records import without_records


def recomputed(layer: nn.Module, inputs: tuple[Any, ...]) -> Tensor:
    """Return the layer's output. Keep only its inputs for the backward pass.

    The backward pass runs the layer a second time. Dropout repeats its random numbers, and modules
    keep their state: a module whose state changes in training passes has a method ``second_pass``
    (see :meth:`~relu_nmt.attention.base.Attention.second_pass`). Only the first pass leaves records
    of attention, but the second computes the same row statistics again. Outside of training, or
    without gradients, nothing is recomputed.

    Reference: Chen et al. 2016, "Training deep nets with sublinear memory cost", section 3.
    """
    if not (layer.training and torch.is_grad_enabled()):
        return layer(*inputs)

    def passes() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        again = [_second_pass(module) for module in layer.modules()]
        return nullcontext(), _all_of([without_records(), *again])

    return checkpoint(layer, *inputs, use_reentrant=False, context_fn=passes)


def _second_pass(module: nn.Module) -> AbstractContextManager[None]:
    """Return a context for the second pass, in which a module keeps its state."""
    if isinstance(module, nn.BatchNorm2d):
        return _without_momentum(module)
    return getattr(module, "second_pass", nullcontext)()


@contextmanager
def _without_momentum(module: nn.BatchNorm2d) -> Iterator[None]:
    """Leave the running statistics as they are."""
    momentum = module.momentum
    module.momentum = 0.0
    try:
        yield
    finally:
        module.momentum = momentum


@contextmanager
def _all_of(blocks: Sequence[AbstractContextManager[None]]) -> Iterator[None]:
    with ExitStack() as stack:
        for block in blocks:
            stack.enter_context(block)
        yield
