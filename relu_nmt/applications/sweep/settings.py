"""What a sweep varies, how long it trains, and how its commands are run."""

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from relu_nmt.attention import attentions
from relu_nmt.attention.spec import ATTENTION_PRESETS, AttentionSpec
from relu_nmt.config import checked_by, flag_of, group, like, option, settings
from relu_nmt.config.files import READ, Files
from relu_nmt.config.shared import ClusterOptions, CommonOptions
from relu_nmt.data.data_folder import DATA_FILES
from relu_nmt.data.groups import DocumentConfig
from relu_nmt.errors import ConfigError
from relu_nmt.evaluation.bleu import TokenizerOptions
from relu_nmt.io.process import available_cores

REPORTS = r"report\.html|results\.csv|card\.json|sweep\.json|\.lock|models/.*"
DEFAULT_ATTENTIONS = ("softmax", "reluformer", "sparsemax")
SECONDS = {"s": 1, "m": 60, "h": 3600}
BUDGET_EXAMPLES = "4000u (or 4000) for updates, 90s, 15m or 2h for time"


@dataclass(frozen=True)
class TrainingBudget:
    """How long each model is trained.

    Args:
        updates: number of updates; None if the time counts.
        seconds: time of training.

    Example:
        >>> TrainingBudget.parse("15m").flags
        ('--stop-time-hours', '0.25')
    """

    updates: int | None = None
    seconds: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "TrainingBudget":
        """Read ``4000u``, ``4000``, ``90s``, ``15m`` or ``2h``.

        Raises:
            ValueError: none of these, or 0.
        """
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([usmh]?)", text.strip().lower())
        if match is None or float(match[1]) == 0:
            raise ValueError(f"'{text}': expected {BUDGET_EXAMPLES}")
        number, unit = match.groups()
        if unit in SECONDS:
            return cls(seconds=float(number) * SECONDS[unit])
        if "." in number:
            raise ValueError(f"'{text}': updates are whole numbers; expected {BUDGET_EXAMPLES}")
        return cls(updates=int(number))

    @property
    def flags(self) -> tuple[str, str]:
        """The flag of relu-nmt-train with its value."""
        if self.updates is not None:
            return ("--max-update", str(self.updates))
        return ("--stop-time-hours", f"{self.seconds / SECONDS['h']:.6g}")

    def __str__(self) -> str:
        if self.updates is not None:
            return f"{self.updates:,} updates"
        for unit, name in (("h", "hours"), ("m", "minutes")):
            if self.seconds >= SECONDS[unit]:
                return f"{self.seconds / SECONDS[unit]:g} {name}"
        return f"{self.seconds:g} seconds"


def parse_attentions(text: str) -> tuple[str, ...]:
    """Return the attentions, or presets, of ``softmax,reluformer:gamma=2,learnable=true``.

    A comma also stands between the options of an attention: a part with ``=`` and without a colon
    belongs to the one before it.

    Raises:
        ConfigError: no such attention.
        ValueError: an attention twice.
    """
    names: list[str] = []
    for part in text.split(","):
        if names and "=" in part and ":" not in part:
            names[-1] += f",{part.strip()}"
        else:
            names.append(part.strip())
    if len(set(names)) < len(names):
        raise ValueError(f"'{text}': an attention is named twice")
    for name in names:
        if name not in ATTENTION_PRESETS:
            attentions.check(AttentionSpec.parse(name).name)
    return tuple(names)


