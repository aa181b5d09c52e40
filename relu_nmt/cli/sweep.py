"""relu-nmt-sweep: train and evaluate over document lengths, attentions and seeds, and report."""

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.cli.generate import generate_parser
from relu_nmt.cli.train import train_parser
from relu_nmt.config import add_settings, flag_of, from_namespace, read_settings
from relu_nmt.decoding.config import DocumentGenerationConfig
from relu_nmt.errors import ConfigError
from relu_nmt.evaluation.config import ScoringConfig
from relu_nmt.recipes.training_settings import TranslationTrainingSettings
from relu_nmt.sweep.plan import SweepPlan
from relu_nmt.sweep.settings import SweepConfig, SweepSettings
from relu_nmt.training.config import TrainerConfig

DESCRIPTION = """\
Does an attention translate long documents better? Train and evaluate a model for every attention,
document length and seed, and write report.html and results.csv:

  relu-nmt-sweep data-bin --lengths 128,256,512 --attentions softmax,reluformer --seeds 1,2,3 \\
      --budget 4000u --save-dir sweep -- --max-tokens 4096 --arch transformer_iwslt_de_en --bf16

or one model for each attention and seed, which learns several lengths and is evaluated at each:

  relu-nmt-sweep data-bin --lengths 1,128,512,1024 --doc-mixture 1,128,512,1024 ...

Documents are learnt sooner by models that know sentences: train these first, and start from them:

  relu-nmt-sweep data-bin --lengths 1 --save-dir sentences ...
  relu-nmt-sweep data-bin --lengths 128,512 --save-dir documents --start-from sentences ...

What stands behind -- goes to relu-nmt-train. DATA needs document boundaries (relu-nmt-preprocess
--document-separator). The same command goes on where it was stopped; steps that are done are not
run again, failed ones are. Several sweeps may work on one --save-dir at once, also on several
machines that share it. Exit code 1: a step failed (one that diverged is a result).
"""
USAGE = "relu-nmt-sweep DATA --budget N[u|s|m|h] [options] [-- flags of relu-nmt-train]"
# Flags of relu-nmt-train that the sweep sets, and what sets them.
OWN_FLAGS = {
    "max_doc_tokens": "--lengths",
    "doc_mixture": "--doc-mixture before the --",
    "attention": "--attentions",
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    own = words
    if "--" in words:
        first = words.index("--")
        own = [*words[:first], f"--train-flags={shlex.join(words[first + 1 :])}"]
    parser = make_parser("relu-nmt-sweep", DESCRIPTION, user_modules=True)
    parser.usage = USAGE
    add_settings(parser, SweepSettings)
    return run_command(parser, lambda arguments: _run(arguments, words), own)


def _run(arguments: argparse.Namespace, words: list[str]) -> int:
    settings = read_settings(SweepSettings, arguments)
    if settings.running.report_only:
        from relu_nmt.recipes.sweep import write_report

        print(f"report: {write_report(Path(settings.sweep.save_dir)).report}")
        return 0
    generate = _check_generate_flags(settings)
    settings = dataclasses.replace(
        settings,
        user_modules=tuple(arguments.user_module),
        command=tuple(words),
        attention_stats=not getattr(generate, "window_overlap", 0),
    )
    train = _check_train_flags(settings)
    languages = (train.task.source_lang, train.task.target_lang)
    settings = dataclasses.replace(settings, languages=languages if all(languages) else ())

    from relu_nmt.recipes import sweep

    return sweep.run(settings).exit_code


def _check_train_flags(settings: SweepSettings) -> TranslationTrainingSettings:
    """Return what one of the models is trained with, the flags of all checked.

    Raises:
        ConfigError: flags that contradict each other, or that the sweep sets itself.
    """
    parser, plan = train_parser(), SweepPlan(settings)
    typed = parser.parse_args([settings.data, *settings.sweep.train_flags])
    flag = settings.sweep.time.flags[0]
    own = {**OWN_FLAGS, flag.removeprefix("--").replace("-", "_"): "--budget"}
    _refuse(typed, own, "behind the --")
    commands = [plan.steps_of(model)[0].commands[0] for model in plan.models()]
    train, *_ = [
        read_settings(TranslationTrainingSettings, parser.parse_args(command[3:]))
        for command in commands
    ]
    _check_checkpoint(settings.sweep, train.trainer)
    return train


def _check_checkpoint(config: SweepConfig, trainer: TrainerConfig) -> None:
    """See that a training will write the checkpoint to evaluate: it may take days.

    Raises:
        ConfigError: it will not.
    """
    which, number, checkpoint = config.checkpoint, config.averaged, trainer.checkpoint
    if checkpoint.no_save:
        raise ConfigError("--no-save: there is no checkpoint to evaluate; leave it out")
    if which == "best" and trainer.validation.disable_validation:
        raise ConfigError(
            "--disable-validation: there is no best checkpoint; add --checkpoint last"
        )
    if which == "last" and checkpoint.no_last_checkpoints:
        raise ConfigError("--no-last-checkpoints: there is no last checkpoint; leave it out")
    if number is None:
        return
    interval = checkpoint.save_interval_updates
    if config.time.updates is None:
        raise ConfigError(
            f"--checkpoint {which}: how many checkpoints a --budget in time gives is not known; "
            "give it in updates, as 4000u"
        )
    if interval <= 0:
        raise ConfigError(f"--checkpoint {which}: add --save-interval-updates behind the --")
    kept = checkpoint.keep_interval_updates
    if 0 < kept < number:
        raise ConfigError(f"--checkpoint {which}: raise --keep-interval-updates {kept} to {number}")
    updates = config.time.updates
    if updates // interval < number:
        raise ConfigError(
            f"--checkpoint {which}: {updates} updates give {updates // interval} checkpoints with "
            f"--save-interval-updates {interval}; lower one of the two"
        )


def _check_generate_flags(settings: SweepSettings) -> argparse.Namespace:
    """Return --generate-flags, checked as relu-nmt-generate will do it.

    Raises:
        ConfigError: a value out of range, or a flag that the sweep sets itself.
    """
    typed = generate_parser().parse_args([settings.data, *settings.sweep.generate_flags])
    _refuse(typed, GENERATE_OWN_FLAGS, "in --generate-flags")
    if from_namespace(DocumentGenerationConfig, typed).score_reference:
        raise ConfigError(
            "--score-reference in --generate-flags: translations are scored; leave it out"
        )
    from_namespace(ScoringConfig, typed)
    return typed


def _refuse(typed: argparse.Namespace, own: dict[str, str], where: str) -> None:
    """Refuse flags that the sweep sets itself.

    Raises:
        ConfigError: one of them was typed.
    """
    for name, setter in own.items():
        if getattr(typed, name, None) not in (None, []):
            raise ConfigError(f"{flag_of(name)} {where}: it is set by {setter}")


if __name__ == "__main__":
    raise SystemExit(main())
