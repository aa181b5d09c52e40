"""The folder of a sweep: its description, its models, and their steps with commands and states.

A step trains a model or evaluates it. It runs one or more commands in order. Several sweeps with
other attentions, lengths or seeds may share a folder, even at the same time. The report covers all
of them.
"""

import itertools
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import eq
from pathlib import Path
from typing import Any, get_type_hints

from relu_nmt.applications.sweep.settings import TOKENIZER, SweepSettings, checked_published
from relu_nmt.config import from_dict
from relu_nmt.config.stored import checked, parse_json
from relu_nmt.errors import ConfigError, DataError, reporting
from relu_nmt.io.safe_write import json_text, plain_file, write_text

STATES = ("pending", "started", "done", "failed", "diverged")
"""States of steps. A crash or mistake is a failure. A loss that is not finite is a divergence."""
PENDING, STARTED, DONE, FAILED, DIVERGED = STATES
FINAL = (DONE, DIVERGED)  # states of steps that do not run again
CONTRASTS = 0  # the ``length`` of the step that scores contrasts
SWEEP_FILE = "sweep.json"
MODELS = "models"

Command = tuple[str, ...]
TOOLS = "relu_nmt.cli."
TORCHRUN = "torch.distributed.run"


# ------------------------------------------------------------------- commands


def tool(name: str, arguments: Sequence[str], processes: int = 1) -> Command:
    """Return the words that run a command of this package, by torchrun if ``processes`` > 1."""
    command = (sys.executable, "-m", f"{TOOLS}{name}", *arguments)
    if processes > 1:
        launcher = ("-m", TORCHRUN, "--standalone", "--nproc-per-node", str(processes))
        return (sys.executable, *launcher, *command[1:])
    return command


def shown_command(command: Sequence[str]) -> list[str]:
    """Return a command as a user types it: ``relu-nmt-train ...``."""
    if list(command[1:3]) == ["-m", TORCHRUN]:
        return ["torchrun", *command[3:]]
    if len(command) > 2 and command[1] == "-m" and command[2].startswith(TOOLS):
        name = command[2].removeprefix(TOOLS).replace("_", "-")
        return [f"relu-nmt-{name}", *command[3:]]
    return list(command)


def arguments_of(command: Sequence[str]) -> list[str]:
    """Return the words after the name of one of this package's commands."""
    name = next(index for index, word in enumerate(command) if word.startswith(TOOLS))
    return list(command[name + 1 :])


def differences(old: Sequence[str], new: Sequence[str]) -> tuple[str, str]:
    """Return the words of each command between their common beginning and end.

    Example:
        >>> differences(["--lr", "1", "--seed", "2"], ["--lr", "3", "--seed", "2"])
        ('--lr 1', '--lr 3')
    """
    same = _num_equal(old, new)
    last = _num_equal(old[same:][::-1], new[same:][::-1])
    differing = []
    for words in (old, new):
        between = list(words[same : len(words) - last])
        if same and between and not between[0].startswith("--"):
            between.insert(0, words[same - 1])  # the flag of this value
        differing.append(shlex.join(between) or "nothing")
    return differing[0], differing[1]


def _num_equal(old: Sequence[str], new: Sequence[str]) -> int:
    """Return the number of equal words at the beginning."""
    equal = itertools.takewhile(bool, map(eq, old, new))
    return len(list(equal))


# ------------------------------------------------------------------- models and steps


@dataclass(frozen=True)
class SweepModel:
    """A model of a sweep."""

    attention: str  # value of --attention, or another name that tells the models apart
    seed: int  # seed of weights, dropout and order of the data
    # Document lengths of its training, in tokens. Empty for a model of images.
    lengths: tuple[int, ...]
    is_mixture: bool = False  # whether lengths are a --doc-mixture

    @property
    def name(self) -> str:
        """Name of its folder."""
        attention = re.sub(r"[^A-Za-z0-9=.+_]", "-", self.attention)
        if not self.lengths:
            return f"{attention}-seed{self.seed}"
        kind = "mix" if self.is_mixture else "L"
        return f"{attention}-{kind}{'+'.join(map(str, self.lengths))}-seed{self.seed}"

    def folder(self, save_dir: str | Path) -> Path:
        """Return its folder in a sweep's folder."""
        return Path(save_dir) / MODELS / self.name

    @property
    def trained_on(self) -> str:
        """The lengths as a value of ``--doc-mixture``."""
        return ",".join(map(str, self.lengths))

    def __str__(self) -> str:
        if not self.lengths:
            return f"{self.attention} seed {self.seed}"
        kind = "mixture" if self.is_mixture else "length"
        return f"{self.attention} {kind} {self.trained_on} seed {self.seed}"