@settings
class SweepConfig:
    """What is trained and evaluated."""

    gen_subset: str = like(CommonOptions, "gen_subset")
    lengths: tuple[int, ...] = option(
        (128, 256, 512, 1024, 2048),
        "document lengths in tokens; 1: single sentences",
        metavar="N,N,...",
        least=1,
    )
    attentions: tuple[str, ...] = option(
        (),
        "attentions, the first (of the first sweep of a --save-dir) is what the others are "
        "compared with. The bare name of an --attention-preset, such as reluformer, takes all "
        "that it sets; NAME:option=value sets options (default: "
        f"{','.join(DEFAULT_ATTENTIONS)}; none if there are --variants)",
        metavar="NAME,NAME,...",
        parse=parse_attentions,
    )
    variants: tuple[str, ...] = option(
        (),
        "models that differ in more than the attention, compared after those of --attentions: a "
        "text 'NAME: flags of relu-nmt-train' for each, which go before those behind --",
        metavar="'NAME: FLAGS'",
        several=True,
    )
    seeds: tuple[int, ...] = option(
        (1, 2, 3), "a model for each of these seeds", metavar="N,N,...", least=0
    )
    budget: str | None = option(
        None,
        f"how long EACH model is trained: {BUDGET_EXAMPLES}",
        metavar="N[u|s|m|h]",
        parse=checked_by(TrainingBudget.parse),
    )
    doc_mixture: tuple[int, ...] = like(
        DocumentConfig,
        "doc_mixture",
        (),
        "train one model per attention and seed on this mixture of lengths, as 1,128,512, and "
        "evaluate it at every one of --lengths; by default a model for each length",
    )
    start_from: str | None = option(
        None,
        "--save-dir of a sweep with --lengths 1: each model starts from the weights of its "
        "sentence model with the same attention and seed; by default from random weights",
        metavar="DIR",
        files=READ,
    )
    checkpoint: str = option(
        "best",
        "checkpoint to evaluate: best, last, or average:N, the mean of the last N that "
        "--save-interval-updates wrote",
        metavar="WHICH",
    )
    memory_stats: bool = option(
        False,
        "also measure the feed-forward networks as memories, and plot them against their size",
    )
    published: str | None = option(
        None,
        "YAML file of published figures, which the report shows beside those measured; "
        "examples/paper_study has some",
        files=READ,
    )
    train_flags: tuple[str, ...] = option(
        (),
        "flags for relu-nmt-train in one text, or behind --",
        metavar="'FLAGS'",
        parse=shlex.split,
    )
    generate_flags: tuple[str, ...] = option(
        (),
        "flags for relu-nmt-generate in one text, as --generate-flags='--beam 4 --bf16'",
        metavar="'FLAGS'",
        parse=shlex.split,
    )
    sacrebleu_tokenizer: str | None = like(TokenizerOptions, "sacrebleu_tokenizer", None)
    contrastive: str | None = option(
        None,
        "contrasts such as test.contrasts.jsonl of data_prep/grammar_corpus.py: also report how "
        "often each model prefers the right translation, given the sentences before, and without "
        "them",
        files=READ,
    )
    save_dir: str = option(
        "sweep",
        "folder of the models, logs and the report; the same again goes on",
        metavar="DIR",
        files=Files(written=True, names=REPORTS),
    )

    def check(self) -> None:
        """See that nothing is there twice, and that there is such a checkpoint.

        Raises:
            ConfigError: otherwise.
        """
        for name in ("lengths", "attentions", "seeds"):
            values = getattr(self, name)
            if (name != "attentions" and not values) or len(set(values)) < len(values):
                shown = ",".join(map(str, values))
                raise ConfigError(f"{flag_of(name)} {shown}: expected different ones, at least one")
        for text in self.variants:
            if not re.fullmatch(r"[\w.+-]+:\s.*\S", text, re.DOTALL):
                raise ConfigError(f"--variants '{text}': expected 'NAME: flags of relu-nmt-train'")
        names = [*self.attentions, *(text.partition(":")[0] for text in self.variants)]
        if len(set(names)) < len(names):
            raise ConfigError("--variants: a name stands there twice, or is one of --attentions")
        if self.checkpoint not in ("best", "last") and self.averaged is None:
            raise ConfigError(
                f"--checkpoint {self.checkpoint}: expected best, last or average:N, N from 2"
            )

    @property
    def variant_flags(self) -> dict[str, tuple[str, ...]]:
        """The flags of each variant, by name."""
        parts = (text.partition(":") for text in self.variants)
        return {name: tuple(shlex.split(flags)) for name, _, flags in parts}

    @property
    def systems(self) -> tuple[str, ...]:
        """What is compared: the attentions, then the variants."""
        variants = tuple(self.variant_flags)
        return (*self.attentions, *variants) or DEFAULT_ATTENTIONS

    @property
    def time(self) -> TrainingBudget:
        """The budget.

        Raises:
            ConfigError: there is none.
        """
        if self.budget is None:
            raise ConfigError("--budget: say how long each model is trained, as 4000u or 15m")
        return TrainingBudget.parse(self.budget)

    @property
    def averaged(self) -> int | None:
        """How many checkpoints to average, if any."""
        match = re.fullmatch(r"average:(\d+)", self.checkpoint)
        return int(match[1]) if match and int(match[1]) > 1 else None


