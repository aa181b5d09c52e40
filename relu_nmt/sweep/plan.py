"""The steps of a sweep: which models are trained, where each is evaluated, with which commands.

A sweep with a model for each length and one with models that learn several lengths at once differ
in the trainings only; everything behind them works on steps.
"""

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from relu_nmt.errors import ConfigError
from relu_nmt.sweep.settings import SweepConfig

DEFAULT_ARCH = "reluformer"
FAMILIES = ("reluformer", "transformer")
# Typed flags come later on the command line and win.
TRAIN_DEFAULTS = ("--log-format", "json", "--log-interval", "50", "--telemetry-interval", "0")
TRAIN, EVALUATE = "train", "evaluate"
OUTPUT_SEPARATOR = "tag"

Command = tuple[str, ...]


@dataclass(frozen=True)
class Training:
    """A model.

    Args:
        attention: as ``--attention`` takes it.
        seed: of weights, dropout and order of the data.
        lengths: document lengths that it learns, in tokens.
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
        lengths = f"mix{lengths}" if self.is_mixture else f"L{lengths}"
        return f"{re.sub(r'[^A-Za-z0-9=.+_]', '-', self.attention)}-{lengths}-seed{self.seed}"

    @property
    def trained_on(self) -> str:
        """The lengths, as ``--doc-mixture`` takes them."""
        return ",".join(map(str, self.lengths))

    def __str__(self) -> str:
        what = "mixture" if self.is_mixture else "length"
        return f"{self.attention} {what} {self.trained_on} seed {self.seed}"


@dataclass(frozen=True)
class Step:
    """One or more commands that are run together: a training, or an evaluation of its model.

    Args:
        kind: ``train`` or ``evaluate``.
        training: the model.
        length: document length of the evaluation, in tokens; None for a training.
        folder: of the model, for all its steps.
        commands: program and arguments of each, run one after the other.
    """

    kind: str
    training: Training
    length: int | None
    folder: Path
    commands: tuple[Command, ...] = field(repr=False)

    @property
    def stem(self) -> str:
        """What the names of the step's files begin with."""
        return TRAIN if self.kind == TRAIN else f"{EVALUATE}-{self.length}"

    def path(self, ending: str) -> Path:
        """Return the path of one of the step's files, ``train.log``."""
        return self.folder / f"{self.stem}{ending}"

    @property
    def checkpoints(self) -> Path:
        """The folder of the model's checkpoints."""
        return self.folder / "checkpoints"

    @property
    def evaluated_checkpoint(self) -> Path | None:
        """The checkpoint that an evaluation translates with."""
        return self._path_behind("--path") if self.kind == EVALUATE else None

    @property
    def start(self) -> Path | None:
        """The checkpoint that a training starts from, None for random weights."""
        return self._path_behind("--finetune-from-model") if self.kind == TRAIN else None

    def _path_behind(self, flag: str) -> Path | None:
        words = self.commands[0]
        return Path(words[words.index(flag) + 1]) if flag in words else None

    def __str__(self) -> str:
        if self.kind == TRAIN:
            return f"train {self.training}"
        return f"evaluate {self.training} at {self.length}"


