"""Settings of the optimiser and the learning-rate schedule, under fairseq's flag names."""

from collections.abc import Callable
from typing import Any

from relu_nmt.config import option, settings, shown
from relu_nmt.config.registry import Registry
from relu_nmt.errors import ConfigError

OPTIMIZERS: Registry[Callable[..., Any]] = Registry(
    "optimizer",
    {"adam": "relu_nmt.training.optimizers", "adamw": "relu_nmt.training.optimizers"},
)
_FORMULAS = ("inverse_sqrt", "cosine", "polynomial_decay", "fixed", "reduce_lr_on_plateau")
SCHEDULES: Registry[Callable[..., Any]] = Registry(
    "lr scheduler", dict.fromkeys(_FORMULAS, "relu_nmt.training.schedules")
)
INVERSE_SQRT_WARMUP = 4000
# Which optimiser or schedule options need to do anything.
ADAM = ("optimizer", "adam", "adamw")
COSINE = ("lr_scheduler", "cosine")
POLYNOMIAL = ("lr_scheduler", "polynomial_decay")
PLATEAU = ("lr_scheduler", "reduce_lr_on_plateau")


@settings
class OptimizerConfig:
    """Settings of the optimiser.

    Raises:
        ConfigError: an unknown optimiser, or values out of range.
    """

    optimizer: str = option(
        "adam",
        "adam or adamw: both are Adam with decoupled weight decay, as fairseq's adam is",
        choices=OPTIMIZERS,
        metavar="NAME",
    )
    adam_betas: tuple[float, ...] = option(
        (0.9, 0.98),
        "decay rates of Adam's moments",
        least=0,
        below=1,
        needs=ADAM,
        metavar="'(B1, B2)'",
    )
    adam_eps: float = option(
        1e-8, "added to Adam's denominator", above=0, needs=ADAM, metavar="EPS"
    )
    weight_decay: float = option(
        0.0, "decoupled weight decay", least=0, metavar="WD", flags=("--wd",)
    )

    def check(self) -> None:
        """See that there are two decay rates."""
        if len(self.adam_betas) != 2:
            raise ConfigError(
                f"--adam-betas {shown(self.adam_betas)}: expected two numbers, as (0.9, 0.98)"
            )


@settings
class ScheduleConfig:
    """Settings of the learning-rate schedule; each schedule reads those it needs.

    Raises:
        ConfigError: an unknown schedule or settings it cannot use.
    """

    lr: tuple[float, ...] = option(
        (5e-4,),
        "learning rate (its peak); fixed also takes one per epoch: LR1,LR2,...",
        least=0,
        metavar="LR",
    )
    lr_scheduler: str = option(
        "inverse_sqrt",
        "inverse_sqrt, cosine, polynomial_decay, fixed or reduce_lr_on_plateau",
        choices=SCHEDULES,
        metavar="NAME",
    )
    warmup_updates: int | None = option(
        None,
        "updates of linear warm-up (default: 4000 for inverse_sqrt, otherwise 0)",
        least=0,
        metavar="N",
    )
    warmup_init_lr: float = option(
        -1.0,
        "learning rate at update 0 of the warm-up; negative: 0, for cosine --min-lr",
        needs=("lr_scheduler", "inverse_sqrt", "cosine", "reduce_lr_on_plateau"),
        metavar="LR",
    )
    stop_min_lr: float = option(
        -1.0, "stop when the learning rate is this low after an epoch", metavar="LR"
    )
    min_lr: float = option(
        0.0,
        "lowest learning rate",
        least=0,
        needs=COSINE,
        # Recipes for the first versions of fairseq give it with every schedule.
        no_effect="only cosine has a lowest learning rate; --stop-min-lr ends training at one",
        metavar="LR",
    )
    lr_period_updates: float = option(
        -1.0, "updates of the first period; negative: up to --max-update", needs=COSINE, metavar="N"
    )
    t_mult: float = option(
        1.0, "factor from one period to the next", least=1, needs=COSINE, metavar="F"
    )
    lr_shrink: float = option(
        0.1,
        "factor of the learning rate: cosine per period, fixed after --force-anneal, "
        "reduce_lr_on_plateau per plateau",
        above=0,
        needs=("lr_scheduler", "cosine", "fixed", "reduce_lr_on_plateau"),
        metavar="F",
    )
    total_num_update: int = option(
        1_000_000, "update at which the decay ends", needs=POLYNOMIAL, metavar="N"
    )
    power: float = option(1.0, "exponent of the decay", needs=POLYNOMIAL, metavar="P")
    end_learning_rate: float = option(
        0.0, "learning rate after the decay", least=0, needs=POLYNOMIAL, metavar="LR"
    )
    force_anneal: int | None = option(
        None,
        "shrink by --lr-shrink each epoch from this one on",
        least=1,
        needs=("lr_scheduler", "fixed"),
        metavar="EPOCH",
    )
    lr_patience: int = option(
        0, "epochs without improvement to bear", least=0, needs=PLATEAU, metavar="N"
    )
    lr_threshold: float = option(
        1e-4, "smallest relative improvement that counts", least=0, needs=PLATEAU, metavar="F"
    )

    def check(self) -> None:
        """Compare the learning rates and the updates with the schedule."""
        if len(self.lr) > 1 and self.lr_scheduler != "fixed":
            raise ConfigError(
                f"--lr with {len(self.lr)} values needs --lr-scheduler fixed, "
                f"not {self.lr_scheduler}"
            )
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
        if self.warmup_updates is not None:
            return self.warmup_updates
        return INVERSE_SQRT_WARMUP if self.lr_scheduler == "inverse_sqrt" else 0
