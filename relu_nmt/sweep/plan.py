"""The steps of a sweep: which models are trained, where each is evaluated, with which commands.

A sweep with a model for each length and one with models that learn several lengths at once differ
in the trainings only; everything behind them works on steps.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relu_nmt.attention.spec import AttentionSpec
from relu_nmt.config import flag_of
from relu_nmt.models.architectures import architectures
from relu_nmt.sweep.settings import SweepSettings
from relu_nmt.sweep.steps import Command, Step, Training

MODELS = "models"
OUTPUT_SEPARATOR = "tag"
# A typed flag comes later on the command line and wins.
TRAIN_DEFAULTS = ("--log-interval", "50")


@dataclass(frozen=True)
class SweepPlan:
    """All steps of a sweep.

    Args:
        settings: what is varied, and what stays.
        without_weights: attentions of which there are no statistics.

    Example:
        >>> from relu_nmt.sweep.settings import SweepConfig, TrainingBudget
        >>> budget = TrainingBudget(updates=9)
        >>> config = SweepConfig((128, 512), ("softmax",), (1, 2), budget, save_dir="out")
        >>> plan = SweepPlan(SweepSettings("data-bin", config))
        >>> [str(training) for training in plan.trainings()][:2]
        ['softmax length 128 seed 1', 'softmax length 512 seed 1']
        >>> len(plan.steps())
        8
    """

    settings: SweepSettings
    without_weights: frozenset[str] = frozenset()

    @property
    def shared_flags(self) -> tuple[str, ...]:
        """What all models of a report have in common, as words of a command."""
        config = self.settings.config
        start = () if config.start_from is None else ("--start-from", str(Path(config.start_from)))
        return (
            *config.budget.flags,
            *start,
            *("--generate-flags", shlex.join(config.generate_flags)),
            *self.settings.train_flags,
        )

    def trainings(self) -> list[Training]:
        """Return the models: all of a seed before those of the next one."""
        config = self.settings.config
        learnt = [config.doc_mixture] if config.doc_mixture else [(n,) for n in config.lengths]
        return [
            Training(attention, seed, lengths, bool(config.doc_mixture))
            for seed in config.seeds
            for lengths in learnt
            for attention in config.attentions
        ]

    def evaluated_lengths(self, training: Training) -> tuple[int, ...]:
        """Return the document lengths that a model is evaluated at, in tokens."""
        return self.settings.config.lengths if training.is_mixture else training.lengths

    def steps(self) -> list[Step]:
        """Return all steps, each model's training before its evaluations."""
        return [step for training in self.trainings() for step in self.steps_of(training)]

    def steps_of(self, training: Training) -> list[Step]:
        """Return the steps of a model."""
        folder = model_folder(self.settings.config.save_dir, training)
        steps = [Step(training, None, folder, self._train_commands(training, folder))]
        for length in self.evaluated_lengths(training):
            step = Step(training, length, folder)
            command = self._generate_command(step)
            steps.append(Step(training, length, folder, (command,)))
        return steps

    def _train_commands(self, training: Training, folder: Path) -> tuple[Command, ...]:
        config, checkpoints = self.settings.config, str(folder / "checkpoints")
        preset_flags, attention = with_preset(training.attention)
        start = []
        if config.start_from is not None:
            sentences = Training(training.attention, training.seed, (1,))
            start = ["--finetune-from-model"]
            start += [self._checkpoint(model_folder(config.start_from, sentences))]
        train = tool(
            "train",
            self.settings.data,
            *self._user_flags(),
            *TRAIN_DEFAULTS,
            *(() if config.averaged else ("--no-epoch-checkpoints",)),
            *preset_flags,
            *self.settings.train_flags,
            *("--attention", attention),
            "--doc-mixture" if training.is_mixture else "--max-doc-tokens",
            training.trained_on,
            *config.budget.flags,
            *start,
            *("--seed", str(training.seed), "--save-dir", checkpoints),
        )
        if config.averaged is None:
            return (train,)
        average = tool(
            "average",
            *("--inputs", checkpoints, "--num-update-checkpoints", str(config.averaged)),
            *("--output", self._checkpoint(folder)),
        )
        return (train, average)

    def _generate_command(self, step: Step) -> Command:
        config = self.settings.config
        measured = self.settings.attention_stats
        measured = measured and step.training.attention not in self.without_weights
        return tool(
            "generate",
            self.settings.data,
            *self._user_flags(),
            *("--path", self._checkpoint(step.folder), "--gen-subset", config.gen_subset),
            *("--max-doc-tokens", str(step.length), "--quiet", "--no-progress-bar"),
            *config.generate_flags,
            # With <d> lines an empty document is still a document.
            *("--output", str(step.path(".txt")), "--output-separator", OUTPUT_SEPARATOR),
            *("--results", str(step.path(".results.json"))),
            *(["--attention-stats", str(step.path(".attention.json"))] if measured else []),
        )

    def _checkpoint(self, folder: Path) -> str:
        """Return the checkpoint of a model to evaluate."""
        config = self.settings.config
        name = "average" if config.averaged else f"checkpoint_{config.checkpoint}"
        return str(folder / "checkpoints" / f"{name}.safetensors")

    def _user_flags(self) -> list[str]:
        return [word for path in self.settings.user_modules for word in ("--user-module", path)]


def model_folder(save_dir: str, training: Training) -> Path:
    """Return the folder of a model."""
    return Path(save_dir) / MODELS / training.name


def tool(name: str, *arguments: str) -> Command:
    """Return the command that runs one of the toolkit's own, in this Python."""
    return (sys.executable, "-m", f"relu_nmt.cli.{name}", *arguments)


def shown_command(command: Sequence[str]) -> list[str]:
    """Return a command as a user types it: ``relu-nmt-train ...``."""
    if len(command) > 2 and command[1] == "-m" and command[2].startswith("relu_nmt.cli."):
        name = command[2].rpartition(".")[2].replace("_", "-")
        return [f"relu-nmt-{name}", *command[3:]]
    return list(command)


def with_preset(attention: str) -> tuple[list[str], str]:
    """Return the flags of an attention's preset, whatever ``--arch`` says, and the attention.

    The preset is that of the architecture of the attention's name; an attention without one has
    no regulariser.

    Example:
        >>> with_preset("softmax")[1], with_preset("reluformer")[1], with_preset("reluformer:gamma=3")[1]
        ('softmax', 'reluformer:gamma=2', 'reluformer:gamma=3')
    """  # noqa: E501
    name = AttentionSpec.parse(attention).name
    preset = architectures[name] if name in architectures.names() else {}
    flags = []
    for field in ("attention_norm_weight", "attention_entropy_weight"):
        flags += [flag_of(field), str(preset.get(field, 0.0))]
    return flags, preset.get("attention", attention) if attention == name else attention
