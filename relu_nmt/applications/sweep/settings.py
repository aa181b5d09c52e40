"""Settings of a sweep: the models, the length of a training, the processes, published figures."""

import os
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

from relu_nmt.attention import attentions
from relu_nmt.config import READ, Files, checked_by, flag_of, group, like, option, settings
from relu_nmt.config.shared import ClusterOptions, subset_option
from relu_nmt.config.yaml_text import parse_yaml
from relu_nmt.data.data_folder import data_option
from relu_nmt.data.document_settings import DocumentConfig
from relu_nmt.errors import ConfigError, reporting
from relu_nmt.evaluation.metrics import tokenizer_option
from relu_nmt.io.process import available_cores
from relu_nmt.modules.config import ATTENTION_PRESETS
from relu_nmt.training.budgets import SECONDS, TIME_EXAMPLES, Budget

REPORTS = r"report\.html|results\.csv|card\.json|sweep\.json|\.lock|models/.*"
DEFAULT_ATTENTIONS = ("softmax", "reluformer", "sparsemax")
TOKENIZER = "--sacrebleu-tokenizer"
_flags = partial(option, (), metavar="'FLAGS'", parse=shlex.split)
PUBLISHED_FIELDS = {"title": str, "source": str, "columns": dict, "rows": dict}
PUBLISHED_FORM = (
    "expected title and source (texts), columns ('COLUMN of results.csv' or 'COLUMN@LENGTH': its "
    "title) and rows (name of an attention or variant: a list of numbers, texts or null, one for "
    "each column)"
)


def parse_budget(text: str) -> Budget:
    """Return the length of each training. Epochs are whole numbers, for ``--max-epoch``."""
    budget = Budget.parse(text)
    if budget.epochs is not None and not budget.epochs.is_integer():
        raise ValueError(f"'{text}': expected whole epochs here, or {TIME_EXAMPLES}")
    return budget


def parse_attentions(text: str) -> tuple[str, ...]:
    """Return the attentions in ``softmax,reluformer:gamma=2,learnable=true``."""
    names: list[str] = []
    for part in text.split(","):
        # Commas also separate the options of an attention.
        if names and "=" in part and ":" not in part:
            names[-1] += f",{part.strip()}"
        else:
            names.append(part.strip())
    if len(set(names)) < len(names):
        raise ValueError(f"'{text}': an attention is named twice")
    for name in names:
        if name not in ATTENTION_PRESETS:
            attentions.check(name)
    return tuple(names)


