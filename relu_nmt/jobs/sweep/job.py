"""Run a sweep over attentions, document lengths and seeds, from its settings to its report."""

import itertools
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from relu_nmt.applications.environment import describe_environment
from relu_nmt.applications.sweep.report import CARD_NAME, CSV_NAME, REPORT_NAME, write_report
from relu_nmt.applications.sweep.runner import StepRunner
from relu_nmt.applications.sweep.settings import JobsConfig, read_published
from relu_nmt.applications.sweep.settings import SweepSettings as Settings
from relu_nmt.applications.sweep.steps import (
    CONTRASTS,
    DONE,
    PENDING,
    SWEEP_FILE,
    Command,
    Step,
    SweepDescription,
    SweepModel,
    arguments_of,
    gpu_names,
    has_results,
    planned_models,
    read_description,
    tool,
    write_description,
)
from relu_nmt.attention import attentions
from relu_nmt.config import add_settings, flag_of, from_flat, read_settings, split_paths
from relu_nmt.config.command_line import Parser
from relu_nmt.config.registry import FLAG, Spec, import_user_module
from relu_nmt.data.data_folder import find_pair, infer_languages, split_path
from relu_nmt.data.document_settings import SINGLE_SENTENCES
from relu_nmt.errors import ConfigError, DataError, reporting
from relu_nmt.jobs.train.settings import TranslationTrainingSettings
from relu_nmt.jobs.translate.settings import TranslateSplitSettings
from relu_nmt.modules.config import ATTENTION_PRESETS, SLOTS
from relu_nmt.training.config import TrainerConfig
from relu_nmt.translation.agreement import SAME_TEXT, describe_task, require_same
from relu_nmt.translation.task import TranslationTask

SettingsT = TypeVar("SettingsT")

# Flags of the user come later on the command line and override these.
TRAIN_DEFAULTS = ("--log-interval", "50")
OUTPUT_SEPARATOR = "tag"
# Fields of relu-nmt-train and relu-nmt-generate that the sweep sets, by the flag that sets them.
TRAIN_OWN_FLAGS = {
    "max_doc_tokens": "--lengths",
    "doc_mixture": "--doc-mixture before the --",
    "seed": "--seeds",
    "save_dir": "--save-dir before the --",
    "finetune_from_model": "--start-from",
    "user_module": "--user-module before the --",
}
# Variants may set the attention, flags for all models may not.
ATTENTION_OWN_FLAGS = {"attention": "--attentions", "attention_preset": "--attentions"}
GENERATE_OWN_FLAGS = {
    "path": "--checkpoint",
    "gen_subset": "--gen-subset",
    "max_doc_tokens": "--lengths",
    "user_module": "--user-module of the sweep",
    "memory_stats": "--memory-stats before the --generate-flags, without a file",
    **dict.fromkeys(
        ("output", "output_separator", "results", "results_path", "attention_stats"),
        "the sweep, which reads the file",
    ),
}


def run(settings: Settings, *, progress: bool = True) -> StepRunner:
    """Run all steps that are not done, and write the report after each. Return the runner."""
    folder = Path(settings.save_dir)
    published = None
    if settings.published is not None:
        published = read_published(settings.published)
    if settings.running.report_only:
        earlier = read_description(folder)
        if earlier is None:
            raise ConfigError(f"--report-only: {folder} holds no sweep; give its --save-dir")
        write_report(folder, replace(earlier, published=published or earlier.published))
        if progress:
            print(f"report: {folder / REPORT_NAME}")
        return StepRunner([], JobsConfig(), {})
    # Register the user's own attentions, which the flags may name.
    _refuse_foreign(folder)
    for path in settings.user_modules:
        import_user_module(path)
    # Check all flags and data before the first training: a sweep may take days.
    if settings.contrastive is not None and not Path(settings.contrastive).is_file():
        raise ConfigError(f"--contrastive {settings.contrastive}: no such file")
    steps = plan_steps(settings, settings.systems)
    trainings = [step for step in steps if step.is_training]
    trained = _checked_trainings(settings, trainings)
    generate = _checked_evaluation(settings, steps[1])
    _check_documents(settings, trained[0])
    task = _checked_task(settings, trained[0])
    if settings.start_from is not None:
        for model in planned_models(settings):
            _check_start(settings, model)
    # Find the attentions without weights: their evaluations cannot measure statistics.
    used: dict[str, set[str]] = {}
    for step, training in zip(trainings, trained, strict=True):
        used[step.model.attention] = {training.model.attention_of(slot) for slot in SLOTS}
    without = _without_weights(set(itertools.chain.from_iterable(used.values())))
    if not generate.window_overlap:  # overlapping windows have no statistics
        steps = plan_steps(settings, [name for name in used if used[name] & without])
    environment = describe_environment(gpu_names())
    # Make the runner first: it compares the steps with earlier runs before any file is written.
    runner = StepRunner(
        steps, settings.running, environment, folder, settings.length.seconds, progress
    )
    description = SweepDescription(settings, environment, published=published, task=task)
    description = write_description(folder, description)
    runner.run(lambda: write_report(folder, description))
    # Write the report also when no step had to run.
    write_report(folder, description)
    runner.say(f"report: {folder / REPORT_NAME}")
    return runner


