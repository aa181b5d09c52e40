"""The choices of ``--budget`` for a new translation training: shape, batch, dtype and rates.

docs/lab/budget.md has the measurements behind the constants.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relu_nmt.config.classes import flat
from relu_nmt.config.fields import options_of
from relu_nmt.config.shared import BatchingConfig
from relu_nmt.errors import OutOfMemoryError
from relu_nmt.jobs.budget import (
    Choices,
    Pace,
    faster_dtype,
    filled,
    given_names,
    planned_updates,
)
from relu_nmt.jobs.train.settings import TranslationTrainingSettings as Settings
from relu_nmt.jobs.training import TrainingRun
from relu_nmt.modules.config import ATTENTION_PRESETS
from relu_nmt.training.budgets import Budget, in_words
from relu_nmt.training.checkpoint import read_metadata
from relu_nmt.translation.config import both_sides
from relu_nmt.translation.task import TranslationTask

LEAST_WARMUP = 400
"""Least updates of warm-up of a translation model."""
SMALLEST_BATCH = {"cpu": 768, "cuda": 4096}  # in tokens, by device
LARGEST_BATCH = 4096
ENOUGH_UPDATES = 12_000
"""Below this number more updates are worth more than larger batches."""
RATE_OF_WIDTH = 0.256
"""The peak rate times the width of the model, whose layers are post-norm."""
RATE_OF_PRE_NORM = 2.5
"""Factor of the rate for a new model with pre-norm layers."""
LATE_DECAY = 0.3
"""The power of the decay in a short training, whose rate stays high until near the end."""
FEW_UPDATES = 4_000
"""Trainings of a new model with fewer updates are short."""
CLIP_NORM = 1.0
"""The largest norm of a gradient. Short trainings, whose rates are high, learn more with it."""
SHARE_OF_TRAINED = 0.2
"""Factor of the rate for a model that starts from trained weights."""
DROPOUTS = ((5, 0.0), (12, 0.1), (25, 0.2), (float("inf"), 0.3))
"""A number of epochs, and the dropout of a training for at most so many epochs."""
MOST_ATTENTION_DROPOUT = 0.1


@dataclass(frozen=True)
class Shape:
    """A shape of encoder and decoder, and the least updates and sentence pairs to choose it."""

    layers: int
    width: int
    inner: int
    heads: int
    least_updates: int
    least_pairs: int
    is_pre_norm: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of both sides of a model."""
        chosen = both_sides(self.width, self.inner, self.layers, self.heads)
        if self.is_pre_norm:
            chosen |= {"encoder_normalize_before": True, "decoder_normalize_before": True}
        return chosen


SHAPES = (
    Shape(
        layers=3, width=128, inner=512, heads=4, least_updates=0, least_pairs=0, is_pre_norm=True
    ),
    Shape(layers=3, width=256, inner=1024, heads=4, least_updates=5_000, least_pairs=0),
    Shape(layers=6, width=512, inner=1024, heads=4, least_updates=16_000, least_pairs=100_000),
    Shape(layers=6, width=512, inner=2048, heads=8, least_updates=40_000, least_pairs=1_000_000),
)
"""The shapes by size. The first is for a budget of time alone."""
FAMILIES = {"transformer", *ATTENTION_PRESETS}
"""The ``--arch`` names that leave the shape open. Others are shapes of published models."""
KEPT = frozenset(SHAPES[0].settings) | {
    *("positions", "share_all_embeddings", "share_decoder_input_output_embed"),
    *("dropout", "attention_dropout", "max_tokens", "bf16", "lr", "power", "clip_norm"),
}
"""The choices that a training keeps when its budget grows."""