@dataclass(frozen=True)
class Plan:
    """All steps of a sweep.

    Args:
        data: the data folder.
        config: what is varied.
        train_flags: further flags of relu-nmt-train.
        arch: the ``--arch`` among them.
        user_modules: files that register attentions.
        without_weights: attentions of which there are no statistics.

    Raises:
        ConfigError: no budget.

    Example:
        >>> from relu_nmt.sweep.settings import Budget
        >>> config = SweepConfig(
        ...     (128, 512), ("softmax",), (1, 2), Budget(updates=9), save_dir="out"
        ... )
        >>> plan = Plan("data-bin", config)
        >>> [str(training) for training in plan.trainings()][:2]
        ['softmax length 128 seed 1', 'softmax length 512 seed 1']
        >>> len(plan.steps())
        8
    """

    data: str
    config: SweepConfig
    train_flags: tuple[str, ...] = ()
    arch: str = DEFAULT_ARCH
    user_modules: tuple[str, ...] = ()
    without_weights: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.config.budget is None:
            raise ConfigError("--budget: say how long each model is trained, as 4000u or 15m")

    @property
    def settings(self) -> tuple[str, ...]:
        """What all models of a report have in common, as words of a command."""
        config = self.config
        start = () if config.start_from is None else ("--start-from", str(Path(config.start_from)))
        return (
            *config.budget.flags,
            *start,
            *("--generate-flags", shlex.join(config.generate_flags)),
            *self.train_flags,
        )

    def trainings(self) -> list[Training]:
        """Return the models: all of a seed before those of the next one."""
        config = self.config
        learnt = [(length,) for length in config.lengths]
        if config.doc_mixture:
            learnt = [config.doc_mixture]
        return [
            Training(attention, seed, lengths, bool(config.doc_mixture))
            for seed in config.seeds
            for lengths in learnt
            for attention in config.attentions
        ]

    def evaluated_lengths(self, training: Training) -> tuple[int, ...]:
        """Return the document lengths that a model is evaluated at, in tokens."""
        return self.config.lengths if training.is_mixture else training.lengths

    def steps(self) -> list[Step]:
        """Return all steps, each model's training before its evaluations."""
        return [step for training in self.trainings() for step in self.steps_of(training)]

    def steps_of(self, training: Training) -> list[Step]:
        """Return the steps of a model."""
        folder = model_folder(self.config.save_dir, training)
        steps = [Step(TRAIN, training, None, folder, self._train_commands(training, folder))]
        for length in self.evaluated_lengths(training):
            command = self._generate_command(training, length, folder)
            steps.append(Step(EVALUATE, training, length, folder, (command,)))
        return steps

    def _train_commands(self, training: Training, folder: Path) -> tuple[Command, ...]:
        config, checkpoints = self.config, str(folder / "checkpoints")
        length_flag = "--doc-mixture" if training.is_mixture else "--max-doc-tokens"
        averaged = config.averaged
        train = tool(
            "train",
            self.data,
            *self._user_flags(),
            *TRAIN_DEFAULTS,
            *(() if averaged else ("--no-epoch-checkpoints",)),
            *_without_arch(self.train_flags),
            *attention_flags(self.arch, training.attention),
            *(length_flag, training.trained_on),
            *config.budget.flags,
            *self._start_flags(training),
            *("--seed", str(training.seed), "--save-dir", checkpoints),
        )
        if averaged is None:
            return (train,)
        average = tool(
            "average",
            *("--inputs", checkpoints, "--num-update-checkpoints", str(averaged)),
            *("--output", self._checkpoint(folder)),
        )
        return (train, average)

    def _start_flags(self, training: Training) -> tuple[str, ...]:
        if self.config.start_from is None:
            return ()
        sentences = Training(training.attention, training.seed, (1,))
        folder = model_folder(self.config.start_from, sentences)
        return ("--finetune-from-model", self._checkpoint(folder))

    def _generate_command(self, training: Training, length: int, folder: Path) -> Command:
        stem = str(folder / f"{EVALUATE}-{length}")
        # With <d> lines an empty document is still a document.
        flags = ["--output", f"{stem}.txt", "--output-separator", OUTPUT_SEPARATOR]
        flags += ["--results", f"{stem}.results.json"]
        if training.attention not in self.without_weights:
            flags += ["--attention-stats", f"{stem}.attention.json"]
        return tool(
            "generate",
            self.data,
            *self._user_flags(),
            *("--path", self._checkpoint(folder), "--gen-subset", self.config.gen_subset),
            *("--max-doc-tokens", str(length), "--quiet", "--no-progress-bar"),
            *self.config.generate_flags,
            *flags,
        )

    def _checkpoint(self, folder: Path) -> str:
        """Return the checkpoint to evaluate."""
        if self.config.averaged is not None:
            return str(folder / "checkpoints" / "average.safetensors")
        return str(folder / "checkpoints" / f"checkpoint_{self.config.checkpoint}.safetensors")

    def _user_flags(self) -> list[str]:
        return [word for path in self.user_modules for word in ("--user-module", path)]


def model_folder(save_dir: str, training: Training) -> Path:
    """Return the folder of a model."""
    return Path(save_dir) / "models" / training.name


def tool(name: str, *arguments: str) -> Command:
    """Return the command that runs one of the toolkit's own, in this Python."""
    return (sys.executable, "-m", f"relu_nmt.cli.{name}", *arguments)


def attention_flags(arch: str, attention: str) -> tuple[str, ...]:
    """Return the flags for an attention, in the shape of an ``--arch`` preset.

    The presets come in pairs, reluformer* with gamma and regulariser of the paper and transformer*
    without: ReLUFormers take the one, all others the other.

    Raises:
        ConfigError: no such pair.
    """
    family = next((name for name in FAMILIES if arch.startswith(name)), None)
    if family is None:
        raise ConfigError(f"--arch {arch}: expected {' or '.join(f'{n}*' for n in FAMILIES)}")
    shape = arch.removeprefix(family)
    name = attention.partition(":")[0]
    if name != "reluformer":
        return ("--arch", f"transformer{shape}", "--attention", attention)
    typed = ("--attention", attention) if attention != name else ()
    return ("--arch", f"reluformer{shape}", *typed)


def _without_arch(flags: Sequence[str]) -> list[str]:
    """Return flags without the architecture, which each attention has its own of."""
    kept: list[str] = []
    skip = False
    for word in flags:
        if not skip and word not in ("--arch", "-a") and not word.startswith("--arch="):
            kept.append(word)
        skip = not skip and word in ("--arch", "-a")
    return kept


def shown_command(command: Sequence[str]) -> list[str]:
    """Return a command as a user types it: ``relu-nmt-train ...``."""
    if len(command) > 2 and command[1] == "-m" and command[2].startswith("relu_nmt.cli."):
        name = command[2].rpartition(".")[2].replace("_", "-")
        return [f"relu-nmt-{name}", *command[3:]]
    return list(command)