def _checked_trainings(
    settings: Settings, steps: Sequence[Step]
) -> list[TranslationTrainingSettings]:
    for typed in (settings.train_flags, *settings.variant_flags.values()):
        if "--no-save" in typed:
            raise ConfigError("--no-save: there is no checkpoint to evaluate; leave it out")
    budget = settings.time_flags[0].removeprefix("--").replace("-", "_")
    own_flags = {**TRAIN_OWN_FLAGS, budget: "--budget"}
    for name, flags in settings.variant_flags.items():
        _refuse(TranslationTrainingSettings, f"in --variants {name}", flags, own_flags)
    own_flags |= ATTENTION_OWN_FLAGS
    _refuse(TranslationTrainingSettings, "behind the --", settings.train_flags, own_flags)
    trained = _settings_of(steps, TranslationTrainingSettings)
    for training in trained:
        _check_checkpoint(settings, training.trainer)
    return trained


def _checked_evaluation(settings: Settings, step: Step) -> TranslateSplitSettings:
    """Return the settings of the first evaluation. All evaluations share their flags."""
    _refuse(
        TranslateSplitSettings, "in --generate-flags", settings.generate_flags, GENERATE_OWN_FLAGS
    )
    [generate] = _settings_of([step], TranslateSplitSettings)
    if generate.search.score_reference:
        raise ConfigError(
            "--score-reference in --generate-flags: translations are scored; leave it out"
        )
    return generate


def _check_documents(settings: Settings, training: TranslationTrainingSettings) -> None:
    """Check that the data has document boundaries, unless all models read single sentences."""
    folders = split_paths(settings.data, ":")
    source = training.source_lang
    target = training.target_lang
    if not source or not target:
        source, target = infer_languages(folders[0])
    if max(*settings.lengths, *settings.doc_mixture, 1) == SINGLE_SENTENCES:
        return
    # Check the training text of all folders, and the evaluated split of the first.
    splits = [(folder, "train") for folder in folders]
    splits.append((folders[0], settings.gen_subset))
    for folder, split in splits:
        path = split_path(folder, split, find_pair(folder, split, source, target), "documents")
        if not path.exists():
            raise DataError(
                f"{path}: no such file, but a sweep is about documents; run relu-nmt-preprocess "
                "with --document-separator"
            )


def _checked_task(settings: Settings, training: TranslationTrainingSettings) -> dict[str, str]:
    """Return languages, dictionaries and text of the data, in words."""
    data = split_paths(settings.data, ":")[0]
    task = describe_task(
        TranslationTask.from_data_folder(data, training.source_lang, training.target_lang)
    )
    # Compare with the task of earlier results, and of the models to start from.
    for folder, advice in (
        (settings.save_dir, "one report is of one task; choose another --save-dir"),
        (settings.start_from, f"{SAME_TEXT} and dictionaries, or choose another --start-from"),
    ):
        if folder is None:
            continue
        earlier = read_description(Path(folder))
        # Skip folders without results, whose settings may still be corrected.
        if earlier is not None and has_results(Path(folder)):
            require_same(earlier.task, folder, task, data, advice, ConfigError)
    return task


