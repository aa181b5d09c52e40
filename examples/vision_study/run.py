r"""Run the trainings of a study of the vision papers, and report on them.

    python examples/vision_study/run.py comparison cifar10 --seeds 1 2 3 --jobs 4
    python examples/vision_study/run.py comparison imagenet --setting paper \
        --gpus 0,1,2,3 --training-processes 4

The flags behind -- go to every relu-nmt-vision-train. The same command continues a study. It
repeats failed trainings, but not finished trainings. After each training it writes report.html,
results.csv and curves.csv. Exit code 1: a training failed (a diverged training is a result).
"""

import argparse
import itertools
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from report import ACCURACY, NORMS, REPORT, write_report
from studies import STUDIES, Study

from relu_nmt.applications.environment import describe_environment
from relu_nmt.applications.sweep.runner import StepRunner
from relu_nmt.applications.sweep.settings import JobsConfig
from relu_nmt.applications.sweep.steps import (
    Command,
    Step,
    SweepModel,
    arguments_of,
    gpu_names,
    tool,
)
from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.config import REQUIRED, add_settings, group, option, read_settings, settings
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.jobs.vision_train.settings import ImageTrainingSettings

SETTINGS = tuple(
    dict.fromkeys(itertools.chain.from_iterable(study.settings for study in STUDIES.values()))
)
MIXED = ("--arch", "--recipe")
TESTS = ("test", "val", "valid", "validation")


@settings
class StudySettings:
    """The study, its images, and the processes of its trainings."""

    study: str = option(
        REQUIRED,
        f"what is compared: {', '.join(STUDIES)}",
        choices=tuple(STUDIES),
        positional=True,
        metavar="STUDY",
    )
    data: str = option(
        REQUIRED,
        "folder with train and test (or val), each a folder or a .zip of class folders",
        positional=True,
        metavar="DATA",
    )
    setting: str = option(
        "small",
        "small (for CIFAR-10) or paper (for ImageNet). The alpha studies also have the other "
        f"panels of the paper: {', '.join(SETTINGS[2:])}",
        choices=SETTINGS,
    )
    seeds: tuple[int, ...] = option(
        (1,), "a training for each of these seeds", several=True, least=0, metavar="N"
    )
    updates: int | None = option(
        None, "updates of each training, a tenth of them warm-up", least=10
    )
    variants: tuple[str, ...] = option(
        (), "train these only, by their names in the report", several=True, metavar="NAME"
    )
    classes: str = option(
        "",
        "judge by the classes in FILE only, as relu-nmt-vision-evaluate does, such as the classes "
        "of ImageNet-1k for models of ImageNet-21k",
        metavar="FILE",
    )
    running: JobsConfig = group("running", JobsConfig)
    dry_run: bool = option(False, "print the commands of all trainings, and run none")
    save_dir: str = option(
        "vision-study", "the report is in DIR/STUDY-SETTING, with all trainings", metavar="DIR"
    )
    train_flags: tuple[str, ...] = option(
        (),
        "flags for relu-nmt-vision-train in one text, or behind --",
        metavar="'FLAGS'",
        parse=shlex.split,
    )

    def check(self) -> None:
        """Check that the study has these variants.

        Raises:
            ConfigError: a variant is unknown, or a flag would mix two settings.
        """
        study = STUDIES[self.study]
        if self.setting not in study.settings:
            expected = ", ".join(study.settings)
            raise ConfigError(f"--setting {self.setting}: {self.study} has {expected}")
        # A recipe behind -- would keep the augmentation of the setting's recipe.
        for flag in self.train_flags if self.setting != "small" else ():
            if flag.partition("=")[0] in MIXED:
                other_settings = ", ".join(n for n in study.settings if n != self.setting)
                raise ConfigError(
                    f"{flag} behind --: models and recipes are those of --setting {self.setting}; "
                    f"{self.study} also has {other_settings}"
                )
        names = study.names(self.setting)
        unknown = set(self.variants).difference(names)
        if unknown:
            raise ConfigError(
                f"--variants '{min(unknown)}': {self.study} has {', '.join(names)} (names with "
                "spaces in quotes)"
            )

    @property
    def folder(self) -> Path:
        """The folder of the trainings and the report."""
        return Path(self.save_dir) / f"{self.study}-{self.setting}"


