"""The settings of a translation training that ends within ``--budget``."""

from collections.abc import Callable
from typing import Any

from relu_nmt.config.budgets import Budget, in_words
from relu_nmt.config.classes import flat
from relu_nmt.config.fields import options_of
from relu_nmt.config.shared import BatchingConfig
from relu_nmt.errors import OutOfMemoryError
from relu_nmt.jobs import budget_policy
from relu_nmt.jobs.budget import (
    continued,
    faster_dtype,
    filled,
    given_names,
    refuse_limits,
    with_length,
)
from relu_nmt.jobs.train.settings import TranslationTrainingSettings as Settings
from relu_nmt.jobs.training import TrainingRun
from relu_nmt.modules.config import ATTENTION_PRESETS
from relu_nmt.training.checkpoint import read_metadata
from relu_nmt.translation.task import TranslationTask

FAMILIES = {"transformer", *ATTENTION_PRESETS}
"""The ``--arch`` names that leave the shape open. Others are shapes of published models."""
SHAPE = frozenset(budget_policy.shape_settings(budget_policy.SMALL))
MODEL = SHAPE | {
    *("positions", "share_all_embeddings", "share_decoder_input_output_embed"),
    *("dropout", "attention_dropout"),
}
CHOICES = MODEL | {"max_tokens", "bf16", "lr"}
"""The settings that a training keeps when its budget grows."""

# Measures the pace of a training with such settings.
Trial = Callable[[Settings], budget_policy.Pace]


def within_budget(
    settings: Settings, task: TranslationTask, training: TrainingRun, trial: Trial
) -> Settings:
    """Return settings of a training within ``--budget``, if given. Choose what the user did not."""
    if settings.trainer.budget is None:
        return settings
    refuse_limits(settings)
    if training.goes_on:
        return continued(settings, training, CHOICES, trial, budget_policy.LEAST_WARMUP)
    chooser = Chooser(settings, task, training, trial)
    pace = chooser.choose()
    return with_length(settings, training, pace, chooser.chosen, budget_policy.LEAST_WARMUP)


class Chooser:
    """Chooses shape, batch, dtype and rates of a new training, by the pace in trials."""

    def __init__(
        self, settings: Settings, task: TranslationTask, training: TrainingRun, trial: Trial
    ) -> None:
        assert settings.trainer.budget is not None
        self.chosen: dict[str, Any] = {}
        self._settings = settings
        self._task = task
        self._training = training
        self._trial = trial
        self._budget = Budget.parse(settings.trainer.budget)
        # Leave a model that a flag or a checkpoint describes as it is.
        self._is_free = settings.arch in FAMILIES and training.checkpoint is None
        self._has_shape = bool(SHAPE & given_names(settings))

    def choose(self) -> budget_policy.Pace:
        """Fill ``chosen``, print what and why, and return the pace."""
        # Choose the smallest batch, which makes the most updates.
        longest = max(self._settings.documents.training_lengths, default=1)
        device = self._training.process.device.type
        self.chosen["max_tokens"] = budget_policy.first_tokens(device, longest)
        pace = self._choose_model()
        settings = filled(self._settings, self.chosen)
        dtype, pace = faster_dtype(settings, self._training.process, self._trial, pace)
        self.chosen |= dtype
        pace = self._enlarge_batch(pace)
        self._choose_rates(pace)
        return pace

    def _say(self, text: str) -> None:
        self._training.say(f"budget {self._settings.trainer.budget}: {text}")

    def _measure(self, **changes: Any) -> budget_policy.Pace:
        """Keep some choices, and return the pace with all so far."""
        self.chosen |= changes
        return self._trial(filled(self._settings, self.chosen))

    def _updates(self, pace: budget_policy.Pace) -> int:
        return budget_policy.planned_updates(self._budget, pace)

    def _choose_model(self) -> budget_policy.Pace:
        """Choose the largest shape for which there is time and text."""
        if self._training.checkpoint is not None:
            self.chosen |= flat(read_metadata(self._training.checkpoint).get("model_config") or {})
            self._say(f"the model of {self._training.checkpoint}")
            return self._measure()
        if not self._is_free:
            self._say(f"the model as --arch {self._settings.arch} states it")
            return self._measure()
        self.chosen |= budget_policy.model_settings(self._task.joined_dictionary)
        if self._has_shape:
            self._say("the shape of the model as the flags state it")
            return self._measure()
        shape = budget_policy.SMALL
        pace = self._measure(**budget_policy.shape_settings(shape))
        # A narrow model is worth more updates in the same time, not as many updates.
        is_timed = self._budget.seconds is not None
        if is_timed and self._updates(pace) < shape.least_updates:
            shape = budget_policy.TINY
            pace = self._measure(**budget_policy.shape_settings(shape))
        for larger in budget_policy.LARGER:
            # Larger shapes are slower, so that time for fewer updates rules them out.
            if shape is budget_policy.TINY or pace.samples < larger.least_pairs:
                break
            if self._updates(pace) < larger.least_updates:
                break
            choices = {**self.chosen, **budget_policy.shape_settings(larger)}
            try:
                slower = self._trial(filled(self._settings, choices))
            except OutOfMemoryError:
                break
            if self._updates(slower) < larger.least_updates:
                break
            shape = larger
            pace = slower
            self.chosen |= budget_policy.shape_settings(shape)
        self._say(
            f"{shape.layers}+{shape.layers} layers of width {shape.width} "
            f"({pace.weights / 1e6:.1f} million weights), as there are {pace.samples:,} sentence "
            f"pairs and time for {self._updates(pace):,} updates"
        )
        return pace

    def _enlarge_batch(self, pace: budget_policy.Pace) -> budget_policy.Pace:
        """Choose larger batches if there is time for enough updates of them."""
        factor = 1
        if self._budget.seconds is not None and "max_tokens" not in given_names(self._settings):
            factor = budget_policy.batch_factor(self.chosen["max_tokens"], self._updates(pace))
        if factor > 1:
            pace = self._measure(max_tokens=factor * self.chosen["max_tokens"])
        settings = filled(self._settings, self.chosen)
        dtype = "bfloat16" if settings.trainer.bf16 else "float32"
        if settings.trainer.fp16:
            dtype = "float16"
        tokens = options_of(BatchingConfig)["max_tokens"].text_of(settings.batching.max_tokens)
        self._say(
            f"batches of {tokens} tokens in {dtype}: many small updates "
            f"learn faster; an epoch has {pace.updates_per_epoch:,} and takes "
            f"{in_words(pace.updates_per_epoch * pace.seconds)}"
        )
        return pace

    def _choose_rates(self, pace: budget_policy.Pace) -> None:
        """Choose the peak rate by the width, and the dropout by the number of epochs."""
        is_trained = self._training.checkpoint is not None
        width = filled(self._settings, self.chosen).model.encoder_embed_dim
        self.chosen["lr"] = (budget_policy.peak_rate(width, is_trained),)
        if self._is_free:
            self.chosen |= budget_policy.dropout_settings(
                self._updates(pace) / pace.updates_per_epoch
            )
        settings = filled(self._settings, self.chosen)
        self._say(
            f"--lr {settings.trainer.schedule.lr[0]:g} for this width, after a tenth of warm-up or "
            f"up to {budget_policy.LEAST_WARMUP} updates, down to 0 at the end "
            f"({settings.trainer.schedule.lr_scheduler}); the average of the last ninth of the "
            "weights is stored"
        )
        self._say(
            f"--dropout {settings.model.dropout:g} for "
            f"{self._updates(pace) / pace.updates_per_epoch:.3g} epochs; --label-smoothing "
            f"{settings.smoothing:g}"
        )
