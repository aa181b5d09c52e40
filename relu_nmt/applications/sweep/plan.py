"""The plan of a sweep: its models, the commands of all their steps, and its stored description.

A model per length and a model that learns several lengths differ in the training only. Several
sweeps may share a folder, at once or one after the other, with other attentions, lengths or seeds.
The report covers all of them.
"""

import dataclasses
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relu_nmt.applications.sweep.settings import SweepSettings
from relu_nmt.applications.sweep.steps import (
    CONTRASTS,
    FAILED,
    Command,
    Step,
    StepState,
    SweepModel,
    differences,
    tool,
)
from relu_nmt.config import from_dict
from relu_nmt.config.registry import Spec
from relu_nmt.config.settings_files import parse_yaml
from relu_nmt.errors import ConfigError, DataError, reporting
from relu_nmt.io.safe_write import write_text
from relu_nmt.modules.config import ATTENTION_PRESETS

SWEEP_FILE, MODELS = "sweep.json", "models"
OUTPUT_SEPARATOR = "tag"
# A flag that the user types comes later on the command line and wins.
TRAIN_DEFAULTS = ("--log-interval", "50")
PUBLISHED_FIELDS = {"title": str, "source": str, "columns": dict, "rows": dict}
PUBLISHED_FORM = (
    "expected title and source (texts), columns ('COLUMN of results.csv' or 'COLUMN@LENGTH': its "
    "title) and rows (name of an attention or variant: a list of numbers, texts or null, one for "
    "each column)"
)

Value = float | str | None


@dataclass(frozen=True)
class SweepPlan:
    """All steps of a sweep; ``without_weights`` names attentions without weights to measure."""

    settings: SweepSettings
    without_weights: frozenset[str] = frozenset()

    @property
    def shared_flags(self) -> tuple[str, ...]:
        """The flags that all models of a report must share, as words of a command."""
        config = self.settings
        start = () if config.start_from is None else ("--start-from", str(Path(config.start_from)))
        return (
            *config.time.flags,
            *start,
            *("--generate-flags", shlex.join(config.generate_flags)),
            *config.tokenizer_flags,
            *(("--memory-stats",) if config.memory_stats else ()),
            *config.train_flags,
        )

    def models(self) -> list[SweepModel]:
        """Return the models, all models of a seed before those of the next seed."""
        config = self.settings
        trained = [config.doc_mixture] if config.doc_mixture else [(n,) for n in config.lengths]
        return [
            SweepModel(attention, seed, lengths, bool(config.doc_mixture))
            for seed in config.seeds
            for lengths in trained
            for attention in config.systems
        ]

    def evaluated_lengths(self, model: SweepModel) -> tuple[int, ...]:
        """Return the document lengths of a model's evaluations, in tokens."""
        return self.settings.lengths if model.is_mixture else model.lengths

    def steps(self) -> list[Step]:
        """Return all steps, each model's training before its evaluations."""
        return [step for model in self.models() for step in self.steps_of(model)]

    def steps_of(self, model: SweepModel) -> list[Step]:
        """Return the training of a model and its evaluations."""
        config = self.settings
        folder = model_folder(config.save_dir, model)
        steps = [Step(model, None, folder, self._train_commands(model, folder))]
        for length in self.evaluated_lengths(model):
            command = self._generate_command(Step(model, length, folder))
            steps.append(Step(model, length, folder, (command,)))
        if config.contrastive:
            results = Step(model, CONTRASTS, folder).path(".results.json")
            command = tool(
                "score",
                *self._user_modules,
                *("--contrastive", config.contrastive, "--path", self._checkpoint(folder)),
                *("--results", str(results)),
            )
            steps.append(Step(model, CONTRASTS, folder, (command,)))
        return steps

    def _train_commands(self, model: SweepModel, folder: Path) -> tuple[Command, ...]:
        config, checkpoints = self.settings, str(folder / "checkpoints")
        # Start from the sentence model of the same attention and seed.
        start: tuple[str, ...] = ()
        if config.start_from is not None:
            sentences = SweepModel(model.attention, model.seed, (1,))
            first = self._checkpoint(model_folder(config.start_from, sentences))
            start = ("--finetune-from-model", first)
        own = config.variant_flags.get(model.attention) or attention_flags(model.attention)
        has_bleu = "--eval-bleu" in (*config.train_flags, *own)
        # Put the sweep's own flags last: they win over the flags that the user typed.
        train = tool(
            "train",
            config.data,
            *self._user_modules,
            *TRAIN_DEFAULTS,
            *(config.tokenizer_flags if has_bleu else ()),
            *(() if config.averaged else ("--no-epoch-checkpoints",)),
            *config.train_flags,
            *own,
            "--doc-mixture" if model.is_mixture else "--max-doc-tokens",
            model.trained_on,
            *config.time.flags,
            *start,
            *("--seed", str(model.seed), "--save-dir", checkpoints),
            processes=config.running.training_processes,
        )
        # Average the last checkpoints by a second command.
        if config.averaged is None:
            return (train,)
        average = tool(
            "average",
            *("--inputs", checkpoints, "--num-update-checkpoints", str(config.averaged)),
            *("--output", self._checkpoint(folder)),
        )
        return (train, average)

    def _generate_command(self, step: Step) -> Command:
        config = self.settings
        # Skip the statistics of attentions without weights.
        measured = step.model.attention not in self.without_weights
        return tool(
            "generate",
            config.data,
            *self._user_modules,
            *("--path", self._checkpoint(step.folder), "--gen-subset", config.gen_subset),
            *("--max-doc-tokens", str(step.length), "--quiet", "--no-progress-bar"),
            *config.tokenizer_flags,
            *config.generate_flags,
            # Mark documents by <d> lines: an empty document is still a document.
            *("--output", str(step.path(".txt")), "--output-separator", OUTPUT_SEPARATOR),
            *("--results", str(step.path(".results.json"))),
            *(["--attention-stats", str(step.path(".attention.json"))] if measured else []),
            *(["--memory-stats", str(step.path(".memory.json"))] if config.memory_stats else []),
        )

    @property
    def _user_modules(self) -> list[str]:
        return [word for path in self.settings.user_modules for word in ("--user-module", path)]

    def _checkpoint(self, folder: Path) -> str:
        """Return the evaluated checkpoint of a model."""
        config = self.settings
        name = "average" if config.averaged else f"checkpoint_{config.checkpoint}"
        return str(folder / "checkpoints" / f"{name}.safetensors")