class Chooser:
    """Chooses shape, batch, dtype and rates of a new training, by the pace of trial updates.

    ``trial`` measures the pace of a training with such settings.
    """

    def __init__(
        self,
        settings: Settings,
        task: TranslationTask,
        training: TrainingRun,
        trial: Callable[[Settings], Pace],
    ) -> None:
        assert settings.trainer.budget is not None
        self._settings = settings
        self._task = task
        self._training = training
        self._trial = trial
        self._budget = Budget.parse(settings.trainer.budget)
        # Leave a model that a flag or a checkpoint describes as it is.
        self._is_free = settings.arch in FAMILIES and training.checkpoint is None

    def choose(self) -> Choices:
        """Return the choices. Print them with reasons."""
        choices = faster_dtype(self._settings, self._training.process, self._trial, self._model())
        choices = self._with_larger_batches(choices)
        return Choices({**choices.values, **self._rates(choices)}, choices.pace)

    def _say(self, text: str) -> None:
        self._training.say(f"budget {self._settings.trainer.budget}: {text}")

    def _measured(self, values: dict[str, Any]) -> Choices:
        """Return choices, with the pace of a training with them."""
        return Choices(values, self._trial(filled(self._settings, values)))

    def _updates(self, choices: Choices) -> int:
        return planned_updates(self._budget, choices.pace)

    def _model(self) -> Choices:
        """Return the trained model or the one of the flags, or else the best shape."""
        # Begin with the smallest batch, which gives the most updates. It must hold a group of
        # sentences.
        longest = self._settings.documents.longest_in_training
        tokens = max(SMALLEST_BATCH[self._training.process.device.type], longest)
        values: dict[str, Any] = {"max_tokens": tokens, "clip_norm": CLIP_NORM}
        checkpoint = self._training.checkpoint
        if checkpoint is not None:
            self._say(f"the model of {checkpoint}")
            return self._measured(
                values | flat(read_metadata(checkpoint).get("model_config") or {})
            )
        if not self._is_free:
            self._say(f"the model as --arch {self._settings.arch} states it")
            return self._measured(values)
        tied = "share_decoder_input_output_embed"
        if self._task.joined_dictionary:
            tied = "share_all_embeddings"
        values |= {"positions": self._positions(), tied: True}
        if SHAPES[1].settings.keys() & given_names(self._settings):
            self._say("the shape of the model as the flags state it")
            return self._measured(values)
        return self._with_shape(values)

    def _with_shape(self, values: dict[str, Any]) -> Choices:
        """Add the largest shape for which there is enough time and text."""
        # A narrower model pays only if time is the limit: it makes more updates in the same time.
        shapes = SHAPES if self._budget.seconds is not None else SHAPES[1:]
        shape = shapes[0]
        choices = self._measured(values | shape.settings)
        for larger in shapes[1:]:
            # Larger shapes are slower: too few updates of the present shape rule them out.
            least_updates = larger.least_updates
            if choices.pace.samples < larger.least_pairs or self._updates(choices) < least_updates:
                break
            try:
                larger_choices = self._measured(values | larger.settings)
            except OutOfMemoryError:
                break
            if self._updates(larger_choices) < least_updates:
                break
            shape = larger
            choices = larger_choices
        weights = f"{choices.pace.weights / 1e6:.1f} million weights"
        if shape.is_pre_norm:
            weights += ", pre-norm"
        self._say(
            f"{shape.layers}+{shape.layers} layers of width {shape.width} ({weights}), as "
            f"there are {choices.pace.samples:,} sentence pairs and time for "
            f"{self._updates(choices):,} updates"
        )
        return choices

    def _positions(self) -> str:
        """Return the position schemes of a new model: relative ones if its attention has scores."""
        model = self._settings.model
        sides = ("encoder", "decoder")
        if not all(map(model.has_scores, sides)):
            return "sinusoidal"
        # Softmax gains nothing from a bias of distances, with which it has no fused code.
        has_documents = self._settings.documents.longest_in_training > 1
        if has_documents and "softmax" not in map(model.mechanism_of, sides):
            return "sinusoidal+rotary+t5"
        return "sinusoidal+rotary"

    def _with_larger_batches(self, choices: Choices) -> Choices:
        """Make the batches larger if there is time for enough updates of them."""
        tokens = choices.values["max_tokens"]
        if self._budget.seconds is not None and "max_tokens" not in given_names(self._settings):
            factor = batch_factor(tokens, self._updates(choices))
            if factor > 1:
                choices = self._measured({**choices.values, "max_tokens": factor * tokens})
        settings = filled(self._settings, choices.values)
        dtype = "bfloat16" if settings.trainer.bf16 else "float32"
        if settings.trainer.fp16:
            dtype = "float16"
        tokens_text = options_of(BatchingConfig)["max_tokens"].text_of(settings.batching.max_tokens)
        pace = choices.pace
        self._say(
            f"batches of {tokens_text} tokens in {dtype}: many small updates "
            f"learn faster; an epoch has {pace.updates_per_epoch:,} and takes "
            f"{in_words(pace.updates_per_epoch * pace.seconds)}"
        )
        return choices

    def _rates(self, choices: Choices) -> dict[str, Any]:
        """Return the peak rate by width and norm, and its decay and the dropout by the length."""
        model = filled(self._settings, choices.values).model
        is_trained = self._training.checkpoint is not None
        rate = peak_rate(model.encoder_embed_dim, model.encoder_normalize_before, is_trained)
        rates: dict[str, Any] = {"lr": (rate,)}
        updates = self._updates(choices)
        if updates < FEW_UPDATES and not is_trained:
            rates["power"] = LATE_DECAY
        epochs = updates / choices.pace.updates_per_epoch
        if self._is_free:
            rates |= dropout_settings(epochs)
        settings = filled(self._settings, {**choices.values, **rates})
        schedule = settings.trainer.schedule
        decay = f"then by --lr-scheduler {schedule.lr_scheduler}"
        if schedule.lr_scheduler == "polynomial_decay":
            decay = f"down to 0 at the end with --power {schedule.power:g}"
        self._say(
            f"--lr {schedule.lr[0]:g} for this width, after a tenth of warm-up or "
            f"up to {LEAST_WARMUP} updates, {decay}; the average of the last ninth of the "
            "weights is stored"
        )
        self._say(
            f"--dropout {settings.model.dropout:g} for {epochs:.3g} epochs; --label-smoothing "
            f"{settings.smoothing:g}; --clip-norm {settings.trainer.clip_norm:g}"
        )
        return rates


def batch_factor(tokens: int, updates: int) -> int:
    """Return a factor for the size of batches, so that there is still time for enough updates.

    Example:
        >>> batch_factor(768, 4_000), batch_factor(768, 50_000), batch_factor(4096, 10**6)
        (1, 4, 1)
    """
    factor = 1
    while updates >= 2 * factor * ENOUGH_UPDATES and 2 * factor * tokens <= LARGEST_BATCH:
        factor *= 2
    return factor


def peak_rate(width: int, is_pre_norm: bool, is_trained: bool) -> float:
    """Return the highest learning rate of a model."""
    rate = RATE_OF_WIDTH / width
    if is_trained:
        rate *= SHARE_OF_TRAINED
    elif is_pre_norm:
        rate *= RATE_OF_PRE_NORM
    return float(f"{rate:.2g}")


def dropout_settings(epochs: float) -> dict[str, Any]:
    """Return the dropout of a training for so many epochs."""
    dropout = next(value for most_epochs, value in DROPOUTS if epochs <= most_epochs)
    return {"dropout": dropout, "attention_dropout": min(dropout, MOST_ATTENTION_DROPOUT)}
