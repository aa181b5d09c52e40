"""What modules with a state of their own do where a pass is computed again to save memory."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import singledispatch

from torch import nn


@singledispatch
def second_pass(module: nn.Module) -> AbstractContextManager[None]:
    """Return the block for a second pass that gives what the next pass will give.

    It also leaves the module as it is. Classes whose state a pass in training changes register
    what they need.

    Args:
        module: before the first pass.
    """
    return nullcontext()


@second_pass.register(nn.BatchNorm2d)
@contextmanager
def _(module: nn.BatchNorm2d) -> Iterator[None]:
    """Take the batch into the statistics no second time."""
    momentum, module.momentum = module.momentum, 0.0
    try:
        yield
    finally:
        module.momentum = momentum