@settings
class JobsConfig(ClusterOptions):
    """The processes of a sweep. These settings change the speed, but no result."""

    jobs: int = option(
        1, "trainings or evaluations at once, or jobs of the cluster", least=1, most=1024
    )
    gpus: tuple[str, ...] = option(
        (),
        "GPUs of the processes, in turn: --gpus 0,1,2,3 --jobs 4",
        needs=("cluster", None),
        metavar="N,N,...",
    )
    training_processes: int = option(
        1, "processes that train a model together, by torchrun, each on a GPU", least=1, most=1024
    )
    delete_checkpoints: bool = option(False, "keep only the evaluated checkpoint of each model")
    report_only: bool = option(False, "run nothing, write the report of the present results")

    def check(self) -> None:
        """Check that every GPU has a number and a process."""
        # The processes of a training share the GPUs evenly, and none is left.
        gpu_text = ",".join(self.gpus)
        if not all(self.gpus):
            raise ConfigError(f"--gpus {gpu_text}: expected numbers of GPUs such as 0,1")
        together = self.training_processes
        if len(self.gpus) % together:
            raise ConfigError(
                f"--gpus {gpu_text}: {together} --training-processes each need one; expected a "
                f"multiple of {together}"
            )
        if len(self.gpus) > self.jobs * together:
            raise ConfigError(
                f"--gpus {gpu_text}: each process uses one, so some would stay idle; raise --jobs "
                f"from {self.jobs} to {len(self.gpus) // together}"
            )

    def environment(self, index: int) -> dict[str, str]:
        """Return the environment variables of a process with this index among running processes."""
        # Share the cores between all processes, and deal out the GPUs in turn.
        variables = dict(os.environ)
        together = self.training_processes
        variables.setdefault(
            "OMP_NUM_THREADS", str(max(1, available_cores() // self.jobs // together))
        )
        if self.gpus:
            first = index * together % len(self.gpus)
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus[first : first + together])
        return variables


@settings
class SweepSettings:
    """All settings of a sweep."""

    # Parse data-bin/ as data-bin, since commands are compared with earlier runs.
    data: str = data_option(
        "", "data folder with document boundaries", parse=lambda text: text and str(Path(text))
    )
    gen_subset: str = subset_option(heading="sweep")
    lengths: tuple[int, ...] = option(
        (128, 256, 512, 1024, 2048),
        "document lengths in tokens (1: single sentences)",
        metavar="N,N,...",
        least=1,
    )
    attentions: tuple[str, ...] = option(
        (),
        "attentions or presets. The first is the baseline "
        f"(default: {','.join(DEFAULT_ATTENTIONS)})",
        metavar="NAME,NAME,...",
        parse=parse_attentions,
    )
    variants: tuple[str, ...] = option(
        (),
        "further models to compare, each 'NAME: flags of relu-nmt-train'",
        metavar="'NAME: FLAGS'",
        several=True,
    )
    seeds: tuple[int, ...] = option(
        (1, 2, 3), "seeds: a model for each", metavar="N,N,...", least=0
    )
    budget: str | None = option(
        None,
        f"length of EACH training: {TIME_EXAMPLES}, 3e for epochs",
        metavar="N[u|s|m|h|e]",
        parse=checked_by(parse_budget),
    )
    doc_mixture: tuple[int, ...] = like(
        DocumentConfig,
        "doc_mixture",
        (),
        "train one model per attention and seed on these lengths, as 1,128,512",
    )
    start_from: str | None = option(
        None,
        "--save-dir of a sweep of sentence models, whose weights to start from",
        metavar="DIR",
        files=READ,
    )
    checkpoint: str = option(
        "best", "checkpoint to evaluate: best, last, or average:N of the last N", metavar="WHICH"
    )
    memory_stats: bool = option(False, "also measure the feed-forward networks as memories")
    published: str | None = option(
        None, "YAML file of published figures to show beside the measured ones", files=READ
    )
    train_flags: tuple[str, ...] = _flags("flags of relu-nmt-train in one text, or behind --")
    generate_flags: tuple[str, ...] = _flags(
        "flags of relu-nmt-generate, as --generate-flags='--beam 4 --bf16'"
    )
    sacrebleu_tokenizer: str | None = tokenizer_option()
    contrastive: str | None = option(
        None,
        "contrasts (JSON lines): also report the share that each model ranks right",
        files=READ,
    )
    save_dir: str = option(
        "sweep",
        "folder of models, logs and report. Continues the sweep in it",
        metavar="DIR",
        files=Files(written=True, names=REPORTS),
    )
    running: JobsConfig = group("running", JobsConfig)
    user_modules: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    def check(self) -> None:
        """Check that no value is given twice, and that data and budget are given."""
        for name in ("lengths", "attentions", "seeds"):
            values = getattr(self, name)
            if (name != "attentions" and not values) or len(set(values)) < len(values):
                value_text = ",".join(map(str, values))
                raise ConfigError(
                    f"{flag_of(name)} {value_text}: expected one or more different values"
                )
        for text in self.variants:
            if not re.fullmatch(r"[\w.+-]+:\s.*\S", text, re.DOTALL):
                raise ConfigError(f"--variants '{text}': expected 'NAME: flags of relu-nmt-train'")
            with reporting(f"--variants '{text}'", ConfigError, ValueError):
                shlex.split(text)  # a quote without its end is an error
        num_models = len(self.attentions) + len(self.variants)
        if len({*self.attentions, *self.variant_flags}) < num_models:
            raise ConfigError("--variants: a name is given twice, or is one of --attentions")
        if self.checkpoint not in ("best", "last") and self.averaged is None:
            raise ConfigError(
                f"--checkpoint {self.checkpoint}: expected best, last or average:N, N from 2"
            )
        if self.running.report_only:
            return
        if not self.data:
            message = "DATA is missing: give the data folder, as relu-nmt-preprocess made it"
            raise ConfigError(message)
        _ = self.length

    @property
    def variant_flags(self) -> dict[str, tuple[str, ...]]:
        """The flags of each variant, by name."""
        flags_by_name = {}
        for text in self.variants:
            name, _, flags = text.partition(":")
            flags_by_name[name] = tuple(shlex.split(flags))
        return flags_by_name

    @property
    def systems(self) -> tuple[str, ...]:
        """Names of the compared models: the attentions, then the variants."""
        variants = tuple(self.variant_flags)
        return (*self.attentions, *variants) or DEFAULT_ATTENTIONS

    @property
    def length(self) -> Budget:
        """The length of each training (ConfigError: ``--budget`` is missing)."""
        if self.budget is None:
            raise ConfigError("--budget: say how long each model is trained, as 4000u or 15m")
        return parse_budget(self.budget)

    @property
    def time_flags(self) -> tuple[str, str]:
        """The flag of relu-nmt-train for the budget, and its value."""
        seconds = self.length.seconds
        if seconds is not None:
            return ("--stop-time-hours", f"{seconds / SECONDS['h']:.6g}")
        flag = "--max-epoch" if self.length.epochs else "--max-update"
        return (flag, f"{self.length.number:.0f}")

    @property
    def time_in_words(self) -> str:
        """The budget in words."""
        seconds = self.length.seconds
        if seconds is None:
            unit = "epochs" if self.length.epochs else "updates"
            return f"{self.length.number:,.0f} {unit}"
        for name in ("hours", "minutes"):
            if seconds >= SECONDS[name[0]]:
                return f"{seconds / SECONDS[name[0]]:g} {name}"
        return f"{seconds:g} seconds"

    @property
    def tokenizer_flags(self) -> tuple[str, ...]:
        """The tokenizer flag of the commands that compute BLEU. Empty for the default."""
        name = self.sacrebleu_tokenizer
        return () if name is None else (TOKENIZER, name)

    @property
    def shared_flags(self) -> tuple[str, ...]:
        """The flags that all models of a report must share, as words of a command."""
        flags = list(self.time_flags)
        if self.start_from is not None:
            flags += ["--start-from", str(Path(self.start_from))]
        flags += ["--generate-flags", shlex.join(self.generate_flags), *self.tokenizer_flags]
        if self.memory_stats:
            flags.append("--memory-stats")
        return (*flags, *self.train_flags)

    @property
    def averaged(self) -> int | None:
        """Number of checkpoints to average, if any."""
        match = re.fullmatch(r"average:(\d+)", self.checkpoint)
        return int(match[1]) if match and int(match[1]) > 1 else None


def read_published(path: str) -> dict[str, Any]:
    """Return the table in a YAML file (DataError: the file cannot be read, or has another form)."""
    flag = f"--published {path}"
    with reporting(flag, caught=ValueError), reporting(f"{flag}: cannot be read"):
        return checked_published(parse_yaml(Path(path).read_text("utf-8-sig")))


def checked_published(values: Any) -> dict[str, Any]:
    """Return a paper's table, from parsed JSON or YAML (ValueError: it has another form).

    The table has a ``title`` and a ``source``: paper, table, data and training. ``columns`` maps
    columns of results.csv, such as ``d_bleu`` or ``d_bleu@512`` for one document length, to titles.
    ``rows`` maps attentions or variants to a value for each column. The report prints texts as is.
    """
    if not isinstance(values, dict) or values.keys() != PUBLISHED_FIELDS.keys():
        raise ValueError(PUBLISHED_FORM)
    for name, kind in PUBLISHED_FIELDS.items():
        if not isinstance(values[name], kind) or not values[name]:
            raise ValueError(f"{name}: {PUBLISHED_FORM}")
    for column in values["columns"]:
        _, at, length = str(column).partition("@")
        if at and not length.isdigit():
            raise ValueError(f"columns: {column}: {PUBLISHED_FORM}")
    for name, row in values["rows"].items():
        fits = isinstance(row, list) and len(row) == len(values["columns"])
        if not fits or not all(v is None or isinstance(v, int | float | str) for v in row):
            raise ValueError(f"rows: {name}: {PUBLISHED_FORM}")
    return {name: values[name] for name in PUBLISHED_FIELDS}
