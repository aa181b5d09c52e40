"""The choices of ``--budget``, by measured facts. docs/lab/budget.md has the measurements."""

from dataclasses import dataclass
from typing import Any

from relu_nmt.config.budgets import SECONDS, Budget

RESERVED = 0.02
"""Share of a budget of time that is kept for the last checkpoint."""
VALIDATION_COST = 0.4
"""Updates that take as long as a batch of validation."""
MOST_VALIDATING = 0.1
"""Largest share of the time for validations."""
WARMUP = 0.1
"""Share of the updates for the warm-up of the rate."""
LEAST_WARMUP = 400
"""Least updates of warm-up of a translation model, whose post-norm layers need them."""
MOST_WARMUP = 1 / 3
"""Largest share of the updates for a warm-up that is longer than WARMUP."""
VALIDATIONS = 10
LOG_LINES = 50
MOST_BETWEEN_LINES = 100
AVERAGED = 9
"""The average of the weights covers about the last 1 / AVERAGED of the updates."""
MOST_DECAY = 0.9999
FIRST_TOKENS = {"cpu": 768, "cuda": 4096}
MOST_TOKENS = 4096
ENOUGH_UPDATES = 12_000
"""Up to this number, further updates are worth more than larger batches."""
RATE_OF_WIDTH = 0.256
"""The peak rate times the width of the model."""
SHARE_OF_TRAINED = 0.2
"""Factor of the rate for a model that starts from trained weights."""
DROPOUTS = ((2, 0.0), (12, 0.1), (25, 0.2), (float("inf"), 0.3))
"""A number of epochs, and the dropout of a training for at most so many epochs."""
MOST_ATTENTION_DROPOUT = 0.1


@dataclass(frozen=True)
class Pace:
    """The measured pace of a training, and the sizes on which it depends."""

    seconds: float  # of an update
    updates_per_epoch: int
    samples: int = 0  # sentence pairs or images of an epoch
    weights: int = 0  # parameters of the model
    validation_batches: int = 0

    @property
    def updates_of_validation(self) -> float:
        """The updates that take as long as a validation."""
        return VALIDATION_COST * self.validation_batches


@dataclass(frozen=True)
class Shape:
    """A shape of encoder and decoder, and the least updates and sentence pairs to choose it."""

    layers: int
    width: int
    inner: int
    heads: int
    least_updates: int
    least_pairs: int


TINY = Shape(layers=3, width=128, inner=512, heads=4, least_updates=0, least_pairs=0)
SMALL = Shape(layers=3, width=256, inner=1024, heads=4, least_updates=2_000, least_pairs=0)
LARGER = (
    Shape(layers=6, width=512, inner=1024, heads=4, least_updates=16_000, least_pairs=100_000),
    Shape(layers=6, width=512, inner=2048, heads=8, least_updates=40_000, least_pairs=1_000_000),
)
"""The shapes above SMALL, which is tried first."""


def planned_updates(budget: Budget, pace: Pace, spent: float = 0.0) -> int:
    """Return the number of updates in a budget. ``spent`` seconds of it are used up."""
    if budget.epochs is not None:
        return max(1, round(budget.epochs * pace.updates_per_epoch))
    if budget.updates is not None:
        return budget.updates
    # Leave out the validations that interrupt the training.
    validating = pace.updates_of_validation * VALIDATIONS
    updates = training_seconds(budget, pace, spent) / pace.seconds
    return max(1, int(updates - min(validating, MOST_VALIDATING * updates)))


def training_seconds(budget: Budget, pace: Pace, spent: float) -> float:
    """Return the seconds of a budget of time up to the last update."""
    assert budget.seconds is not None
    last_validation = pace.updates_of_validation * pace.seconds
    seconds = (1 - RESERVED) * budget.seconds - spent - last_validation
    # Train a little even if opening the data took longer than the budget.
    return max(seconds, RESERVED * budget.seconds)


def shape_settings(shape: Shape) -> dict[str, Any]:
    """Return the settings of both sides of a model."""
    chosen: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        chosen[f"{side}_layers"] = shape.layers
        chosen[f"{side}_embed_dim"] = shape.width
        chosen[f"{side}_ffn_embed_dim"] = shape.inner
        chosen[f"{side}_attention_heads"] = shape.heads
    return chosen


def model_settings(joined_dictionary: bool) -> dict[str, Any]:
    """Return the settings that all shapes share: positions, and shared embeddings."""
    tied = "share_decoder_input_output_embed"
    if joined_dictionary:
        tied = "share_all_embeddings"
    return {"positions": "sinusoidal+rotary", tied: True}


def first_tokens(device: str, longest_group: int) -> int:
    """Return the tokens of the smallest batch, which holds the longest group of sentences."""
    return max(FIRST_TOKENS[device], longest_group)


def batch_factor(tokens: int, updates: int) -> int:
    """Return a factor for the size of batches, so that there is still time for enough updates.

    Example:
        >>> batch_factor(768, 4_000), batch_factor(768, 50_000), batch_factor(4096, 10**6)
        (1, 4, 1)
    """
    factor = 1
    while updates >= 2 * factor * ENOUGH_UPDATES and 2 * factor * tokens <= MOST_TOKENS:
        factor *= 2
    return factor


def peak_rate(width: int, is_trained: bool) -> float:
    """Return the highest learning rate of a model."""
    rate = RATE_OF_WIDTH / width
    if is_trained:
        rate *= SHARE_OF_TRAINED
    return float(f"{rate:.2g}")


def dropout_settings(epochs: float) -> dict[str, Any]:
    """Return the dropout of a training for so many epochs."""
    dropout = next(value for most, value in DROPOUTS if epochs <= most)
    return {"dropout": dropout, "attention_dropout": min(dropout, MOST_ATTENTION_DROPOUT)}


def warmup_updates(updates: int, least: int) -> int:
    """Return the updates of warm-up, at least ``least`` if there is time for so many.

    Example:
        >>> warmup_updates(1_500, least=400), warmup_updates(600, least=400)
        (400, 200)
        >>> warmup_updates(10_000, least=400), warmup_updates(600, least=0)
        (1000, 60)
    """
    warmup = max(WARMUP * updates, min(least, MOST_WARMUP * updates))
    return min(max(1, round(warmup)), updates - 1)


def paced_settings(
    pace: Pace, updates: int, seconds: float | None, least_warmup: int = 0
) -> dict[str, Any]:
    """Return the settings that depend on the updates and on the ``seconds`` of a time budget."""
    between = max(1, round(updates / VALIDATIONS))
    between = max(between, round(pace.updates_of_validation / MOST_VALIDATING))
    epochs = max(1, round(between / pace.updates_per_epoch))
    chosen = {
        "max_update": updates,
        "max_epoch": 0,
        "total_num_update": updates,
        "warmup_updates": warmup_updates(updates, least_warmup),
        "ema_decay": round(min(max(0.0, 1 - AVERAGED / updates), MOST_DECAY), 4),
        "validate_interval_updates": between,
        # Between epochs, validate and save no more often.
        "validate_interval": epochs,
        "save_interval": epochs,
        "log_interval": max(1, min(MOST_BETWEEN_LINES, updates // LOG_LINES)),
    }
    if seconds is not None:
        chosen["stop_time_hours"] = seconds / SECONDS["h"]
    return chosen
