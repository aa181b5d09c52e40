"""The settings of a training of an image classifier that ends within ``--budget``."""

from collections.abc import Callable

from relu_nmt.jobs.budget import (
    continued,
    faster_dtype,
    refuse_limits,
    with_length,
)
from relu_nmt.jobs.budget_policy import Pace
from relu_nmt.jobs.training import TrainingRun
from relu_nmt.jobs.vision_train.settings import ImageTrainingSettings as Settings

CHOICES = frozenset({"bf16"})


def within_budget(
    settings: Settings, training: TrainingRun, trial: Callable[[Settings], Pace]
) -> Settings:
    """Return the settings of a training that ends within ``--budget``, if it is given.

    Model, batch, rates and augmentation are those of flags and ``--recipe``, whose epochs and
    warm-up give way to those of the budget. A training that goes on keeps its choices.
    """
    budget = settings.trainer.budget
    if budget is None:
        return settings
    refuse_limits(settings)
    if training.goes_on:
        return continued(settings, training, CHOICES, trial)
    if settings.trainer.max_epoch:
        training.say(
            f"budget {budget}: in place of the {settings.trainer.max_epoch} epochs of --recipe "
            f"{settings.recipe}"
        )
    chosen, pace = faster_dtype(settings, training.process, trial)
    training.say(
        f"budget {budget}: batches of {settings.batch_size} images in "
        f"{'bfloat16' if chosen.get('bf16') else 'float32'}; a tenth of warm-up, then "
        f"--lr-scheduler {settings.trainer.schedule.lr_scheduler} to the end"
    )
    return with_length(settings, training, pace, chosen)