@dataclass(frozen=True)
class Step:
    """The training or an evaluation of a model, with the state of its last run, stored as JSON."""

    model: SweepModel
    # Document length of the evaluation, in tokens. None for a training, CONTRASTS for the
    # contrasts, which have documents of their own.
    length: int | None
    folder: Path  # folder of the model, shared by all its steps
    # Program and arguments of each command.
    commands: tuple[Command, ...] = field(default=(), repr=False)
    status: str = PENDING
    note: str = ""  # the last line of the log, if the step did not succeed
    started: str = ""  # time of the beginning, ISO 8601
    seconds: float = 0.0  # wall time of the last run
    peak_memory: int = 0  # largest resident memory of a process, in bytes
    exit_code: int | None = None  # exit code of the last command, or -N for signal N
    environment: dict[str, Any] = field(default_factory=dict)  # machine and versions of the run

    @property
    def is_training(self) -> bool:
        """True for the training of the model, False for an evaluation."""
        return self.length is None

    @property
    def checkpoints(self) -> Path:
        """The folder of the model's checkpoints."""
        return self.folder / "checkpoints"

    @property
    def shown(self) -> str:
        """The commands as a user types them, in one line."""
        return " && ".join(map(shlex.join, map(shown_command, self.commands)))

    @property
    def words(self) -> list[str]:
        """The words of all commands without the path of Python, which differs between machines."""
        words: list[str] = []
        for command in self.commands:
            words += command[1:]
        return words

    def path(self, ending: str) -> Path:
        """Return the path of one of the step's files, ``train.log`` or ``evaluate-128.log``."""
        kind = {None: "train", CONTRASTS: "contrasts"}.get(self.length, f"evaluate-{self.length}")
        return self.folder / f"{kind}{ending}"

    def stored(self) -> "Step":
        """Return the step as its last run stored it, or this step if it has never begun."""
        return read_step(self.path(".json"), self.length) or self

    def finished(self) -> "Step | None":
        """Return the stored step if it is finished. Refuse a step that ran another command."""
        stored = self.stored()
        old = stored.words
        new = self.words
        # Earlier versions gave variants no tokenizer flag, but sweep.json has one for all models.
        if self.is_training and new.count(TOKENIZER) > old.count(TOKENIZER):
            first = new.index(TOKENIZER)
            del new[first : first + 2]
        has_checkpoint = self.is_training and any(self.checkpoints.glob("*.safetensors"))
        if old != new and (stored.status != FAILED or has_checkpoint):
            old_words, new_words = differences(old, new)
            # To train again, delete the checkpoints too. To evaluate again, keep them.
            mark = self.folder if self.is_training else self.path(".json")
            raise ConfigError(
                f"{self.path('.json')}: '{self}' was {stored.status} with another command: it has "
                f"'{old_words}' where there is '{new_words}' now. Type the old flags, choose "
                f"another --save-dir, or delete {mark} to run it again"
            )
        return stored if stored.status in FINAL else None

    def write(self) -> None:
        """Store the state."""
        path = self.path(".json")
        values = asdict(self)
        del values["length"], values["folder"]
        with reporting(f"{path}: cannot write it"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json_text(values))

    def __str__(self) -> str:
        if self.is_training:
            return f"train {self.model}"
        if self.length == CONTRASTS:
            return f"contrasts of {self.model}"
        return f"evaluate {self.model} at {self.length}"


MACHINE_TEXTS = ("cpu?", "torch?", "python?", "OMP_NUM_THREADS?", "CUDA_VISIBLE_DEVICES?")
MACHINE_FORM = {**dict.fromkeys(MACHINE_TEXTS, str | None), "gpus?": list[str] | None}
# The form of a step in its file, see :func:`checked`. Its exit code is negative for signals.
STEP_FORM = {**get_type_hints(Step), "environment": MACHINE_FORM, "exit_code": float | None}
del STEP_FORM["length"], STEP_FORM["folder"]
SWEEP_FORM = {
    "settings": {"user_modules": tuple[str, ...], "command": tuple[str, ...]},
    "environment": MACHINE_FORM,
    "attentions": tuple[str, ...],
    "published?": dict[str, Any] | None,
    "task?": dict[str, str] | None,
}
"""The form of the description of a sweep."""


def read_json(path: Path) -> Any:
    """Return the content of a file of the sweep."""
    return parse_json(plain_file(path).read_bytes())


def read_step(path: Path, length: int | None = None) -> Step | None:
    """Return the step whose state is in a file, or None without a file."""
    try:
        content = read_json(path)
        values: dict[str, Any] = checked(STEP_FORM, content, "step")
        if values["status"] not in STATES:
            raise ValueError(f"step 'status': expected one of {', '.join(STATES)}")
        return Step(length=length, folder=path.parent, **values)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        reason = f"damaged ({error}); delete it to run the step again"
        raise DataError(f"{path}: {reason}") from error


# ------------------------------------------------------------------- the folder's description


