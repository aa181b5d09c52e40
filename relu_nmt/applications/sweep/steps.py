"""A step of a sweep, a training or an evaluation: its files, its lock, and how it ended."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from relu_nmt.errors import ConfigError, DataError
from relu_nmt.io.safe_write import write_text

STARTED, DONE, FAILED, DIVERGED = "started", "done", "failed", "diverged"
FINAL = (DONE, DIVERGED)
"""What is not run again; a failed step is."""

CONTRASTS = 0
"""In place of a document length: the step that scores contrasts."""

Command = tuple[str, ...]


@dataclass(frozen=True)
class SweepModel:
    """A model.

    Args:
        attention: as ``--attention`` takes it, or the name of what else tells models apart.
        seed: of weights, dropout and order of the data.
        lengths: document lengths that it learns, in tokens; none for a model of images.
        is_mixture: whether they are a ``--doc-mixture``.
    """

    attention: str
    seed: int
    lengths: tuple[int, ...]
    is_mixture: bool = False

    @property
    def name(self) -> str:
        """Name of its folder."""
        lengths = "+".join(map(str, self.lengths))
        lengths = f"mix{lengths}-" if self.is_mixture else f"L{lengths}-" if lengths else ""
        return f"{re.sub(r'[^A-Za-z0-9=.+_]', '-', self.attention)}-{lengths}seed{self.seed}"

    @property
    def trained_on(self) -> str:
        """The lengths, as ``--doc-mixture`` takes them."""
        return ",".join(map(str, self.lengths))

    def __str__(self) -> str:
        what = "mixture" if self.is_mixture else "length"
        learnt = f" {what} {self.trained_on}" if self.lengths else ""
        return f"{self.attention}{learnt} seed {self.seed}"


@dataclass(frozen=True)
class Step:
    """One or more commands that are run together: a training, or an evaluation of its model.

    Args:
        model: the model.
        length: document length of the evaluation, in tokens; None for a training, 0 for the
            contrasts, which have documents of their own.
        folder: of the model, for all its steps.
        commands: program and arguments of each, run one after the other.
    """

    model: SweepModel
    length: int | None
    folder: Path
    commands: tuple[Command, ...] = field(default=(), repr=False)

    @property
    def is_training(self) -> bool:
        """Return whether it trains the model."""
        return self.length is None

    def path(self, ending: str) -> Path:
        """Return the path of one of the step's files, ``train.log`` or ``evaluate-128.log``."""
        kind = {None: "train", CONTRASTS: "contrasts"}.get(self.length, f"evaluate-{self.length}")
        return self.folder / f"{kind}{ending}"

    @property
    def state(self) -> "StepState | None":
        """How it ended, see :meth:`StepState.read`."""
        return StepState.read(self.path(".json"))

    @property
    def checkpoints(self) -> Path:
        """The folder of the model's checkpoints."""
        return self.folder / "checkpoints"

    def checkpoint_of(self, flag: str) -> Path | None:
        """Return the path behind a flag such as ``--path`` or ``--finetune-from-model``, if any."""
        words = self.commands[0]
        return Path(words[words.index(flag) + 1]) if flag in words else None

    def __str__(self) -> str:
        if self.is_training:
            return f"train {self.model}"
        if self.length == CONTRASTS:
            return f"contrasts of {self.model}"
        return f"evaluate {self.model} at {self.length}"


@dataclass(frozen=True)
class StepState:
    """How a step ended, or that it has begun: a JSON file beside its results.

    Args:
        status: started, done, failed (a crash, a mistake) or diverged (not finite).
        commands: program and arguments of each.
        model: the model.
        note: the last line of the log, if it did not succeed.
        started: when, ISO 8601.
        seconds: how long the last run took, wall time.
        peak_memory: most resident memory of a process, in bytes.
        exit_code: of the last command; -N for signal N.
        environment: machine and versions that it ran with.
    """

    status: str
    commands: tuple[Command, ...]
    model: SweepModel
    note: str = ""
    started: str = ""
    seconds: float = 0.0
    peak_memory: int = 0
    exit_code: int | None = None
    environment: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "StepState | None":
        """Return what a file holds, None if there is none: the step was never begun.

        Raises:
            DataError: the file is damaged or cannot be read.
        """
        try:
            values = json.loads(path.read_text("utf-8"))
            values["commands"] = tuple(map(tuple, values["commands"]))
            model = values["model"]
            values["model"] = SweepModel(**{**model, "lengths": tuple(model["lengths"])})
            return cls(**values)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, KeyError) as error:
            reason = f"damaged ({error}); delete it to run the step again"
            raise DataError(f"{path}: {reason}") from error

    def write(self, step: Step) -> None:
        """Store it as the state of a step.

        Raises:
            DataError: the folder cannot be written.
        """
        path = step.path(".json")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(asdict(self), indent=1) + "\n")
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
    # Without the path of Python: it may differ between machines.
    old, new = (
        [word for command in commands for word in command[1:]]
        for commands in (state.commands, step.commands)
    )
    if old == new:
        return
    has_checkpoint = step.is_training and any(step.checkpoints.glob("*.safetensors"))
    if state.status == FAILED and not has_checkpoint:
        return
    was, now = differences(old, new)
    # A training goes on from its checkpoints; an evaluation needs them.
    mark = step.folder if step.is_training else step.path(".json")
    raise ConfigError(
        f"{step.path('.json')}: '{step}' was {state.status} with another command: it has "
        f"'{was}' where there is '{now}' now. Type the old flags, choose another --save-dir, or "
        f"delete {mark} to run it anew"
    )


def differences(old: Sequence[str], new: Sequence[str]) -> tuple[str, str]:
    """Return the words between what two commands begin and end with alike, of each of them.

    Example:
        >>> differences(["--lr", "1", "--seed", "2"], ["--lr", "3", "--seed", "2"])
        ('--lr 1', '--lr 3')
    """
    same = _num_alike(old, new)
    rest_old, rest_new = list(old[same:]), list(new[same:])
    last = _num_alike(rest_old[::-1], rest_new[::-1])
    found = []
    for words, rest in ((old, rest_old), (new, rest_new)):
        between = rest[: len(rest) - last]
        if same and between and not between[0].startswith("--"):
            between.insert(0, words[same - 1])  # the flag whose value it is
        found.append(shlex.join(between) or "nothing")
    return found[0], found[1]


def _num_alike(old: Sequence[str], new: Sequence[str]) -> int:
    pairs = enumerate(zip(old, new, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(old), len(new)))
