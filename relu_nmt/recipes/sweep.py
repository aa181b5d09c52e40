"""A sweep from its settings to its report: attentions by document lengths by seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relu_nmt.data.data_folder import find_pair, infer_languages, split_path
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.recipes.sweep_flags import check_generate_flags, check_train_flags
from relu_nmt.sweep.environment import describe_environment, probe
from relu_nmt.sweep.folder import SweepDescription, read_description, write_description
from relu_nmt.sweep.plan import SweepPlan
from relu_nmt.sweep.report import REPORT_NAME, ReportData, write_report
from relu_nmt.sweep.runner import StepRunner
from relu_nmt.sweep.settings import SweepSettings as Settings
from relu_nmt.sweep.steps import DONE, Step
from relu_nmt.user_modules import import_user_module

SIGNAL_EXIT_CODE = 128
STEPS_FAILED = 1


@dataclass(frozen=True)
class SweepResult:
    """How a sweep ended, and what it has found.

    Args:
        report: the page, report.html; results.csv stands beside it.
        data: numbers of all models in the folder.
        failed: steps that crashed; those that diverged are results.
        signal: number of the signal that stopped it, if one did.
    """

    report: Path
    data: ReportData
    failed: int = 0
    signal: int | None = None

    @property
    def exit_code(self) -> int:
        """Of the command: 0, 1 if a step failed, 128 and the number of a signal."""
        if self.signal is not None:
            return SIGNAL_EXIT_CODE + self.signal
        return STEPS_FAILED if self.failed else 0


def run(settings: Settings, *, progress: bool = True) -> SweepResult:
    """Train and evaluate what is not done yet, and write the report after every step.

    Each training and each evaluation is a process of its own. With ``report_only`` nothing is run.

    Args:
        settings: what is varied, and how it is run.
        progress: print a line per event.

    Raises:
        ConfigError: the folder holds other results, or none with ``report_only``, or a step was
            run with another command.
        DataError: the data folder lacks boundaries, or a file is damaged.
    """
    config, folder = settings.sweep, Path(settings.sweep.save_dir)
    if settings.running.report_only:
        return _report_only(folder, progress)
    for path in settings.user_modules:
        import_user_module(path)
    plan = SweepPlan(settings, frozenset(config.attentions))
    train, generate = check_train_flags(plan), check_generate_flags(plan)
    typed = [name for name in (train.task.source_lang, train.task.target_lang) if name]
    languages = tuple(typed) if len(typed) == 2 else infer_languages(settings.data)
    _check_boundaries(settings, languages)
    for model in plan.models():
        _check_start(config.start_from, plan.steps_of(model)[0])
    found = probe(config.attentions, settings.user_modules)
    if not generate.documents.window_overlap:  # of windows that overlap there are no statistics
        plan = SweepPlan(settings, frozenset(found["without_weights"]))
    environment = describe_environment(found["gpus"])
    steps = plan.steps()
    # The steps are compared with what was run before anything is written.
    runner = StepRunner(steps, settings.running, environment, config.time.seconds or None, progress)
    description = write_description(folder, SweepDescription(settings, environment))
    runner.run(lambda: write_report(folder, description))
    data = write_report(folder, description)
    runner.say(f"report: {folder / REPORT_NAME}")
    return SweepResult(folder / REPORT_NAME, data, runner.failed, runner.signal)


def _report_only(folder: Path, progress: bool) -> SweepResult:
    description = read_description(folder)
    if description is None:
        raise ConfigError(f"--report-only: {folder} holds no sweep; give its --save-dir")
    result = SweepResult(folder / REPORT_NAME, write_report(folder, description))
    if progress:
        print(f"report: {result.report}")
    return result


def _check_start(folder: str | None, train: Step) -> None:
    """See that the sentence model that a training starts from is there, and trained to its end.

    Raises:
        ConfigError: it is not.
    """
    if train.start is None:
        return
    if not train.start.exists():
        raise ConfigError(
            f"--start-from {folder}: has no {train.start}; train the sentence models first, with "
            "--lengths 1 and the same --attentions, --seeds and --checkpoint"
        )
    sentences = Step(train.model, None, train.start.parent.parent)
    state = sentences.state
    if state is not None and state.status != DONE:
        raise ConfigError(
            f"--start-from {folder}: the training of {sentences.folder} is not done, but "
            f"{state.status}; finish that sweep first"
        )


def _check_boundaries(settings: Settings, languages: Sequence[str]) -> None:
    """See that training and evaluation will find documents.

    Raises:
        DataError: a split is missing or has no boundaries.
    """
    for split in ("train", settings.sweep.gen_subset):
        pair = find_pair(settings.data, split, *languages)
        path = split_path(settings.data, split, pair, "documents")
        if not path.exists():
            raise DataError(
                f"{path}: no such file, but a sweep is about documents; run relu-nmt-preprocess "
                "with --document-separator"
            )
