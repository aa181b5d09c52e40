"""Layers that keep only their inputs for the backward pass, which computes them again."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from relu_nmt.attention.base import NOTHING, Attention, Need
from relu_nmt.attention.records import second_pass, without_records


def recomputed(layer: nn.Module, inputs: tuple[Any, ...]) -> Tensor:
    """Return the layer's output. Keep only its inputs for the backward pass.

    The backward pass runs the layer a second time. Dropout repeats its random numbers, and
    modules keep their state (:func:`~relu_nmt.attention.records.second_pass`). Only the first pass
    leaves records of attention, but the second computes the same row statistics again. Outside of
    training, or without gradients, nothing is recomputed.

    Reference: Chen et al. 2016, "Training deep nets with sublinear memory cost", section 3.
    """
    if not (layer.training and torch.is_grad_enabled()):
        return layer(*inputs)
    # The results that callers wanted of each attention in the first pass.
    needs: dict[Attention, Need] = {}

    def same_need(
        module: Attention, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Keep the need of a module's first pass, recorders included, for its second pass."""
        return args, {**kwargs, "need": needs.setdefault(module, kwargs.get("need", NOTHING))}

    @contextmanager
    def hooked(around: Sequence[AbstractContextManager[None]]) -> Iterator[None]:
        with ExitStack() as stack:
            for block in around:
                stack.enter_context(block)
            for module in layer.modules():
                if isinstance(module, Attention):
                    hook = module.register_forward_pre_hook(same_need, with_kwargs=True)
                    stack.enter_context(hook)
            yield

    def passes() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        # Keep the state of the modules in the second pass, and record nothing.
        again = [second_pass(module) for module in layer.modules()]
        return hooked([]), hooked([without_records(), *again])

    return checkpoint(layer, *inputs, use_reentrant=False, context_fn=passes)
