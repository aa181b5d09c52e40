"""The folder of a sweep: what it is about, and which models are in it.

Several sweeps may work on one folder, at once or one after the other, with other attentions,
lengths or seeds; the report is about all of them.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relu_nmt.config import from_dict
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.io.safe_write import write_text
from relu_nmt.sweep.plan import MODELS, SweepPlan
from relu_nmt.sweep.settings import SweepSettings
from relu_nmt.sweep.steps import (
    EVALUATE,
    FAILED,
    STATE_ENDING,
    TRAIN,
    StepState,
    SweepModel,
    differences,
)

SWEEP_FILE = "sweep.json"


@dataclass(frozen=True)
class SweepDescription:
    """What a folder's sweep is about.

    Args:
        settings: of the last run.
        environment: machine and versions of the last run.
        attentions: of all runs, in the order of the report; the first is the baseline.
    """

    settings: SweepSettings
    environment: dict[str, Any]
    attentions: tuple[str, ...] = ()


def read_description(folder: Path) -> SweepDescription | None:
    """Return what the folder's sweep is about; None if there is none.

    Raises:
        DataError: the file is damaged.
    """
    path = folder / SWEEP_FILE
    try:
        found = json.loads(path.read_text("utf-8"))
        values = found["settings"]
        typed: dict[str, Any] = {
            name: tuple(values.pop(name)) for name in ("user_modules", "command")
        }
        settings = dataclasses.replace(from_dict(SweepSettings, values), **typed)
        return SweepDescription(settings, found["environment"], tuple(found["attentions"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, ConfigError) as error:
        raise DataError(f"{path}: cannot read it ({error}); delete it and start again") from error


def write_description(folder: Path, description: SweepDescription) -> SweepDescription:
    """Write what the sweep is about.

    Attentions of earlier sweeps in the folder stay known, and the first of all the baseline.

    Returns:
        What was written.

    Raises:
        ConfigError: the folder's results are of other data, another split or other settings, so
            that their mean would mean nothing.
        DataError: it cannot be written.
    """
    earlier = read_description(folder)
    known = () if earlier is None else earlier.attentions
    if earlier is not None:
        _check_same_setting(folder, earlier.settings, description.settings)
    attentions = tuple(dict.fromkeys([*known, *description.settings.sweep.attentions]))
    description = dataclasses.replace(description, attentions=attentions)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(dataclasses.asdict(description), indent=1, ensure_ascii=False)
        write_text(folder / SWEEP_FILE, text + "\n")
    except OSError as error:
        raise DataError(f"--save-dir {folder}: cannot be written: {error.strerror}") from error
    return description


def _check_same_setting(folder: Path, old: SweepSettings, new: SweepSettings) -> None:
    """See that one report is of one setting.

    Raises:
        ConfigError: it would not be.
    """
    for flag, was, now in (
        ("data", old.data, new.data),
        ("gen-subset", old.sweep.gen_subset, new.sweep.gen_subset),
        ("checkpoint", old.sweep.checkpoint, new.sweep.checkpoint),
    ):
        if was != now:
            raise ConfigError(
                f"--save-dir {folder}: its results have {flag} {was}, not {now}; choose another "
                "--save-dir"
            )
    flags = [SweepPlan(settings).shared_flags for settings in (old, new)]
    # A mistake in the first run, which left no result, may be mended.
    if flags[0] != flags[1] and any(s.status != FAILED for s, _ in _trainings_in(folder)):
        was, now = differences(*flags)
        raise ConfigError(
            f"--save-dir {folder}: its models were made with '{was}' where there is '{now}' now, "
            "and one report is of one setting; choose another --save-dir"
        )


def _trainings_in(folder: Path) -> list[tuple[StepState, Path]]:
    """Return the state of each model's training, with the model's folder."""
    paths = sorted((folder / MODELS).glob(f"*/{TRAIN}{STATE_ENDING}"))
    return [(state, path.parent) for path in paths if (state := StepState.read(path)) is not None]


def models_in(
    folder: Path, settings: SweepSettings | None = None
) -> dict[SweepModel, tuple[int, ...]]:
    """Return all models of a sweep's folder, with the lengths of their evaluations.

    Args:
        folder: of the sweep.
        settings: of the last run: its models belong to the folder even if they are not there yet;
            others are evaluated at the lengths at which that has begun, or that they learnt.

    Raises:
        DataError: a file is damaged.
    """
    found = {}
    if settings is not None:
        plan = SweepPlan(settings)
        found = {model: plan.evaluated_lengths(model) for model in plan.models()}
    for state, own_folder in _trainings_in(folder):
        model = state.model
        names = (path.stem for path in own_folder.glob(f"{EVALUATE}-*{STATE_ENDING}"))
        numbers = (name.removeprefix(f"{EVALUATE}-") for name in names)
        begun = {int(number) for number in numbers if number.isdigit()}
        known = found.get(model, () if model.is_mixture else model.lengths)
        found[model] = tuple(sorted({*known, *begun}))
    return found