def _without_weights(names: Collection[str]) -> set[str]:
    """Check the options of attentions, and return those that have no weights to measure."""
    without = set()
    for name in sorted(names):
        spec = Spec.parse(name)
        with reporting(f"--attentions {name}", ConfigError, (ConfigError, ImportError)):
            kind = attentions.get(spec.name)
            from_flat(kind.Config, spec.options)
        if not kind.capabilities.weights:
            without.add(name)
    return without


def _refuse_foreign(folder: Path) -> None:
    """Refuse to overwrite a report in a folder without a sweep."""
    if (folder / SWEEP_FILE).exists() or has_results(folder):
        return
    for name in (REPORT_NAME, CSV_NAME, CARD_NAME):
        if os.path.lexists(folder / name):
            raise ConfigError(
                f"--save-dir {folder}: holds {name}, but no sweep, and it would be overwritten; "
                "choose another --save-dir, or move the file away"
            )


def _parser(settings_class: type[SettingsT]) -> Parser:
    parser = Parser(add_help=False)
    parser.add_argument("--debug", action="store_true")
    parser.add_argument(FLAG, action="append", default=[])
    add_settings(parser, settings_class)
    return parser


def _refuse(
    settings_class: type[SettingsT], where: str, typed: Sequence[str], own_flags: Mapping[str, str]
) -> None:
    """Refuse unknown flags, and flags of fields in ``own_flags``, which the sweep sets.

    The whole commands are read later, when an error cannot tell where the user typed a flag.
    """
    with reporting(where, ConfigError, ConfigError):
        arguments = _parser(settings_class).parse_args(typed)
    for name, setter in own_flags.items():
        if getattr(arguments, name, None) not in (None, []):
            raise ConfigError(f"{flag_of(name)} {where}: it is set by {setter}")


def _settings_of(steps: Sequence[Step], settings_class: type[SettingsT]) -> list[SettingsT]:
    """Return the settings of the first command of each step, a training or an evaluation."""
    parser = _parser(settings_class)
    settings = []
    for step in steps:
        arguments = parser.parse_args(arguments_of(step.commands[0]))
        settings.append(read_settings(settings_class, arguments))
    return settings


def _check_checkpoint(settings: Settings, trainer: TrainerConfig) -> None:
    """Check that a training will write the checkpoint to evaluate."""
    which = settings.checkpoint
    number = settings.averaged
    # A single checkpoint: the training must write a checkpoint of this kind.
    if which == "best" and trainer.disable_validation:
        raise ConfigError(
            "--disable-validation: there is no best checkpoint; add --checkpoint last"
        )
    if which == "last" and trainer.no_last_checkpoints:
        raise ConfigError("--no-last-checkpoints: there is no last checkpoint; leave it out")
    if number is None:
        return
    # An average: the training must write and keep enough checkpoints.
    interval = trainer.save_interval_updates
    updates = settings.length.updates
    if updates is None:
        unit = "epochs" if settings.length.epochs else "time"
        raise ConfigError(
            f"--checkpoint {which}: a --budget in {unit} gives an unknown number of checkpoints; "
            "give it in updates, as 4000u"
        )
    if interval <= 0:
        raise ConfigError(f"--checkpoint {which}: add --save-interval-updates behind the --")
    num_kept = trainer.keep_interval_updates
    if 0 < num_kept < number:
        raise ConfigError(
            f"--checkpoint {which}: raise --keep-interval-updates {num_kept} to {number}"
        )
    if updates // interval < number:
        raise ConfigError(
            f"--checkpoint {which}: {updates} updates give {updates // interval} checkpoints with "
            f"--save-interval-updates {interval}; lower one of the two"
        )


def _check_start(settings: Settings, model: SweepModel) -> None:
    """Check that the sentence model that a training starts from is there and finished."""
    sentences = _sentence_model(settings, model)
    folder = settings.start_from
    start = _checkpoint(settings, sentences)
    if not Path(start).exists():
        raise ConfigError(
            f"--start-from {folder}: has no {start}; train the sentence models first, with "
            "--lengths 1 and the same --attentions, --seeds and --checkpoint"
        )
    # The checkpoint exists: check that its training has ended.
    training = Step(model, None, sentences).stored()
    if training.status not in (PENDING, DONE):
        raise ConfigError(
            f"--start-from {folder}: the training of {sentences} is not done, but "
            f"{training.status}; finish that sweep first"
        )


