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
from relu_nmt.sweep.plan import MODELS
from relu_nmt.sweep.steps import (
    EVALUATE,
    FAILED,
    STATE_ENDING,
    TRAIN,
    StepState,
    SweepModel,
    differences,
    model_from,
)

SWEEP_FILE = "sweep.json"


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
    planned: tuple[tuple[SweepModel, tuple[int, ...]], ...] = ()
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
        planned = [(model_from(model), tuple(lengths)) for model, lengths in values["planned"]]
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
        # A mistake in the first run, which left no result, may be mended.
        if earlier.settings != description.settings and any(
            state.status != FAILED for state, _ in _trainings_in(folder)
        ):
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


def _trainings_in(folder: Path) -> list[tuple[StepState, Path]]:
    """Return the state of each model's training, with the model's folder."""
    paths = sorted((folder / MODELS).glob(f"*/{TRAIN}{STATE_ENDING}"))
    return [(state, path.parent) for path in paths if (state := StepState.read(path)) is not None]


def models_in(
    folder: Path, planned: Sequence[tuple[SweepModel, Sequence[int]]] = ()
) -> dict[SweepModel, tuple[int, ...]]:
    """Return all models of a sweep's folder, with the lengths of their evaluations.

    Args:
        folder: of the sweep.
        planned: models, there or not, with the lengths that they will be evaluated at; others are
            evaluated at the lengths at which that has begun, or that they were trained on.

    Raises:
        DataError: a file is damaged.
    """
    found = {model: tuple(lengths) for model, lengths in planned}
    for state, own_folder in _trainings_in(folder):
        model = state.model
        names = (path.stem for path in own_folder.glob(f"{EVALUATE}-*{STATE_ENDING}"))
        numbers = (name.removeprefix(f"{EVALUATE}-") for name in names)
        begun = {int(number) for number in numbers if number.isdigit()}
        known = found.get(model, () if model.is_mixture else model.lengths)
        found[model] = tuple(sorted({*known, *begun}))
    return found
