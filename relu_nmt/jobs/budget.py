"""Training within a ``--budget``: the choices of all trainings, and the pace they follow from.

docs/lab/budget.md has the measurements behind the constants.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from relu_nmt.config import flag_of, to_dict
from relu_nmt.config.classes import flat, merged
from relu_nmt.config.fields import all_options
from relu_nmt.errors import ConfigError, counted
from relu_nmt.jobs.training import TrainingRun
from relu_nmt.training.batches import BatchSource
from relu_nmt.training.budgets import LIMITS, PACED, SECONDS, Budget, in_words
from relu_nmt.training.checkpoint import read_metadata
from relu_nmt.training.config import TrainerConfig
from relu_nmt.training.distributed import ProcessGroup
from relu_nmt.training.learner import Learner
from relu_nmt.training.precision import has_fast_bfloat16
from relu_nmt.training.schedules import ScheduleConfig
from relu_nmt.training.update import UpdatePlan, make_update, read_update

RESERVED = 0.01  # share of a budget of time that is kept for the last checkpoint
VALIDATION_COST = 0.4  # updates that take as long as a batch of validation
MOST_VALIDATING = 0.05  # largest share of the time for validations
WARMUP = 0.1  # share of the updates for the warm-up of the rate
MOST_WARMUP = 1 / 3  # largest share of the updates for a warm-up that is longer than WARMUP
VALIDATIONS = 10
LOG_LINES = 50
MOST_BETWEEN_LINES = 100
AVERAGED = 9  # the average of the weights covers about the last 1 / AVERAGED of the updates
MOST_DECAY = 0.9999
GAIN = 0.95  # bfloat16 is chosen if its time is below this share of the time in float32
TIMED_UPDATES = 8
MOST_TRYING = 0.03  # share of a budget of time after which a trial ends early
UNTIMED_UPDATES = 1  # first updates of a trial, which are slow: they compile kernels

SettingsT = TypeVar("SettingsT", bound=Any)


@dataclass(frozen=True)
class Pace:
    """The measured pace of a training, and the sizes on which it depends."""

    seconds: float  # of an update
    updates_per_epoch: int
    weights: int = 0  # parameters of the model
    validation_batches: int = 0
    samples: int = 0  # sentence pairs of an epoch, if a choice depends on them

    @property
    def updates_of_validation(self) -> float:
        """The updates that take as long as a validation."""
        return VALIDATION_COST * self.validation_batches


@dataclass(frozen=True)
class Choices:
    """Chosen settings by name, and the pace of a training with them."""

    values: Mapping[str, Any]
    pace: Pace


def within_budget(
    settings: SettingsT,
    training: TrainingRun,
    trial: Callable[[SettingsT], Pace],
    choose: Callable[[], Choices],
    kept_names: frozenset[str],
    least_warmup: int = 0,
) -> SettingsT:
    """Return settings of a training within ``--budget``. Choose what the user did not.

    ``trial`` measures the pace of a training with such settings. ``choose`` returns the choices of
    a new training besides its length. A training whose budget grows keeps the choices in
    ``kept_names``. It has ``least_warmup`` updates of warm-up if there is time. A flag that says
    when the training ends is a ConfigError.
    """
    config: TrainerConfig = settings.trainer
    assert config.budget is not None
    typed = settings.typed.intersection(LIMITS)
    if typed:
        raise ConfigError(
            f"{flag_of(min(typed))}: --budget {config.budget} says when the training ends; leave "
            "one of the two out"
        )
    if not training.goes_on:
        return with_length(settings, training, choose(), least_warmup)
    # Take the choices of the checkpoint, and its length if the budget is equal.
    assert training.checkpoint is not None, "it goes on"
    stored = flat(read_metadata(training.checkpoint).get("args") or {})
    earlier = stored.get("budget")
    is_equal = earlier is not None and Budget.parse(earlier) == Budget.parse(config.budget)
    names = kept_names | set(PACED) if is_equal else kept_names
    was = "" if is_equal else f" (was {earlier or 'none'})"
    training.say(f"budget {config.budget}{was}: goes on with the choices in {training.checkpoint}")
    settings = filled(settings, {name: stored[name] for name in names & stored.keys()})
    if is_equal:
        return settings
    return with_length(settings, training, Choices({}, trial(settings)), least_warmup)


def given_names(settings: Any) -> set[str]:
    """Return the names of the settings that a flag, a keyword or a file gives."""
    if settings.given:
        return set(settings.given)
    # Settings made in Python do not know what was given: take the values that are not defaults.
    values = flat(to_dict(settings))
    options = all_options(type(settings))
    return {name for name, entry in options.items() if values[name] != entry.default}


def filled(settings: SettingsT, chosen: Mapping[str, Any]) -> SettingsT:
    """Return settings with the chosen values where neither a flag nor a file gives one."""
    values = flat(to_dict(settings))
    options = all_options(type(settings))
    # Leave out choices for another kind of model or data.
    chosen = {name: value for name, value in chosen.items() if name in options}
    # Settings made in Python have no flags: what they give counts as typed.
    given = given_names(settings) - set(LIMITS)
    typed = set(settings.typed) - set(LIMITS) or given
    # Presets stay as they are. Values of a file override choices.
    presets = {name for name, entry in options.items() if entry.presets is not None}
    base = {name: values[name] for name in presets} | chosen
    base |= {name: values[name] for name in given - typed}
    return merged(type(settings), {name: values[name] for name in typed}, base)


def measured_pace(
    objective: nn.Module,
    source: BatchSource,
    valid: Mapping[str, BatchSource],
    config: TrainerConfig,
    process: ProcessGroup,
) -> Pace:
    """Return the pace of a training, measured in some updates of a new model at rate 0."""
    assert config.budget is not None
    most_seconds = MOST_TRYING * (Budget.parse(config.budget).seconds or math.inf)
    # Schedules that end with the training do not know its end yet.
    config = replace(config, schedule=ScheduleConfig(lr_scheduler="fixed"))
    wrapped = process.wrap(objective.train(), config.ddp_backend)
    learner = Learner(objective, config, process, wrapped)
    num_batches = source.begin_epoch(1)
    update_freq = config.update_freq_of(1)
    per_update = update_freq * process.world_size
    # Take batches from the whole epoch, since their lengths differ.
    count = UNTIMED_UPDATES + TIMED_UPDATES
    indices = np.linspace(0, num_batches - 1, count * update_freq).astype(int).tolist()
    seconds = 0.0
    num_timed = 0
    begun = time.monotonic()
    with torch.random.fork_rng():
        for number in range(count):
            chosen = indices[number * update_freq : (number + 1) * update_freq]
            batches = [(source.load(index), 1) for index in chosen]
            start = time.monotonic()
            plan = UpdatePlan(number + 1, 1, lr=0.0, seed=number)
            read_update(learner, make_update(learner, plan, batches))
            if number >= UNTIMED_UPDATES:
                seconds += time.monotonic() - start
                num_timed += 1
                if max(process.gather(time.monotonic() - begun)) > most_seconds:
                    break
    # Give every process the pace of the slowest process.
    slowest = max(process.gather(seconds / num_timed))
    weights = sum(parameter.numel() for parameter in learner.model.parameters())
    validation_batches = sum(valid_source.begin_epoch(1) for valid_source in valid.values())
    return Pace(slowest, -(-num_batches // per_update), weights, validation_batches)


def faster_dtype(
    settings: SettingsT,
    process: ProcessGroup,
    trial: Callable[[SettingsT], Pace],
    choices: Choices,
) -> Choices:
    """Return the choices, with bfloat16 if its updates are faster."""
    if given_names(settings) & {"bf16", "fp16"}:
        return choices
    has_bfloat16 = has_fast_bfloat16()
    if process.device.type == "cuda":
        has_bfloat16 = torch.cuda.is_bf16_supported()
    if has_bfloat16:
        values = {**choices.values, "bf16": True}
        pace = trial(filled(settings, values))
        if pace.seconds < GAIN * choices.pace.seconds:
            return Choices(values, pace)
    return choices


def with_length(
    settings: SettingsT,
    training: TrainingRun,
    choices: Choices,
    least_warmup: int = 0,
) -> SettingsT:
    """Return settings with the choices and the number of updates. Print how long these take."""
    pace = choices.pace
    config: TrainerConfig = settings.trainer
    assert config.budget is not None
    budget = Budget.parse(config.budget)
    # The time before the first update counts only in a new training.
    spent = 0.0
    if not training.goes_on:
        spent = max(training.process.gather(time.monotonic() - training.started))
    updates = planned_updates(budget, pace, spent)
    seconds = None
    if budget.seconds is not None:
        seconds = training_seconds(budget, pace, spent)
    paced = paced_settings(pace, updates, seconds, least_warmup)
    given = given_names(settings)
    if "warmup_epochs" in given:
        del paced["warmup_updates"]
    # A schedule of the user's may depend on the scores at the ends of epochs.
    if "lr_scheduler" in given:
        del paced["validate_interval"]
    settings = filled(settings, {**choices.values, **paced})
    total = in_words(seconds or updates * pace.seconds)
    about = "about " if budget.seconds or budget.epochs else ""
    training.say(
        f"budget {config.budget}: {pace.seconds:.3g} s an update, so {about}"
        f"{counted(updates, 'update')} ({updates / pace.updates_per_epoch:.3g} epochs) in {total}; "
        f"validation every {paced['validate_interval_updates']:,}; checkpoints best and last in "
        f"{config.save_dir}"
    )
    return settings


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


def paced_settings(
    pace: Pace, updates: int, seconds: float | None, least_warmup: int = 0
) -> dict[str, Any]:
    """Return the settings that depend on the updates and on the ``seconds`` of a time budget."""
    # The end, which has a validation, is only about known in a budget of time. Have the one before
    # it half an interval earlier.
    intervals = VALIDATIONS if seconds is None else VALIDATIONS - 0.5
    between = math.ceil(updates / intervals)
    between = max(between, math.ceil(pace.updates_of_validation / MOST_VALIDATING))
    epochs = math.ceil(updates / pace.updates_per_epoch)
    chosen = {
        "max_update": updates,
        "max_epoch": 0,
        "total_num_update": updates,
        "warmup_updates": warmup_updates(updates, least_warmup),
        "ema_decay": round(min(max(0.0, 1 - AVERAGED / updates), MOST_DECAY), 4),
        "validate_interval_updates": between,
        # Do not validate at the ends of epochs as well.
        "validate_interval": epochs,
        "save_interval": max(1, round(between / pace.updates_per_epoch)),
        "log_interval": max(1, min(MOST_BETWEEN_LINES, updates // LOG_LINES)),
    }
    if seconds is not None:
        chosen["stop_time_hours"] = seconds / SECONDS["h"]
    return chosen


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