@dataclass(frozen=True)
class SweepDescription:
    """The description of a sweep in its folder, ``sweep.json``."""

    settings: SweepSettings  # of the last run
    environment: dict[str, Any]  # of the last run
    attentions: tuple[str, ...] = ()  # attentions and variants of all runs, the baseline first
    published: dict[str, Any] | None = None  # see :func:`checked_published`
    # Languages, dictionaries and text of the data, in words. Files of earlier versions lack it.
    task: dict[str, str] = field(default_factory=dict)


def read_description(folder: Path) -> SweepDescription | None:
    """Return the description of a folder's sweep, or None if the folder has no sweep."""
    path = folder / SWEEP_FILE
    try:
        content = checked(SWEEP_FORM, read_json(path))
        values = content["settings"]
        # Two fields are no options of SweepSettings.
        user_modules = values.pop("user_modules")
        command = values.pop("command")
        settings = from_dict(SweepSettings, values)
        published = content.get("published")
        if published is not None:
            published = checked_published(published)
        task = {}
        for name, text in (content.get("task") or {}).items():
            task[name.replace("tokeniser", "tokenizer")] = text  # as earlier versions spelled it
        return SweepDescription(
            settings=replace(settings, user_modules=user_modules, command=command),
            environment=content["environment"],
            attentions=content["attentions"],
            published=published,
            task=task,
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, ConfigError) as error:
        raise DataError(f"{path}: cannot read it ({error}); delete it and start again") from error


def write_description(folder: Path, description: SweepDescription) -> SweepDescription:
    """Add the attentions and figures of earlier sweeps to the description. Write and return it."""
    # New attentions come last, so that the baseline stays first.
    attentions = description.settings.systems
    published = description.published
    earlier = read_description(folder)
    if earlier is not None:
        _check_same_setting(folder, earlier.settings, description.settings)
        attentions = tuple(dict.fromkeys([*earlier.attentions, *attentions]))
        published = published or earlier.published
    description = replace(description, attentions=attentions, published=published)
    with reporting(f"--save-dir {folder}: cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / SWEEP_FILE, json_text(asdict(description)))
    return description


def _check_same_setting(folder: Path, old: SweepSettings, new: SweepSettings) -> None:
    """Check that all models of a report share data, split, checkpoint and flags."""
    # Refuse other data, splits and checkpoints, even without results.
    for name in ("data", "gen_subset", "checkpoint"):
        old_value = getattr(old, name)
        new_value = getattr(new, name)
        if old_value != new_value:
            raise ConfigError(
                f"--save-dir {folder}: its results have {name.replace('_', '-')} {old_value}, not "
                f"{new_value}; choose another --save-dir"
            )
    # Allow other flags only while the folder has no results.
    if old.shared_flags != new.shared_flags and has_results(folder):
        earlier_words, words = differences(old.shared_flags, new.shared_flags)
        raise ConfigError(
            f"--save-dir {folder}: its models were made with '{earlier_words}' where there is now "
            f"'{words}', but all models of a report share their flags; choose another --save-dir"
        )


def has_results(folder: Path) -> bool:
    """Return whether a folder has models. If not, the user may still change the settings."""
    return any(training.status != FAILED for training in trainings_in(folder))


def trainings_in(folder: Path) -> list[Step]:
    """Return the trainings that have begun in a sweep's folder."""
    steps = map(read_step, sorted((folder / MODELS).glob("*/train.json")))
    return [step for step in steps if step is not None]


def planned_models(settings: SweepSettings) -> dict[SweepModel, tuple[int, ...]]:
    """Return the models of a sweep, seed by seed, with the lengths of their evaluations."""
    mixture = settings.doc_mixture
    models = {}
    for seed in settings.seeds:
        if mixture:
            for attention in settings.systems:
                models[SweepModel(attention, seed, mixture, True)] = settings.lengths
            continue
        for length in settings.lengths:
            for attention in settings.systems:
                models[SweepModel(attention, seed, (length,))] = (length,)
    return models


def models_in(folder: Path, settings: SweepSettings) -> dict[SweepModel, tuple[int, ...]]:
    """Return the models that are planned or have begun, with the lengths of their evaluations."""
    models = planned_models(settings)
    for training in trainings_in(folder):
        model = training.model
        lengths = set(models.get(model, ()))
        if model not in models and not model.is_mixture:
            lengths.update(model.lengths)
        for path in training.folder.glob("evaluate-*.json"):
            length = path.stem.removeprefix("evaluate-")
            if length.isdigit():  # as in evaluate-128.json, not in evaluate-128.results.json
                lengths.add(int(length))
        models[model] = tuple(sorted(lengths))
    return models


def gpu_names() -> list[str]:
    """Return the names of the GPUs. Another process asks, so that the sweep itself uses no GPU."""
    names = "map(torch.cuda.get_device_name, range(torch.cuda.device_count()))"
    code = f"import json, torch; print(json.dumps(list({names})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ConfigError(f"the GPUs cannot be listed: {lines[-1]}")
    return json.loads(done.stdout)