# ------------------------------------------------------------------- the steps and their commands


def plan_steps(settings: Settings, without_weights: Collection[str] = ()) -> list[Step]:
    """Return all steps, each model's training before its evaluations."""
    steps = []
    for model, lengths in planned_models(settings).items():
        folder = model.folder(settings.save_dir)
        steps.append(Step(model, None, folder, _train_commands(settings, model)))
        for length in lengths:
            step = Step(model, length, folder)
            command = _generate_command(settings, step, model.attention not in without_weights)
            steps.append(replace(step, commands=(command,)))
        if settings.contrastive:
            step = Step(model, CONTRASTS, folder)
            words = _user_modules(settings)
            words += ["--contrastive", settings.contrastive]
            words += ["--path", _checkpoint(settings, folder)]
            words += ["--results", str(step.path(".results.json"))]
            steps.append(replace(step, commands=(tool("score", words),)))
    return steps


def _train_commands(settings: Settings, model: SweepModel) -> tuple[Command, ...]:
    folder = model.folder(settings.save_dir)
    checkpoints = str(folder / "checkpoints")
    system_flags = settings.variant_flags.get(model.attention) or attention_flags(model.attention)
    words = [settings.data, *_user_modules(settings), *TRAIN_DEFAULTS]
    if "--eval-bleu" in (*settings.train_flags, *system_flags):
        words += settings.tokenizer_flags
    if not settings.averaged:
        words.append("--no-epoch-checkpoints")
    words += [*settings.train_flags, *system_flags]
    # Put the sweep's own flags last: they win over the flags that the user typed.
    words.append("--doc-mixture" if model.is_mixture else "--max-doc-tokens")
    words += [model.trained_on, *settings.time_flags]
    if settings.start_from is not None:
        words += ["--finetune-from-model", _checkpoint(settings, _sentence_model(settings, model))]
    words += ["--seed", str(model.seed), "--save-dir", checkpoints]
    train = tool("train", words, settings.running.training_processes)
    if settings.averaged is None:
        return (train,)
    words = ["--inputs", checkpoints, "--num-update-checkpoints", str(settings.averaged)]
    words += ["--output", _checkpoint(settings, folder)]
    return (train, tool("average", words))


def _generate_command(settings: Settings, step: Step, measured: bool) -> Command:
    words = [settings.data, *_user_modules(settings)]
    words += ["--path", _checkpoint(settings, step.folder), "--gen-subset", settings.gen_subset]
    words += ["--max-doc-tokens", str(step.length), "--quiet", "--no-progress-bar"]
    words += [*settings.tokenizer_flags, *settings.generate_flags]
    # Mark documents by <d> lines: an empty document is still a document.
    words += ["--output", str(step.path(".txt")), "--output-separator", OUTPUT_SEPARATOR]
    words += ["--results", str(step.path(".results.json"))]
    if measured:
        words += ["--attention-stats", str(step.path(".attention.json"))]
    if settings.memory_stats:
        words += ["--memory-stats", str(step.path(".memory.json"))]
    return tool("generate", words)


def _user_modules(settings: Settings) -> list[str]:
    words: list[str] = []
    for path in settings.user_modules:
        words += [FLAG, path]
    return words


def _checkpoint(settings: Settings, folder: Path) -> str:
    """Return the evaluated checkpoint of the model in a folder."""
    name = "average" if settings.averaged else f"checkpoint_{settings.checkpoint}"
    return str(folder / "checkpoints" / f"{name}.safetensors")


def _sentence_model(settings: Settings, model: SweepModel) -> Path:
    """Return the folder of the sentence model with the same attention and seed to start from."""
    return SweepModel(model.attention, model.seed, (1,)).folder(settings.start_from or "")


def attention_flags(attention: str) -> tuple[str, ...]:
    """Return the flags for an attention: its preset and its options, independent of ``--arch``.

    Example:
        >>> attention_flags("reluformer")
        ('--attention-preset', 'reluformer')
        >>> attention_flags("softmax")
        ('--attention-preset', 'none', '--attention', 'softmax')
    """
    preset = Spec.parse(attention).name
    if preset not in ATTENTION_PRESETS:
        preset = "none"
    if attention == preset:
        return ("--attention-preset", preset)
    return ("--attention-preset", preset, "--attention", attention)
