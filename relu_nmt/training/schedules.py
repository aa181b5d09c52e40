"""Learning rates as formulas of the number of updates, as in fairseq and with its flags.

Update ``t`` (from 1) uses ``learning_rate(t)``. fairseq uses the value at ``t - 1``, so that with a
warm-up from 0 its first update changes nothing. Logs of both print the same rate for a given number
of updates.

A schedule is one subclass of :class:`Schedule` with its options. Most options are a flag of fairseq
as well, which :class:`ScheduleConfig` lists.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from relu_nmt.config import option, settings
from relu_nmt.config.classes import with_own_config
from relu_nmt.config.fields import options_of
from relu_nmt.config.parts import chosen_part
from relu_nmt.config.stored import checked
from relu_nmt.errors import ConfigError
from relu_nmt.training import SCHEDULES


@with_own_config
class Schedule(ABC):
    """A learning rate for every update. Most are a formula of its number, without a state.

    A subclass declares its options as attributes, which become its ``Config``, or it declares a
    ``Config``. In both cases the options are attributes of the schedule.

    Args:
        config: an instance of the class's ``Config``.
        rates: ``--lr``. The first one is the peak.
        max_update: the last update of the training, 0 if not limited.
        maximize: a larger validation score is better.

    Example:
        >>> config = ScheduleConfig(lr=(1e-3,), lr_scheduler="inverse_sqrt:warmup=4")
        >>> schedule = build_schedule(config)
        >>> [schedule.learning_rate(t, 1) for t in (1, 4, 16)]
        [0.00025, 0.001, 0.0005]
    """

    Config: ClassVar[type]
    warmup: int = option(0, "updates of linear warm-up", least=0)

    def __init_subclass__(cls) -> None:
        with_own_config(cls)

    def __init__(
        self, config: Any, rates: tuple[float, ...], max_update: int = 0, maximize: bool = False
    ) -> None:
        self.config = config
        vars(self).update({name: getattr(config, name) for name in options_of(type(config))})
        self.rates = rates
        self.peak = rates[0]
        self.max_update = max_update
        self.maximize = maximize
        self.prepare()

    def prepare(self) -> None:  # noqa: B027
        """Check the options, and set attributes that follow. The constructor calls it last."""

    @abstractmethod
    def learning_rate(self, num_updates: int, epoch: int) -> float:
        """Return the learning rate of update ``num_updates`` (from 1) in ``epoch`` (from 1)."""

    def end_epoch(self, num_updates: int, score: float | None) -> None:  # noqa: B027
        """Take in the validation score at the end of an epoch (None: not validated)."""

    def state(self) -> dict[str, Any]:
        """Return the state that a resumed schedule needs, as plain values."""
        return {}

    def forget_best(self) -> None:  # noqa: B027
        """Forget the best score, since later scores are measured in another way."""

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Go on from :meth:`state`."""

    def warming_up(self, num_updates: int) -> float:
        """Return the learning rate on the straight line of the warm-up."""
        # A negative rate stands for the lowest rate of the schedule, or 0 if it has none.
        start = getattr(self.config, "init_lr", -1.0)
        if start < 0:
            start = getattr(self.config, "min_lr", 0.0)
        return start + num_updates * (self.peak - start) / self.warmup


WarmupConfig = Schedule.Config
"""The option of every schedule here, and a base class for the ``Config`` of further schedules."""


@SCHEDULES.register("inverse_sqrt")
class InverseSqrtSchedule(Schedule):
    """lr * min(t / warmup, sqrt(warmup / t)) when the warm-up starts from 0.

    Reference: Vaswani et al. 2017, equation 3, which is --lr width^-.5 * warmup^-.5.
    """

    warmup: int = option(4000, "updates of linear warm-up", least=0)
    init_lr: float = option(-1.0, "learning rate at update 0 of the warm-up (negative: 0)")

    def prepare(self) -> None:
        """Raise a ConfigError without a warm-up."""
        if self.warmup < 1:
            raise ConfigError(
                "--lr-scheduler inverse_sqrt needs --warmup-updates of 1 or more, "
                "from which it decays"
            )

    def learning_rate(self, num_updates: int, epoch: int) -> float:
        if num_updates < self.warmup:
            return self.warming_up(num_updates)
        return self.peak * self.warmup**0.5 * num_updates**-0.5


