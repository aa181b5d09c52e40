"""The training objective: the loss of a task, the attention regularizer, and terms of modules.

A module of yours adds a term by :func:`add_to_loss`, such as the balance of a mixture of experts.
The modules of the package add none.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from relu_nmt.attention.base import Attention, Need
from relu_nmt.attention.records import AttentionRecord, attention_telemetry, record_attention
from relu_nmt.attention.regularizer import regularizer_terms
from relu_nmt.errors import ConfigError
from relu_nmt.modules.config import AttentionRegularizerConfig


@dataclass
class LossOutput:
    """The result of one forward pass."""

    # Scalar, differentiable, **summed** over sample_size units. The trainer divides by the sample
    # size of the whole update over all accumulation steps and processes.
    loss: Tensor
    sample_size: int  # number of units in the batch (target tokens, images)
    # A detached sum over the batch and its divisor for the log, by name. Losses are in nats.
    # ``loss`` is added if it is missing, as it is before terms of modules are added to it.
    metrics: Mapping[str, tuple[Tensor, float]] = field(default_factory=dict)
    # Scalars for TensorBoard by name (attention/encoder.0.0/entropy), if wanted.
    telemetry: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "loss" not in self.metrics:
            self.metrics = {"loss": (self.loss.detach(), float(self.sample_size)), **self.metrics}


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


class RegularizedObjective(nn.Module):
    """The loss of a batch plus the attention regularizer, and the attention's statistics.

    total = loss + norm_weight * mean |log S| + entropy_weight * mean max(H - C, 0), the means over
    samples, heads, real query rows and then over all attention modules. Modules may add terms with
    :func:`add_to_loss`. Both are for training only. A task defines
    :meth:`loss`.

    Raises:
        ConfigError: the regularizer is on and an attention has no weights, or signed ones.

    Reference: ReLUFormer, Eq. 7. The weights of the terms are ours, the paper prints none.
    """

    def __init__(
        self, model: nn.Module, label_smoothing: float, regularizer: AttentionRegularizerConfig
    ) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.regularizer = regularizer
        if regularizer.active:
            for module in model.modules():
                if isinstance(module, Attention) and not module.capabilities.non_negative:
                    raise ConfigError(
                        "--attention-norm-weight and --attention-entropy-weight need weights that "
                        f"are never negative, which {type(module).__name__} does not give; set "
                        "them to 0"
                    )

    def loss(self, batch: Any) -> LossOutput:
        """Return the loss of a batch without the regularizer, summed over its units."""
        raise TypeError(f"{type(self).__name__} must define loss")

    def forward(self, batch: Any, telemetry: bool = False) -> LossOutput:
        """Return the loss of a batch. ``telemetry`` adds statistics of every layer and head."""
        regularize = self.regularizer.active and self.training
        need = Need(statistics=regularize, telemetry=telemetry)
        with record_attention(self.model, need) as records, collect_loss_terms() as terms:
            output = self.loss(batch)
        if regularize:
            terms += self._regularizer_terms(records)
        if terms:
            _add_terms(output, terms)
        if telemetry:
            output.telemetry = attention_telemetry(records)
        return output

    def _regularizer_terms(self, records: Sequence[AttentionRecord]) -> list[LossTerm]:
        """Return both terms of the regularizer, averaged over the attention modules."""
        config = self.regularizer
        margin = config.attention_entropy_margin
        total_share = 0.0
        weighted: list[Tensor] = []
        for record in records:
            if record.statistics:
                # A part of an attention counts by its share of rows.
                share = record.visibility.share
                values = regularizer_terms(record.statistics, record.visibility, margin)
                weighted.append(torch.stack(values) * share)
                total_share += share
        # Return sum_i share_i term_i / sum_i share_i, so that parts make up one module.
        norm, entropy = torch.stack(weighted).sum(0) / total_share
        return [
            LossTerm("attention_norm", norm, config.attention_norm_weight),
            LossTerm("attention_entropy", entropy, config.attention_entropy_weight),
        ]


def _add_terms(output: LossOutput, terms: Sequence[LossTerm]) -> None:
    """Add the terms to the loss, once for each unit, and their means to the metrics.

    The metrics show the loss of the task without the terms.
    """
    count = output.sample_size
    values: dict[str, list[Tensor]] = {}
    for term in terms:
        values.setdefault(term.name, []).append(term.value.detach())
    output.loss = output.loss + sum(term.weight * term.value for term in terms) * count
    means = {name: (torch.stack(values[name]).mean() * count, count) for name in values}
    output.metrics = {**output.metrics, **means}
