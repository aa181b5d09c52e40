"""A learning rate that falls when the validation score no longer improves."""

from typing import Any

from relu_nmt.optim.config import SCHEDULES, ScheduleConfig
from relu_nmt.optim.schedules import UpdateSchedule


@SCHEDULES.register("reduce_lr_on_plateau")
class ReduceOnPlateauSchedule(UpdateSchedule):
    """Multiply by --lr-shrink after more than --lr-patience epochs without improvement.

    An improvement is a change of at least --lr-threshold, relative to the best score.
    """

    def __init__(self, config: ScheduleConfig, max_update: int, maximize_score: bool) -> None:
        super().__init__(config, max_update, maximize_score)
        self.maximize = maximize_score
        self.factor = 1.0
        self.best: float | None = None
        self.bad_epochs = 0

    def learning_rate(self, num_updates: int, epoch: int) -> float:
        """Return the learning rate of an update."""
        if self.warmup > 0 and num_updates <= self.warmup:
            return self.warming_up(num_updates)
        return self.peak * self.factor

    def end_epoch(self, num_updates: int, score: float | None) -> None:
        """Count the epochs without improvement; scores during warm-up do not count."""
        if score is None or num_updates <= self.warmup:
            return
        if self._improves(score):
            self.best = score
            self.bad_epochs = 0
        else:
            self.bad_epochs += 1
        if self.bad_epochs > self.config.lr_patience:
            self.factor *= self.config.lr_shrink
            self.bad_epochs = 0

    def _improves(self, score: float) -> bool:
        if self.best is None:
            return True
        if self.maximize:
            return score > self.best * (1 + self.config.lr_threshold)
        return score < self.best * (1 - self.config.lr_threshold)

    def state(self) -> dict[str, Any]:
        """Return the factor, the best score and the epochs since."""
        return {"factor": self.factor, "best": self.best, "bad_epochs": self.bad_epochs}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`."""
        self.factor = state["factor"]
        self.best = state["best"]
        self.bad_epochs = state["bad_epochs"]
