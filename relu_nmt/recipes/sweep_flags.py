"""Checks of the flags that a sweep hands on to relu-nmt-train and relu-nmt-generate."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from relu_nmt.config import add_settings, flag_of, read_settings
from relu_nmt.errors import ConfigError
from relu_nmt.recipes.training_settings import TranslationTrainingSettings
from relu_nmt.recipes.translation_settings import TranslateSplitSettings
from relu_nmt.sweep.plan import SweepPlan
from relu_nmt.sweep.settings import SweepConfig
from relu_nmt.training.config import TrainerConfig
from relu_nmt.user_modules import FLAG

# Flags of the two commands that the sweep sets, and what sets them.
TRAIN_OWN_FLAGS = {
    "max_doc_tokens": "--lengths",
    "doc_mixture": "--doc-mixture before the --",
    "attention": "--attentions",
    "attention_preset": "--attentions",
    "seed": "--seeds",
    "save_dir": "--save-dir before the --",
    "finetune_from_model": "--start-from",
    "user_module": "--user-module before the --",
}
GENERATE_OWN_FLAGS = {
    "path": "--checkpoint",
    "gen_subset": "--gen-subset",
    "max_doc_tokens": "--lengths",
    "user_module": "--user-module of the sweep",
    **dict.fromkeys(
        ("output", "output_separator", "results", "results_path", "attention_stats"),
        "the sweep, which reads the file",
    ),
}
COMMAND_WORDS = 3
"""Of a command before its arguments: Python, -m, the module."""


class _FlagParser(argparse.ArgumentParser):
    """Reads the words of one of the commands.

    Args:
        settings_class: of the command.
        where: in which the user types its flags, for messages.
    """

    def __init__(self, settings_class: type, where: str) -> None:
        super().__init__(prog=where, add_help=False)
        self.add_argument("--debug", action="store_true")
        self.add_argument(FLAG, action="append", default=[])
        add_settings(self, settings_class)
        self._settings_class = settings_class

    def error(self, message: str) -> NoReturn:
        """Raise instead of ending the program."""
        raise ConfigError(f"{self.prog}: {message}")

    def check_typed(self, words: Sequence[str], own: Mapping[str, str]) -> None:
        """Refuse flags that the sweep sets itself.

        Raises:
            ConfigError: one of them was typed, or there is no such flag.
        """
        typed = self.parse_args(words)
        for name, setter in own.items():
            if getattr(typed, name, None) not in (None, []):
                raise ConfigError(f"{flag_of(name)} {self.prog}: it is set by {setter}")

    def settings(self, command: Sequence[str]) -> Any:
        """Return the settings of a command.

        Raises:
            ConfigError: flags that contradict each other, or a value that is none of the allowed.
        """
        return read_settings(self._settings_class, self.parse_args(command[COMMAND_WORDS:]))


def check_train_flags(plan: SweepPlan) -> TranslationTrainingSettings:
    """Return what one of the models is trained with, the flags of all checked.

    Raises:
        ConfigError: flags that contradict each other, or that the sweep sets itself.
    """
    config = plan.settings.sweep
    parser = _FlagParser(TranslationTrainingSettings, "behind the --")
    budget = config.time.flags[0].removeprefix("--").replace("-", "_")
    parser.check_typed(config.train_flags, {**TRAIN_OWN_FLAGS, budget: "--budget"})
    if "--no-save" in config.train_flags:
        raise ConfigError("--no-save: there is no checkpoint to evaluate; leave it out")
    train, *_ = [parser.settings(plan.steps_of(model)[0].commands[0]) for model in plan.models()]
    _check_checkpoint(config, train.trainer)
    return train


def check_generate_flags(plan: SweepPlan) -> TranslateSplitSettings:
    """Return what one of the models is evaluated with.

    Raises:
        ConfigError: a value out of range, or a flag that the sweep sets itself.
    """
    parser = _FlagParser(TranslateSplitSettings, "in --generate-flags")
    parser.check_typed(plan.settings.sweep.generate_flags, GENERATE_OWN_FLAGS)
    found = parser.settings(plan.steps()[1].commands[0])
    if found.generation.score_reference:
        raise ConfigError(
            "--score-reference in --generate-flags: translations are scored; leave it out"
        )
    return found


def _check_checkpoint(config: SweepConfig, trainer: TrainerConfig) -> None:
    """See that a training will write the checkpoint to evaluate: it may take days.

    Raises:
        ConfigError: it will not.
    """
    which, number, checkpoint = config.checkpoint, config.averaged, trainer.checkpoint
    if which == "best" and trainer.validation.disable_validation:
        raise ConfigError(
            "--disable-validation: there is no best checkpoint; add --checkpoint last"
        )
    if which == "last" and checkpoint.no_last_checkpoints:
        raise ConfigError("--no-last-checkpoints: there is no last checkpoint; leave it out")
    if number is None:
        return
    updates, interval = config.time.updates, checkpoint.save_interval_updates
    if updates is None:
        raise ConfigError(
            f"--checkpoint {which}: how many checkpoints a --budget in time gives is not known; "
            "give it in updates, as 4000u"
        )
    if interval <= 0:
        raise ConfigError(f"--checkpoint {which}: add --save-interval-updates behind the --")
    kept = checkpoint.keep_interval_updates
    if 0 < kept < number:
        raise ConfigError(f"--checkpoint {which}: raise --keep-interval-updates {kept} to {number}")
    if updates // interval < number:
        raise ConfigError(
            f"--checkpoint {which}: {updates} updates give {updates // interval} checkpoints with "
            f"--save-interval-updates {interval}; lower one of the two"
        )
