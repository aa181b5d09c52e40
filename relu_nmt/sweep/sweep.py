"""A sweep from its plan to its report."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from relu_nmt.data.data_folder import documents_path, find_pair, infer_languages
from relu_nmt.errors import DataError
from relu_nmt.sweep.environment import describe_environment
from relu_nmt.sweep.folder import SweepDescription, read_description, write_description
from relu_nmt.sweep.narration import Narration
from relu_nmt.sweep.plan import Plan
from relu_nmt.sweep.probe import probe
from relu_nmt.sweep.report import Reporter
from relu_nmt.sweep.runner import Outcome, Runner
from relu_nmt.sweep.settings import RunConfig


class Sweep:
    """Runs a plan and keeps the report up to date.

    Args:
        plan: what is trained and evaluated.
        run: how many processes, and where.
        languages: source and target language; by default those of the folder's only pair.
        words: the command as typed, for the report.

    Raises:
        ConfigError: the folder holds other results, or a step was run with another command.
        DataError: the data folder lacks boundaries, or a file is damaged.
    """

    def __init__(
        self, plan: Plan, run: RunConfig, languages: Sequence[str], words: Sequence[str]
    ) -> None:
        config, folder = plan.config, Path(plan.config.save_dir)
        languages = tuple(languages) or infer_languages(plan.data)
        _check_boundaries(plan, languages)
        found = probe(config.attentions, plan.user_modules)
        without = plan.without_weights | frozenset(found["without_weights"])
        plan = dataclasses.replace(plan, without_weights=without)
        environment = describe_environment(found["gpus"])
        steps = plan.steps()
        narration = Narration(steps, run.jobs, config.budget.seconds)
        # The steps are compared with what was run before anything is written.
        self._runner = Runner(steps, run, narration, environment, self._report)
        description = SweepDescription(
            plan.data,
            config.gen_subset,
            languages,
            config.attentions,
            str(config.budget),
            config.checkpoint,
            tuple(words),
            environment,
            tuple((training, plan.evaluated_lengths(training)) for training in plan.trainings()),
            plan.settings,
            _start_in_words(config.start_from),
        )
        self._reporter = Reporter(folder, write_description(folder, description))
        self._narration = narration

    def run(self) -> Outcome:
        """Run what is not done yet, and write the report."""
        outcome = self._runner.run()
        self._narration.say(f"report: {self._report()}")
        return outcome

    def _report(self) -> Path:
        return self._reporter.write()


def _start_in_words(folder: str | None) -> str:
    """Return which models those of the sweep start from, and how long these were trained."""
    if folder is None:
        return ""
    earlier = read_description(Path(folder))
    budget = "unknown" if earlier is None else earlier.budget
    return f"the sentence models of {folder}, {budget} per model"


def _check_boundaries(plan: Plan, languages: Sequence[str]) -> None:
    """See that training and evaluation will find documents.

    Raises:
        DataError: a split is missing or has no boundaries.
    """
    for split in ("train", plan.config.gen_subset):
        pair = find_pair(plan.data, split, *languages)
        path = documents_path(plan.data, split, pair)
        if not path.exists():
            raise DataError(
                f"{path}: no such file, but a sweep is about documents; run relu-nmt-preprocess "
                "with --document-separator"
            )
