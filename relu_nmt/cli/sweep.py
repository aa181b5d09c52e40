"""relu-nmt-sweep: train and evaluate over document lengths, attentions and seeds, and report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.cli.generate import generate_parser
from relu_nmt.cli.train import read_settings, train_parser
from relu_nmt.config import add_options, flag_of, from_namespace
from relu_nmt.decoding.config import DocumentGenerationConfig
from relu_nmt.errors import ConfigError
from relu_nmt.evaluation.config import ScoringConfig
from relu_nmt.sweep.plan import SweepPlan
from relu_nmt.sweep.settings import JobsConfig, SweepConfig, SweepSettings

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
SIGNAL_EXIT_CODE = 128
STEPS_FAILED = 1
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
BUDGET_FLAGS = {"updates": "max_update", "seconds": "stop_time_hours"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    own, train_flags = words, []
    if "--" in words:
        first = words.index("--")
        own, train_flags = words[:first], words[first + 1 :]
    parser = make_parser("relu-nmt-sweep", DESCRIPTION, user_modules=True)
    parser.usage = USAGE
    parser.add_argument("data", nargs="?", help="data folder with document boundaries")
    add_options(parser, SweepConfig, "sweep")
    add_options(parser, JobsConfig, "running")
    return run_command(parser, lambda arguments: _run(arguments, train_flags, words), own)


def _run(arguments: argparse.Namespace, train_flags: list[str], words: list[str]) -> int:
    config = from_namespace(SweepConfig, arguments)
    jobs = from_namespace(JobsConfig, arguments)
    if jobs.report_only:
        from relu_nmt.recipes.sweep import write_report

        print(f"report: {write_report(Path(config.save_dir)).report}")
        return 0
    if arguments.data is None:
        raise ConfigError("DATA is missing: give the data folder, as relu-nmt-preprocess made it")
    typed = train_parser().parse_args([arguments.data, *train_flags])
    languages = tuple(getattr(typed, name, None) for name in ("source_lang", "target_lang"))
    generate = _check_generate_flags(arguments.data, config)
    settings = SweepSettings(
        # data-bin and data-bin/ are the same: commands are compared with those of earlier runs.
        str(Path(arguments.data)),
        config,
        jobs,
        tuple(train_flags),
        tuple(arguments.user_module),
        languages if all(languages) else (),
        tuple(words),
        attention_stats=not getattr(generate, "window_overlap", 0),
    )
    _check_train_flags(settings, typed)

    from relu_nmt.recipes import sweep

    found = sweep.run(settings)
    if found.signal is not None:
        return SIGNAL_EXIT_CODE + found.signal
    return STEPS_FAILED if found.failed else 0


def _check_train_flags(settings: SweepSettings, typed: argparse.Namespace) -> None:
    """Check what stands behind the -- as relu-nmt-train will do it.

    Raises:
        ConfigError: flags that contradict each other, or that the sweep sets itself.
    """
    budget = settings.config.budget
    own = {**OWN_FLAGS, BUDGET_FLAGS["updates" if budget.updates else "seconds"]: "--budget"}
    _refuse(typed, own, "behind the --")
    _check_checkpoint(settings.config, typed)
    plan = SweepPlan(settings)
    for training in plan.trainings():
        command = plan.steps_of(training)[0].commands[0]
        read_settings(train_parser().parse_args(command[3:]))


def _check_checkpoint(config: SweepConfig, typed: argparse.Namespace) -> None:
    """See that a training will write the checkpoint to evaluate: it may take days.

    Raises:
        ConfigError: it will not.
    """
    which, number = config.checkpoint, config.averaged
    if getattr(typed, "no_save", False):
        raise ConfigError("--no-save: there is no checkpoint to evaluate; leave it out")
    if which == "best" and getattr(typed, "disable_validation", False):
        raise ConfigError(
            "--disable-validation: there is no best checkpoint; add --checkpoint last"
        )
    if which == "last" and getattr(typed, "no_last_checkpoints", False):
        raise ConfigError("--no-last-checkpoints: there is no last checkpoint; leave it out")
    if number is None:
        return
    interval = max(0, getattr(typed, "save_interval_updates", 0))
    if config.budget.updates is None:
        raise ConfigError(
            f"--checkpoint {which}: how many checkpoints a --budget in time gives is not known; "
            "give it in updates, as 4000u"
        )
    if not interval:
        raise ConfigError(f"--checkpoint {which}: add --save-interval-updates behind the --")
    kept = getattr(typed, "keep_interval_updates", -1)
    if 0 < kept < number:
        raise ConfigError(f"--checkpoint {which}: raise --keep-interval-updates {kept} to {number}")
    updates = config.budget.updates
    if updates // interval < number:
        raise ConfigError(
            f"--checkpoint {which}: {updates} updates give {updates // interval} checkpoints with "
            f"--save-interval-updates {interval}; lower one of the two"
        )


def _check_generate_flags(data: str, config: SweepConfig) -> argparse.Namespace:
    """Return --generate-flags, checked as relu-nmt-generate will do it.

    Raises:
        ConfigError: a value out of range, or a flag that the sweep sets itself.
    """
    typed = generate_parser().parse_args([data, *config.generate_flags])
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
