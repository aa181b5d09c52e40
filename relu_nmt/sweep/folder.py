"""The folder of a sweep: what it is about, and which models are in it.

Several sweeps may work on one folder, at once or one after the other, with other attentions,
lengths or seeds; the report is about all of them.
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relu_nmt.errors import ConfigError, DataError
from relu_nmt.io.safe_write import write_text
from relu_nmt.sweep.plan import EVALUATE, TRAIN, Step, Training
from relu_nmt.sweep.step_state import FAILED, STATE_ENDING, differences, read_state

SWEEP_FILE = "sweep.json"
MODEL_FILE = "model.json"
MODELS = "models"


@dataclass(frozen=True)
class SweepDescription:
    """What a folder's sweep is about.

    Args:
        data: the data folder.
        gen_subset: split that is evaluated.
        languages: source and target language.
        attentions: in the order of the report; the first is the baseline.
        budget: of each training, in words.
        checkpoint: which one is evaluated.
        command: as typed, without the program.
        environment: machine and versions of the last run.
        planned: models of the last run, with the lengths at which each is evaluated.
        settings: what all its models have in common, as words of a command.
        start: what they start from, in words; empty for random weights.
    """

    data: str
    gen_subset: str
    languages: tuple[str, ...]
    attentions: tuple[str, ...]
    budget: str
    checkpoint: str
    command: tuple[str, ...]
    environment: dict[str, Any]
    planned: tuple[tuple[Training, tuple[int, ...]], ...] = ()
    settings: tuple[str, ...] = ()
    start: str = ""


def read_description(folder: Path) -> SweepDescription | None:
    """Return what the folder's sweep is about; None if there is none.

    Raises:
        DataError: the file is damaged.
    """
    path = folder / SWEEP_FILE
    try:
        values = json.loads(path.read_text("utf-8"))
        planned = [(_training(model), tuple(lengths)) for model, lengths in values["planned"]]
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return SweepDescription(**{**values, "planned": tuple(planned)})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
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
    if earlier is not None:
        for flag in ("data", "gen_subset", "checkpoint"):
            old, new = getattr(earlier, flag), getattr(description, flag)
            if old != new:
                raise ConfigError(
                    f"--save-dir {folder}: its results have {flag.replace('_', '-')} {old}, not "
                    f"{new}; choose another --save-dir"
                )
        if earlier.settings != description.settings and _has_results(folder):
            was, now = differences(earlier.settings, description.settings)
            raise ConfigError(
                f"--save-dir {folder}: its models were made with '{was}' where there is '{now}' "
                "now, and one report is of one setting; choose another --save-dir"
            )
        more = [name for name in description.attentions if name not in earlier.attentions]
        description = dataclasses.replace(description, attentions=(*earlier.attentions, *more))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(dataclasses.asdict(description), indent=1, ensure_ascii=False)
        write_text(folder / SWEEP_FILE, text + "\n")
    except OSError as error:
        raise DataError(f"--save-dir {folder}: cannot be written: {error.strerror}") from error
    return description


def _has_results(folder: Path) -> bool:
    """Say whether a model was trained at least in part; a mistake in the first run is mended."""
    trainings = (
        Step(TRAIN, training, None, folder / MODELS / training.name, ())
        for training in models_in(folder)
    )
    states = map(read_state, trainings)
    return any(state is not None and state.status != FAILED for state in states)


def write_training(folder: Path, training: Training) -> None:
    """Write which model the folder holds.

    Raises:
        DataError: it cannot be written.
    """
    try:
        write_text(folder / MODEL_FILE, json.dumps(dataclasses.asdict(training)) + "\n")
    except OSError as error:
        raise DataError(f"{folder}: cannot be written: {error.strerror}") from error


def models_in(folder: Path) -> dict[Training, tuple[int, ...]]:
    """Return the models of a sweep's folder, with the lengths at which their evaluation has begun.

    Raises:
        DataError: a file is damaged.
    """
    found = {}
    for path in sorted((folder / MODELS).glob(f"*/{MODEL_FILE}")):
        try:
            training = _training(json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError, KeyError) as error:
            # The model itself is well, and the report still knows it from the command.
            raise DataError(f"{path}: cannot read it ({error}); delete it") from error
        found[training] = _evaluated_lengths(path.parent)
    return found


def _training(values: dict[str, Any]) -> Training:
    """Return the model that :func:`write_training` described."""
    return Training(**{**values, "lengths": tuple(values["lengths"])})


def _evaluated_lengths(folder: Path) -> tuple[int, ...]:
    numbers = (
        path.name.removeprefix(f"{EVALUATE}-").removesuffix(STATE_ENDING)
        for path in folder.glob(f"{EVALUATE}-*{STATE_ENDING}")
    )
    return tuple(sorted(int(number) for number in numbers if number.isdigit()))


def merged(
    planned: dict[Training, Sequence[int]], found: dict[Training, tuple[int, ...]]
) -> dict[Training, tuple[int, ...]]:
    """Return all models with the lengths that they are or will be evaluated at."""
    everything = {training: tuple(lengths) for training, lengths in planned.items()}
    for training, lengths in found.items():
        known = everything.get(training, () if training.is_mixture else training.lengths)
        everything[training] = tuple(sorted({*known, *lengths}))
    return everything
