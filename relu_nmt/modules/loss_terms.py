"""Terms that parts of a model add to the loss, such as the balance of a mixture of experts."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class LossTerm:
    """A differentiable scalar, which is added to the loss of each token (or image)."""

    name: str  # in the log, which shows the mean over modules, without the weight
    value: Tensor
    weight: float


_collected: ContextVar[list[LossTerm] | None] = ContextVar("collected", default=None)


@contextmanager
def collect_loss_terms() -> Iterator[list[LossTerm]]:
    """Collect the terms of the forward passes inside the block."""
    terms: list[LossTerm] = []
    token = _collected.set(terms)
    try:
        yield terms
    finally:
        _collected.reset(token)


def add_to_loss(module: nn.Module, term: LossTerm) -> None:
    """Add a term to the loss of the training step that runs now, from a module's ``forward``.

    Nothing happens in evaluation. A layer that the backward pass computes again
    (``--checkpoint-activations``) adds its term in the first pass only.
    """
    terms = _collected.get()
    if terms is not None and module.training:
        # Do not compute with the term here: both passes of a layer must save the same tensors.
        terms.append(term)
