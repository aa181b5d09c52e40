"""What is known of a step between runs: a JSON file beside its results, whole or absent."""

import dataclasses
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from relu_nmt.errors import ConfigError, DataError
from relu_nmt.io.safe_write import write_text
from relu_nmt.sweep.plan import TRAIN, Command, Step

STARTED, DONE, FAILED, DIVERGED = "started", "done", "failed", "diverged"
FINAL = (DONE, DIVERGED)
"""What is not run again; a failed step is."""
STATE_ENDING = ".json"


@dataclass(frozen=True)
class StepState:
    """How a step ended, or that it has begun.

    Args:
        status: started, done, failed (a crash, a mistake) or diverged (not finite).
        commands: program and arguments of each.
        note: the last line of the log, if it did not succeed.
        started: when, ISO 8601.
        seconds: how long the last run took, wall time.
        peak_memory: most resident memory of a process, in bytes.
        exit_code: of the last command; -N for signal N.
        environment: machine and versions that it ran with.
    """

    status: str
    commands: tuple[Command, ...]
    note: str = ""
    started: str = ""
    seconds: float = 0.0
    peak_memory: int = 0
    exit_code: int | None = None
    environment: dict[str, Any] = field(default_factory=dict)


def read_state(step: Step) -> StepState | None:
    """Return the state of a step, None if it was never begun.

    Raises:
        DataError: the file is damaged or cannot be read.
    """
    path = step.path(STATE_ENDING)
    try:
        values = json.loads(path.read_text("utf-8"))
        values["commands"] = tuple(map(tuple, values["commands"]))
        return StepState(**values)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path}: damaged ({error}); delete it to run the step again") from error


def write_state(step: Step, state: StepState) -> None:
    """Write the state of a step.

    Raises:
        DataError: the folder cannot be written.
    """
    path = step.path(STATE_ENDING)
    try:
        write_text(path, json.dumps(dataclasses.asdict(state), indent=1) + "\n")
    except OSError as error:
        raise DataError(f"{path}: cannot write it: {error.strerror}") from error


def check_same_commands(step: Step, state: StepState | None) -> None:
    """See that what has been run is what is to be run.

    A failed step may change: the mistake is mended. Not so a training that left a checkpoint, which
    would go on with other settings than it began with.

    Raises:
        ConfigError: the commands differ.
    """
    if state is None:
        return
    old, new = (_comparable(commands) for commands in (state.commands, step.commands))
    if old == new:
        return
    has_checkpoint = step.kind == TRAIN and any(step.checkpoints.glob("*.safetensors"))
    if state.status == FAILED and not has_checkpoint:
        return
    was, now = differences(old, new)
    # A training goes on from its checkpoints; an evaluation needs them.
    mark = step.folder if step.kind == TRAIN else step.path(STATE_ENDING)
    raise ConfigError(
        f"{step.path(STATE_ENDING)}: '{step}' was {state.status} with another command: it has "
        f"'{was}' where there is '{now}' now. Type the old flags, choose another --save-dir, or "
        f"delete {mark} to run it anew"
    )


def _comparable(commands: Sequence[Sequence[str]]) -> list[str]:
    """Return the words, without the path of Python: it may differ between machines."""
    return [word for command in commands for word in command[1:]]


def differences(old: Sequence[str], new: Sequence[str]) -> tuple[str, str]:
    """Return the words in which commands differ, those of the old one and those of the new."""
    was, now = _around_difference(old, new), _around_difference(new, old)
    return " ".join(was) or "nothing", " ".join(now) or "nothing"


def _around_difference(words: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the words that differ, with the flag before them."""
    first = 0
    while first < min(len(words), len(others)) and words[first] == others[first]:
        first += 1
    last = 0
    shorter = min(len(words), len(others)) - first
    while last < shorter and words[len(words) - 1 - last] == others[len(others) - 1 - last]:
        last += 1
    if first and words[first : first + 1] and not words[first].startswith("--"):
        first -= 1
    return [shlex.quote(word) for word in words[first : len(words) - last]]