def model_folder(save_dir: str | Path, model: SweepModel) -> Path:
    """Return the folder of a model."""
    return Path(save_dir) / MODELS / model.name


def attention_flags(attention: str) -> tuple[str, ...]:
    """Return the flags for an attention: its preset and its options, independent of ``--arch``.

    Example:
        >>> attention_flags("reluformer")
        ('--attention-preset', 'reluformer')
        >>> attention_flags("softmax")
        ('--attention-preset', 'none', '--attention', 'softmax')
    """
    name = Spec.parse(attention).name
    preset = name if name in ATTENTION_PRESETS else "none"
    typed = () if attention == preset else ("--attention", attention)
    return ("--attention-preset", preset, *typed)


# ------------------------------------------------------------------- published figures


@dataclass(frozen=True)
class Published:
    """A table of a paper, shown beside the measured figures."""

    title: str
    source: str  # paper, table, data and training
    # Titles by column of results.csv: d_bleu, or d_bleu@512 for a value of one document length.
    columns: dict[str, str]
    # A value for each column, by attention or variant; the report prints texts unchanged.
    rows: dict[str, list[Value]]

    @classmethod
    def of(cls, values: Any) -> "Published":
        """Return the table from parsed JSON or YAML (ValueError: it has another form)."""
        if not isinstance(values, dict) or values.keys() != PUBLISHED_FIELDS.keys():
            raise ValueError(PUBLISHED_FORM)
        for name, kind in PUBLISHED_FIELDS.items():
            if not isinstance(values[name], kind) or not values[name]:
                raise ValueError(f"{name}: {PUBLISHED_FORM}")
        # Allow the name of a column alone, or with a length.
        for column in values["columns"]:
            _, at, length = str(column).partition("@")
            if at and not length.isdigit():
                raise ValueError(f"columns: {column}: {PUBLISHED_FORM}")
        for name, row in values["rows"].items():
            fits = isinstance(row, list) and len(row) == len(values["columns"])
            if not fits or not all(v is None or isinstance(v, int | float | str) for v in row):
                raise ValueError(f"rows: {name}: {PUBLISHED_FORM}")
        return cls(**values)

    def value(self, name: str, column: str) -> Value:
        """Return a published value; None if the table lacks it."""
        row = self.rows.get(name)
        return None if row is None else row[list(self.columns).index(column)]


def read_published(path: str) -> Published:
    """Return the table in a YAML file (DataError: the file cannot be read, or has another form)."""
    flag = f"--published {path}"
    with reporting(flag, caught=ValueError), reporting(f"{flag}: cannot be read"):
        return Published.of(parse_yaml(Path(path).read_text("utf-8")))


# ------------------------------------------------------------------- the folder's description