@SCHEDULES.register("cosine")
class CosineSchedule(Schedule):
    """Half cosines from --lr down to --min-lr. Each period is --t-mult times as long as the last.

    Reference: Loshchilov and Hutter 2017, equation 5. Deviation (fairseq's): each period shrinks
    both ends by --lr-shrink.
    """

    init_lr: float = option(-1.0, "learning rate at update 0 of the warm-up (negative: min_lr)")
    min_lr: float = option(0.0, "lowest learning rate", least=0)
    period: float = option(-1.0, "updates of the first period (negative: up to --max-update)")
    t_mult: float = option(1.0, "factor from one period to the next", least=1)
    shrink: float = option(0.1, "factor of both rates from one period to the next", above=0)

    def prepare(self) -> None:
        """Set the period. Raise a ConfigError if it is neither given nor limited."""
        if self.period > 0:
            return
        self.period = self.max_update + 1 - self.warmup  # the next begins after the last update
        if self.period <= 1:
            raise ConfigError(
                "--lr-scheduler cosine needs --lr-period-updates, or --max-update above "
                "--warmup-updates"
            )

    def learning_rate(self, num_updates: int, epoch: int) -> float:
        if num_updates < self.warmup:
            return self.warming_up(num_updates)
        # Find the number of the period (from 0), its start and its length.
        updates = num_updates - self.warmup
        length = self.period
        index = int(updates // length) if self.t_mult == 1 else 0
        start = index * length
        while updates >= start + length:
            index += 1
            start += length
            length *= self.t_mult
        low = self.min_lr * self.shrink**index
        high = self.peak * self.shrink**index
        return low + 0.5 * (high - low) * (1 + math.cos(math.pi * (updates - start) / length))


@SCHEDULES.register("polynomial_decay")
class PolynomialDecaySchedule(Schedule):
    """From --lr to --end-learning-rate along (1 - progress)^power, then constant."""

    total: int = option(1_000_000, "update at which the decay ends")
    power: float = option(1.0, "exponent of the decay")
    end_lr: float = option(0.0, "learning rate after the decay", least=0)

    def learning_rate(self, num_updates: int, epoch: int) -> float:
        if self.warmup > 0 and num_updates <= self.warmup:
            return self.peak * num_updates / self.warmup
        if num_updates >= self.total:
            return self.end_lr
        remaining = 1 - (num_updates - self.warmup) / (self.total - self.warmup)
        return (self.peak - self.end_lr) * remaining**self.power + self.end_lr


@SCHEDULES.register("fixed")
class FixedSchedule(Schedule):
    """One rate per epoch, the last one for all later epochs. It shrinks from --force-anneal on."""

    anneal: int | None = option(None, "first epoch in which the learning rate shrinks", least=1)
    shrink: float = option(0.1, "factor of the learning rate from epoch anneal on", above=0)

    def learning_rate(self, num_updates: int, epoch: int) -> float:
        if self.anneal is None or epoch < self.anneal:
            rate = self.rates[min(epoch - 1, len(self.rates) - 1)]
        else:
            rate = self.rates[-1] * self.shrink ** (epoch + 1 - self.anneal)
        # fairseq uses the factor (u + 1) / warmup for update u + 1, and prints it after u updates.
        # Here the factor of update t is used and printed at t.
        return rate * num_updates / self.warmup if num_updates < self.warmup else rate


@dataclass
class PlateauState:
    """The factor of the rate, the best score, and the number of epochs since the best score."""

    factor: float = 1.0
    best: float | None = None
    bad_epochs: int = 0


@SCHEDULES.register("reduce_lr_on_plateau")
class ReduceOnPlateauSchedule(Schedule):
    """Multiply by --lr-shrink after more than --lr-patience epochs without improvement."""

    init_lr: float = option(-1.0, "learning rate at update 0 of the warm-up (negative: 0)")
    patience: int = option(0, "epochs without improvement before the rate shrinks", least=0)
    threshold: float = option(1e-4, "smallest relative improvement that counts", least=0)
    shrink: float = option(0.1, "factor of the learning rate at a plateau", above=0)

    def prepare(self) -> None:
        """Begin with no score."""
        self._state = PlateauState()

    def learning_rate(self, num_updates: int, epoch: int) -> float:
        if self.warmup > 0 and num_updates <= self.warmup:
            return self.warming_up(num_updates)
        return self.peak * self._state.factor

    def end_epoch(self, num_updates: int, score: float | None) -> None:
        """Count the epochs without improvement. Scores during warm-up do not count."""
        if score is None or num_updates <= self.warmup:
            return
        state = self._state
        sign = 1 if self.maximize else -1
        limit = -math.inf if state.best is None else sign * (1 + sign * self.threshold) * state.best
        state.bad_epochs += 1
        if sign * score > limit:  # False for NaN
            state.best = score
            state.bad_epochs = 0
        elif state.bad_epochs > self.patience:
            state.factor *= self.shrink
            state.bad_epochs = 0

    def state(self) -> dict[str, Any]:
        """Return the factor, the best score and the number of epochs since."""
        return dataclasses.asdict(self._state)

    def forget_best(self) -> None:
        self._state = PlateauState(self._state.factor)

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`. The state of another schedule is empty."""
        self._state = checked(PlateauState, state, "schedule")


def _flag(name: str, help_text: str, metavar: str, **changes: Any) -> Any:
    """Return fairseq's flag for an option of schedules, which needs one that has the option."""
    owners = [n for n in SCHEDULES.names() if name in options_of(SCHEDULES.get(n).Config)]
    declared = options_of(SCHEDULES.get(owners[0]).Config)[name]
    common: Any = {"parts": ("lr_scheduler", name), "needs": ("lr_scheduler", *owners)}
    return dataclasses.replace(declared, help=help_text, metavar=metavar, **common, **changes)


@settings
class ScheduleConfig:
    """Settings of the learning-rate schedule, under fairseq's flag names."""

    lr: tuple[float, ...] = option(
        (5e-4,), "peak learning rate (fixed: one rate per epoch, LR1,...)", least=0, metavar="LR"
    )
    lr_scheduler: str = option(
        "inverse_sqrt",
        "learning-rate schedule (docs/guide/settings.md)",
        choices=SCHEDULES,
        with_options=True,
        metavar="NAME",
    )
    warmup_updates: int | None = option(
        None,
        "updates of linear warm-up (default: 4000 for inverse_sqrt, else 0)",
        least=0,
        parts=("lr_scheduler", "warmup"),
    )
    warmup_init_lr: float = _flag(
        "init_lr", "rate at update 0; negative: 0 (cosine: --min-lr)", "LR"
    )
    stop_min_lr: float = option(-1.0, "stop when the rate is this low after an epoch", metavar="LR")
    min_lr: float = _flag(
        "min_lr",
        "lowest learning rate",
        "LR",
        # Recipes for the first versions of fairseq give it with every schedule.
        no_effect="only cosine has a lowest learning rate; --stop-min-lr ends training at a rate",
    )
    lr_period_updates: float = _flag("period", "updates of the first period; negative: all", "N")
    t_mult: float = _flag("t_mult", "factor from the length of a period to the next", "F")
    lr_shrink: float = _flag("shrink", "factor per period, plateau or --force-anneal epoch", "F")
    total_num_update: int = _flag("total", "update at which the decay ends", "N")
    power: float = _flag("power", "exponent of the decay", "P")
    end_learning_rate: float = _flag("end_lr", "rate after the decay", "LR")
    force_anneal: int | None = _flag("anneal", "shrink by --lr-shrink from this epoch on", "EPOCH")
    lr_patience: int = _flag("patience", "epochs without progress before the rate shrinks", "N")
    lr_threshold: float = _flag("threshold", "smallest relative progress that counts", "F")

    def check(self) -> None:
        """Compare the learning rates and the updates with the schedule."""
        is_built_in = SCHEDULES.is_built_in(self.lr_scheduler)
        if len(self.lr) > 1 and is_built_in and self.lr_scheduler != "fixed":
            raise ConfigError(
                f"--lr with {len(self.lr)} values needs --lr-scheduler fixed, "
                f"not {self.lr_scheduler}"
            )
        # Refuse settings with which the rate could not fall.
        if self.lr_scheduler == "cosine" and self.lr[0] <= self.min_lr:
            raise ConfigError(f"--lr {self.lr[0]:g} must be above --min-lr {self.min_lr:g}")
        if self.lr_scheduler == "polynomial_decay" and self.total_num_update <= self.warmup:
            raise ConfigError(
                f"--total-num-update {self.total_num_update} must be above "
                f"--warmup-updates {self.warmup}"
            )

    @property
    def warmup(self) -> int:
        """Updates of warm-up, with the schedule's own default."""
        return getattr(chosen_part(self, "lr_scheduler")[1], "warmup", 0)


def build_schedule(config: ScheduleConfig, max_update: int = 0, maximize: bool = False) -> Schedule:
    """Return the schedule that ``--lr-scheduler`` names. See :class:`Schedule`."""
    make, options = chosen_part(config, "lr_scheduler")
    schedule: Schedule = make(options, config.lr, max_update, maximize)
    return schedule