@settings
class JobsConfig(ClusterOptions):
    """How the commands are run; none of it changes their results, but for the speed."""

    jobs: int = option(
        1,
        "processes at once, each with its GPU or its share of the CPU; or jobs of a --cluster at "
        "once, each with what --cluster-parameters ask for",
        metavar="N",
        least=1,
    )
    gpus: tuple[str, ...] = option(
        (),
        "GPUs to deal out to the processes in turn, as --gpus 0,1,2,3 --jobs 4",
        needs=("cluster", None),
        metavar="N,N,...",
    )
    training_processes: int = option(
        1,
        "processes that train a model together, by torchrun; each has a GPU of --gpus, as "
        "--gpus 0,1,2,3 --jobs 2 --training-processes 2. A batch is --max-tokens for each of them",
        metavar="N",
        least=1,
    )
    delete_checkpoints: bool = option(
        False,
        "when a model has been evaluated at every length, delete its checkpoints but the evaluated "
        "one",
    )
    report_only: bool = option(False, "run nothing, write the report of what is there")

    def check(self) -> None:
        """See that no GPU would be idle.

        Raises:
            ConfigError: one would, or one has no number.
        """
        shown = ",".join(self.gpus)
        if not all(self.gpus):
            raise ConfigError(f"--gpus {shown}: expected numbers of GPUs such as 0,1")
        together = self.training_processes
        if len(self.gpus) % together:
            raise ConfigError(
                f"--gpus {shown}: {together} --training-processes each need one; expected a "
                f"multiple of {together}"
            )
        if len(self.gpus) > self.jobs * together:
            raise ConfigError(
                f"--gpus {shown}: each process uses one, so some would stay idle; raise --jobs "
                f"from {self.jobs} to {len(self.gpus) // together}"
            )

    def environment(self, place: int) -> dict[str, str]:
        """Return the environment of a training or an evaluation.

        Args:
            place: from 0; of two processes at once, no two have the same.
        """
        found = dict(os.environ)
        together = self.training_processes
        found.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // self.jobs // together)))
        if self.gpus:
            first = place * together % len(self.gpus)
            found["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus[first : first + together])
        return found


@settings
class SweepSettings:
    """A whole sweep.

    Args:
        user_modules: files that register attentions.
        command: what the user typed, for the report.

    Example:
        >>> found = SweepSettings.of(data="data-bin/", budget="15m", lengths=(128, 512))
        >>> found.data, found.sweep.lengths, str(found.sweep.time)
        ('data-bin', (128, 512), '15 minutes')
    """

    # data-bin and data-bin/ are the same: commands are compared with those of earlier runs.
    data: str = option(
        "",
        "data folder with document boundaries",
        positional=True,
        metavar="DATA",
        parse=lambda text: text and str(Path(text)),
        files=DATA_FILES,
    )
    sweep: SweepConfig = group("sweep", SweepConfig)
    running: JobsConfig = group("running", JobsConfig)
    user_modules: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    def check(self) -> None:
        """See that there is something to train on, and a budget.

        Raises:
            ConfigError: otherwise.
        """
        if self.running.report_only:
            return
        if not self.data:
            message = "DATA is missing: give the data folder, as relu-nmt-preprocess made it"
            raise ConfigError(message)
        self.sweep.time  # noqa: B018