@dataclass(frozen=True)
class SweepDescription:
    """The description of a sweep in its folder, ``sweep.json``."""

    settings: SweepSettings  # of the last run
    environment: dict[str, Any]  # of the last run
    attentions: tuple[str, ...] = ()  # and variants of all runs; the first one is the baseline
    published: Published | None = None
    # Languages, dictionaries and text of the data, in words; files of earlier versions lack it.
    task: dict[str, str] = dataclasses.field(default_factory=dict)


def read_description(folder: Path) -> SweepDescription | None:
    """Return the description of a folder's sweep; None if the folder has no sweep."""
    path = folder / SWEEP_FILE
    try:
        found = json.loads(path.read_text("utf-8"))
        values = found["settings"]
        # Two fields are no options of SweepSettings.
        typed: dict[str, Any] = {
            name: tuple(values.pop(name)) for name in ("user_modules", "command")
        }
        settings = dataclasses.replace(from_dict(SweepSettings, values), **typed)
        published = found.get("published")
        return SweepDescription(
            settings,
            found["environment"],
            tuple(found["attentions"]),
            None if published is None else Published.of(published),
            found.get("task") or {},
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, ConfigError) as error:
        raise DataError(f"{path}: cannot read it ({error}); delete it and start again") from error


def write_description(folder: Path, description: SweepDescription) -> SweepDescription:
    """Write the description, joined with that of earlier sweeps in the folder; return it.

    Earlier attentions stay listed, and the first one stays the baseline. Earlier published figures
    stay unless the new description has others.
    """
    # Join with the earlier description; new attentions come last, so that the baseline stays.
    attentions, published = description.settings.systems, description.published
    earlier = read_description(folder)
    if earlier is not None:
        _check_same_setting(folder, earlier.settings, description.settings)
        attentions = tuple(dict.fromkeys([*earlier.attentions, *attentions]))
        published = published or earlier.published
    description = dataclasses.replace(description, attentions=attentions, published=published)
    with reporting(f"--save-dir {folder}: cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(dataclasses.asdict(description), indent=1, ensure_ascii=False)
        write_text(folder / SWEEP_FILE, text + "\n")
    return description


def _check_same_setting(folder: Path, old: SweepSettings, new: SweepSettings) -> None:
    """Check that all models of a report share data, split, checkpoint and flags."""
    # Refuse other data, splits and checkpoints, even without results.
    for flag, was, now in (
        ("data", old.data, new.data),
        ("gen-subset", old.gen_subset, new.gen_subset),
        ("checkpoint", old.checkpoint, new.checkpoint),
    ):
        if was != now:
            raise ConfigError(
                f"--save-dir {folder}: its results have {flag} {was}, not {now}; choose another "
                "--save-dir"
            )
    # Other flags are fine only as long as the folder has no results.
    flags = [SweepPlan(settings).shared_flags for settings in (old, new)]
    if flags[0] != flags[1] and has_results(folder):
        was, now = differences(*flags)
        raise ConfigError(
            f"--save-dir {folder}: its models were made with '{was}' where there is '{now}' now, "
            "and one report is of one setting; choose another --save-dir"
        )


def has_results(folder: Path) -> bool:
    """Return whether a folder has models; without any, the user may correct the settings."""
    return any(state.status != FAILED for state, _ in _trainings_in(folder))


def _trainings_in(folder: Path) -> list[tuple[StepState, Path]]:
    """Return the state of each model's training, with the model's folder."""
    paths = sorted((folder / MODELS).glob("*/train.json"))
    return [(state, path.parent) for path in paths if (state := StepState.read(path)) is not None]


def models_in(
    folder: Path, settings: SweepSettings | None = None
) -> dict[SweepModel, tuple[int, ...]]:
    """Return all models of a sweep's folder, with the lengths of their evaluations.

    The models of ``settings``, those of the last run, count even if they are not begun. Other
    models count with the lengths of their training and of the evaluations that began.
    """
    # Start with the planned models, and add those in the folder.
    found = {}
    if settings is not None:
        plan = SweepPlan(settings)
        found = {model: plan.evaluated_lengths(model) for model in plan.models()}
    for state, own_folder in _trainings_in(folder):
        model = state.model
        # Read the lengths from evaluate-128.json; skip evaluate-128.results.json.
        names = (path.stem.removeprefix("evaluate-") for path in own_folder.glob("evaluate-*.json"))
        begun = {int(name) for name in names if name.isdigit()}
        known = found.get(model, () if model.is_mixture else model.lengths)
        found[model] = tuple(sorted({*known, *begun}))
    return found
