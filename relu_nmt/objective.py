"""What a training step hands to the trainer, for whatever is being trained.

This is the seam between the models (translation, vision) and the generic trainer: a module that
takes a batch and returns a :class:`LossOutput`.
"""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Metric:
    """A sum and what to divide it by, so that batches and processes can be added.

    Args:
        total: scalar, detached sum over the batch.
        count: what the sum is divided by for reporting (tokens, sentences, 1).
    """

    total: Tensor
    count: float


@dataclass
class LossOutput:
    """The result of one forward pass.

    Args:
        loss: scalar, differentiable, **summed** over ``sample_size`` units; the trainer divides
            by the sample size of the whole update over all accumulation steps and processes.
        sample_size: number of units in the batch (target tokens, images).
        metrics: sums for the log, by name; losses are in nats.
        telemetry: scalars for TensorBoard by name (``attention/encoder.0.0/entropy``), only when
            asked for.
    """

    loss: Tensor
    sample_size: int
    metrics: dict[str, Metric] = field(default_factory=dict)
    telemetry: dict[str, float] = field(default_factory=dict)