def plan(settings: StudySettings) -> list[Step]:
    """Return the trainings, all trainings of a seed before the next seed.

    Raises:
        DataError: images, or the file of classes, are missing.
    """
    study = STUDIES[settings.study]
    train = _part(settings, ("train",))
    test = _part(settings, TESTS)
    missing = settings.classes and not Path(settings.classes).is_file()
    if missing and not settings.dry_run:
        raise DataError(f"--classes {settings.classes}: no such file")
    steps = []
    for seed in settings.seeds:
        for name in settings.variants or study.names(settings.setting):
            model = SweepModel(name, seed, ())
            step = Step(model, None, settings.folder / model.name)
            commands = [
                _train(settings, study, step, train),
                _evaluate(step, test, settings.classes),
            ]
            if study.norms:
                commands.append(_measure(step, test))
            steps.append(Step(model, None, step.folder, tuple(commands)))
    return steps


def _part(settings: StudySettings, names: Sequence[str]) -> str:
    """Return the folder or zip file of training or test images. A dry run needs none.

    Raises:
        DataError: the folder has no such part.
    """
    data = settings.data
    paths = [Path(data, name + ending) for name, ending in itertools.product(names, ("", ".zip"))]
    for path in paths:
        if path.exists():
            return str(path)
    if settings.dry_run:
        return str(paths[0])
    expected = " or ".join(path.name for path in paths)
    raise DataError(f"{data}: no images there; expected {expected}, with a folder a class")


def _train(settings: StudySettings, study: Study, step: Step, data: str) -> Command:
    variant = study.variants[step.model.attention]
    setting = study.settings[settings.setting]
    updates = settings.updates or setting.updates
    intervals = ["--telemetry-interval", "500"]
    if updates:
        tenth = str(updates // 10)
        log_interval = str(max(1, updates // 50))
        intervals = ["--max-update", str(updates), "--warmup-updates", tenth]
        intervals += ["--save-interval-updates", tenth]
        if not study.norms:
            intervals += ["--keep-interval-updates", "1"]
        intervals += ["--log-interval", log_interval]
        intervals += ["--telemetry-interval", str(max(1, updates // 20))]
    words = [
        data,
        *("--valid-fraction", str(setting.valid_fraction)),
        *(() if study.norms and not updates else ("--no-epoch-checkpoints",)),
        *("--best-checkpoint-metric", "accuracy", "--log-format", "json"),
        *shlex.split(f"{setting.models[variant.model]} {setting.flags} {variant.flags}"),
        *intervals,
        *settings.train_flags,
        *("--seed", str(step.model.seed), "--save-dir", str(step.checkpoints)),
    ]
    return tool("vision_train", words, settings.running.training_processes)


def _evaluate(step: Step, data: str, classes: str) -> Command:
    """Return the command for the accuracy after the last update: the same budget for all."""
    checkpoint = str(step.checkpoints / "checkpoint_last.safetensors")
    flags = ["--data", data, "--results", str(step.folder / ACCURACY), "--no-progress-bar"]
    if classes:
        flags += ["--classes", classes]
    return tool("vision_evaluate", [checkpoint, *flags])


def _measure(step: Step, data: str) -> Command:
    """Return the command for the norms in all checkpoints."""
    script = Path(__file__).with_name("norms.py")
    results = step.folder / NORMS
    flags = ("--data", data, "--results", str(results))
    return (sys.executable, str(script), str(step.checkpoints), *flags)


def run(settings: StudySettings) -> int:
    """Run the trainings that are not done, with a report after each. Return the exit code.

    Raises:
        ConfigError: a flag is wrong, or a training began with other flags.
        DataError: images are missing, or a file is damaged or cannot be written.
    """
    folder = settings.folder
    study = STUDIES[settings.study]
    if settings.running.report_only:
        write_report(folder, study)
        print(f"report: {folder / REPORT}")
        return 0
    steps = plan(settings)
    parser = make_parser("relu-nmt-vision-train", "")
    add_settings(parser, ImageTrainingSettings)
    for step in steps:  # check all before the first training
        read_settings(ImageTrainingSettings, parser.parse_args(arguments_of(step.commands[0])))
    if settings.dry_run:
        for step in steps:
            for command in step.commands:
                print(shlex.join(command))
        return 0
    environment = describe_environment(gpu_names())
    runner = StepRunner(steps, settings.running, environment, folder)
    runner.run(lambda: write_report(folder, study))
    write_report(folder, study)
    runner.say(f"report: {folder / REPORT}")
    return runner.exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if "--" in words:
        first = words.index("--")
        words = [*words[:first], f"--train-flags={shlex.join(words[first + 1 :])}"]
    parser = make_parser("vision_study", __doc__)
    add_settings(parser, StudySettings)

    def body(arguments: argparse.Namespace) -> int:
        return run(read_settings(StudySettings, arguments))

    return run_command(parser, body, words)


if __name__ == "__main__":
    sys.exit(main())
