"""Learning rates as formulas of the number of updates, those of fairseq.

Update ``t`` (from 1) uses ``learning_rate(t)``. fairseq uses its value at ``t - 1``, so its first
update after a warm-up from 0 changes nothing; the values at a given number of updates, which both
print, are the same.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

from relu_nmt.errors import ConfigError
from relu_nmt.training.optimization import SCHEDULES, ScheduleConfig


class Schedule(ABC):
    """A learning rate for every update; most are a formula of its number, which has no memory.

    Args:
        config: which schedule, and its settings.
        max_update: the last update of the training, 0 if not limited.
        maximize_score: whether a larger validation score is better.

    Raises:
        ConfigError: the settings do not suffice.

    Example:
        >>> config = ScheduleConfig(lr=(1e-3,), warmup_updates=4)
        >>> schedule = SCHEDULES.get(config.lr_scheduler)(config, 0, False)
        >>> [schedule.learning_rate(t, 1) for t in (1, 4, 16)]
        [0.00025, 0.001, 0.0005]
    """

    def __init__(self, config: ScheduleConfig, max_update: int, maximize_score: bool) -> None:
        self.config = config
        self.peak = config.lr[0]
        self.warmup = config.warmup
        # --min-lr is 0 where the schedule is not cosine.
        self.init_lr = config.warmup_init_lr if config.warmup_init_lr >= 0 else config.min_lr

    @abstractmethod
    def learning_rate(self, num_updates: int, epoch: int) -> float:
        """Return the learning rate of update ``num_updates`` (from 1) in ``epoch`` (from 1)."""

    def end_epoch(self, num_updates: int, score: float | None) -> None:  # noqa: B027
        """Take notice of the validation score (None: not validated) at the end of an epoch."""

    def state(self) -> dict[str, Any]:
        """Return what a resumed schedule must know, as plain values."""
        return {}

    def forget_best(self) -> None:  # noqa: B027
        """Forget the best score, with which those to come cannot be compared."""

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Go on from :meth:`state`."""

    def warming_up(self, num_updates: int) -> float:
        """Return the learning rate on the straight line of the warm-up."""
        return self.init_lr + num_updates * (self.peak - self.init_lr) / self.warmup


@SCHEDULES.register("inverse_sqrt")
class InverseSqrtSchedule(Schedule):
    """lr * min(t / warmup, sqrt(warmup / t)) when the warm-up starts from 0.

    Reference: Vaswani et al. 2017, equation 3, which is --lr width^-.5 * warmup^-.5.

    Raises:
        ConfigError: --warmup-updates 0, for which the formula has no scale.
    """

    def __init__(self, config: ScheduleConfig, max_update: int, maximize_score: bool) -> None:
        super().__init__(config, max_update, maximize_score)
        if self.warmup < 1:
            raise ConfigError(
                "--lr-scheduler inverse_sqrt needs --warmup-updates of 1 or more, "
                "from which it decays"
            )

    def learning_rate(self, num_updates: int, epoch: int) -> float:
        """Return the learning rate of an update."""
        if num_updates < self.warmup:
            return self.warming_up(num_updates)
        return self.peak * self.warmup**0.5 * num_updates**-0.5


@SCHEDULES.register("cosine")
class CosineSchedule(Schedule):
    """Half cosines from --lr down to --min-lr, the periods growing by --t-mult.

    Reference: Loshchilov and Hutter 2017, equation 5. Deviation (fairseq's): each period shrinks
    both ends by --lr-shrink.

    Raises:
        ConfigError: neither --lr-period-updates nor --max-update says how long a period is.
    """

    def __init__(self, config: ScheduleConfig, max_update: int, maximize_score: bool) -> None:
        super().__init__(config, max_update, maximize_score)
        self.period = config.lr_period_updates
        if self.period > 0:
            return
        self.period = max_update + 1 - self.warmup  # the next begins after the last update
        if self.period <= 1:
            raise ConfigError(
                "--lr-scheduler cosine needs --lr-period-updates, or --max-update above "
                "--warmup-updates"
            )

    def learning_rate(self, num_updates: int, epoch: int) -> float:
        """Return the learning rate of an update."""
        if num_updates < self.warmup:
            return self.warming_up(num_updates)
        index, position, length = self._period_of(num_updates - self.warmup)
        shrink = self.config.lr_shrink**index
        low, high = self.config.min_lr * shrink, self.peak * shrink
        return low + 0.5 * (high - low) * (1 + math.cos(math.pi * position / length))

    def _period_of(self, updates: int) -> tuple[int, float, float]:
        """Return the period's number (from 0), the updates since its start, and its length."""
        growth = self.config.t_mult
        if growth == 1:
            index = int(updates // self.period)
            return index, updates - self.period * index, self.period
        index = math.floor(math.log(1 - updates / self.period * (1 - growth), growth))
        start = (1 - growth**index) / (1 - growth) * self.period
        return index, updates - start, growth**index * self.period


@SCHEDULES.register("polynomial_decay")
class PolynomialDecaySchedule(Schedule):
    """From --lr to --end-learning-rate along (1 - progress)^power, then constant."""

    def learning_rate(self, num_updates: int, epoch: int) -> float:
        """Return the learning rate of an update."""
        end, total = self.config.end_learning_rate, self.config.total_num_update
        if self.warmup > 0 and num_updates <= self.warmup:
            return self.peak * num_updates / self.warmup
        if num_updates >= total:
            return end
        remaining = 1 - (num_updates - self.warmup) / (total - self.warmup)
        return (self.peak - end) * remaining**self.config.power + end


@SCHEDULES.register("fixed")
class FixedSchedule(Schedule):
    """One learning rate per epoch, the last one for the rest, shrunk from --force-anneal on."""

    def learning_rate(self, num_updates: int, epoch: int) -> float:
        """Return the learning rate of an update."""
        rates, anneal = self.config.lr, self.config.force_anneal
        if anneal is None or epoch < anneal:
            rate = rates[min(epoch - 1, len(rates) - 1)]
        else:
            rate = rates[-1] * self.config.lr_shrink ** (epoch + 1 - anneal)
        if num_updates < self.warmup:
            # fairseq's step_update(u) serves update u + 1 with factor (u + 1) / warmup, and it
            # prints that value at u updates; here both are update t's own factor.
            return rate * num_updates / self.warmup
        return rate


@SCHEDULES.register("reduce_lr_on_plateau")
class ReduceOnPlateauSchedule(Schedule):
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

    def forget_best(self) -> None:
        """See :meth:`Schedule.forget_best`."""
        self.best, self.bad_epochs = None, 0

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`."""
        if state:  # it is empty where another schedule's was stored
            self.factor = state["factor"]
            self.best = state["best"]
            self.bad_epochs = state["bad_epochs"]
