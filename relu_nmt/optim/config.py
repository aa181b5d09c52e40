"""Settings of the optimiser and the learning-rate schedule, under fairseq's flag names."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relu_nmt.config import option
from relu_nmt.errors import ConfigError
from relu_nmt.registry import Registry

OPTIMIZERS: Registry[Callable[..., Any]] = Registry(
    "optimizer",
    {"adam": "relu_nmt.optim.optimizers", "adamw": "relu_nmt.optim.optimizers"},
)
SCHEDULES: Registry[Callable[..., Any]] = Registry(
    "lr scheduler",
    {
        "inverse_sqrt": "relu_nmt.optim.schedules",
        "cosine": "relu_nmt.optim.schedules",
        "polynomial_decay": "relu_nmt.optim.schedules",
        "fixed": "relu_nmt.optim.schedules",
        "reduce_lr_on_plateau": "relu_nmt.optim.schedules",
    },
)
INVERSE_SQRT_WARMUP = 4000


def parse_numbers(text: str) -> tuple[float, ...]:
    """Return the numbers of a list such as ``0.9, 0.98`` or ``(0.9, 0.98)``.

    Raises:
        ValueError: something that is not a number.
    """
    inner = re.fullmatch(r"\s*[\[(]?(.*?),?\s*[\])]?\s*", text)
    assert inner is not None
    try:
        return tuple(float(part) for part in inner.group(1).split(","))
    except ValueError:
        raise ValueError(f"'{text}': expected numbers separated by commas") from None


def parse_betas(text: str) -> tuple[float, ...]:
    """Return the two betas of Adam from fairseq's spelling ``(0.9, 0.98)``.

    Raises:
        ValueError: not two numbers in [0, 1).
    """
    betas = parse_numbers(text)
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"'{text}': expected two numbers from 0 to below 1, such as (0.9, 0.98)")
    return betas


@dataclass(frozen=True)
class OptimizerConfig:
    """Settings of the optimiser.

    Raises:
        ConfigError: an unknown optimiser or a value out of range.
    """

    optimizer: str = option(
        "adam",
        "adam or adamw: both are Adam with decoupled weight decay, as fairseq's adam is",
        metavar="NAME",
    )
    adam_betas: tuple[float, ...] = option(
        (0.9, 0.98), "decay rates of Adam's moments", metavar="'(B1, B2)'", parse=parse_betas
    )
    adam_eps: float = option(1e-8, "added to Adam's denominator", metavar="EPS")
    weight_decay: float = option(0.0, "decoupled weight decay", metavar="WD", flags=("--wd",))

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS.names():
            OPTIMIZERS.get(self.optimizer)
        if self.weight_decay < 0 or self.adam_eps <= 0:
            raise ConfigError("--weight-decay must not be negative and --adam-eps must be above 0")


@dataclass(frozen=True)
class ScheduleConfig:
    """Settings of the learning-rate schedule; each schedule reads those it needs.

    Raises:
        ConfigError: an unknown schedule or settings it cannot use.
    """

    lr: tuple[float, ...] = option(
        (5e-4,),
        "learning rate (its peak); fixed also takes one per epoch: LR1,LR2,...",
        metavar="LR",
        parse=parse_numbers,
    )
    lr_scheduler: str = option(
        "inverse_sqrt",
        "inverse_sqrt, cosine, polynomial_decay, fixed or reduce_lr_on_plateau",
        metavar="NAME",
    )
    warmup_updates: int | None = option(
        None,
        "updates of linear warm-up (default: 4000 for inverse_sqrt, otherwise 0)",
        metavar="N",
    )
    warmup_init_lr: float = option(
        -1.0,
        "learning rate at update 0 of the warm-up; negative: 0, for cosine --min-lr",
        metavar="LR",
    )
    stop_min_lr: float = option(
        -1.0, "stop when the learning rate is this low after an epoch", metavar="LR"
    )
    min_lr: float = option(0.0, "cosine: lowest learning rate", metavar="LR")
    lr_period_updates: float = option(
        -1.0, "cosine: updates of the first period; negative: up to --max-update", metavar="N"
    )
    t_mult: float = option(1.0, "cosine: factor from one period to the next", metavar="F")
    lr_shrink: float = option(
        0.1,
        "factor of the learning rate: cosine per period, fixed after --force-anneal, "
        "reduce_lr_on_plateau per plateau",
        metavar="F",
    )
    total_num_update: int = option(
        1_000_000, "polynomial_decay: update at which the decay ends", metavar="N"
    )
    power: float = option(1.0, "polynomial_decay: exponent", metavar="P")
    end_learning_rate: float = option(
        0.0, "polynomial_decay: learning rate after the decay", metavar="LR"
    )
    force_anneal: int | None = option(
        None, "fixed: shrink by --lr-shrink each epoch from this one on", metavar="EPOCH"
    )
    lr_patience: int = option(
        0, "reduce_lr_on_plateau: epochs without improvement to bear", metavar="N"
    )
    lr_threshold: float = option(
        1e-4, "reduce_lr_on_plateau: smallest relative improvement that counts", metavar="F"
    )

    def __post_init__(self) -> None:
        if self.lr_scheduler not in SCHEDULES.names():
            SCHEDULES.get(self.lr_scheduler)
        if not self.lr or min(self.lr) < 0:
            raise ConfigError(f"--lr {self.lr}: expected a positive number")
        if len(self.lr) > 1 and self.lr_scheduler != "fixed":
            raise ConfigError(
                f"--lr with {len(self.lr)} values needs --lr-scheduler fixed, "
                f"not {self.lr_scheduler}"
            )
        if self.warmup_updates is not None and self.warmup_updates < 0:
            raise ConfigError(f"--warmup-updates {self.warmup_updates}: expected 0 or more")
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
