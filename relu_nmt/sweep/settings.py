"""What a sweep varies, how long it trains, and how its commands are run."""

import os
import re
import shlex
from dataclasses import dataclass

from relu_nmt.attention.spec import known_attention
from relu_nmt.config import option
from relu_nmt.errors import ConfigError

SECONDS = {"s": 1, "m": 60, "h": 3600}
BUDGET_EXAMPLES = "4000u (or 4000) for updates, 90s, 15m or 2h for time"
DEFAULT_LENGTHS = (128, 256, 512, 1024, 2048)
DEFAULT_ATTENTIONS = ("softmax", "reluformer", "sparsemax")
DEFAULT_SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Budget:
    """How long each model is trained; one of the two is set.

    Args:
        updates: number of updates.
        seconds: time of training.

    Example:
        >>> Budget.parse("15m").flags
        ('--stop-time-hours', '0.25')
    """

    updates: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> "Budget":
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
        for unit, name in (("h", "hours"), ("m", "minutes"), ("s", "seconds")):
            if self.seconds >= SECONDS[unit] or unit == "s":
                return f"{self.seconds / SECONDS[unit]:g} {name}"
        raise AssertionError


def parse_attentions(text: str) -> tuple[str, ...]:
    """Return the attentions of a list such as ``softmax,reluformer:gamma=2,learnable=true``.

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
    return tuple(known_attention(name) for name in names)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds that ``1,2,3`` lists.

    Raises:
        ValueError: not a list of different whole numbers from 0.
    """
    parts = [part.strip() for part in text.split(",")]
    seeds = tuple(int(part) for part in parts if part.isdecimal())
    if len(set(seeds)) < len(parts):
        raise ValueError(f"'{text}': expected different numbers with commas such as 1,2,3")
    return seeds


def parse_gpus(text: str) -> tuple[str, ...]:
    """Return the numbers of the GPUs that ``0,1`` lists.

    Raises:
        ValueError: an empty entry.
    """
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise ValueError(f"'{text}': expected numbers of GPUs such as 0,1")
    return parts


def parse_flags(text: str) -> tuple[str, ...]:
    """Return the words of flags given as one text.

    Raises:
        ValueError: a quotation mark without its partner.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"'{text}': {error}") from None


@dataclass(frozen=True)
class SweepConfig:
    """What is trained and evaluated.

    Raises:
        ConfigError: values out of range.
    """

    lengths: tuple[int, ...] = option(
        DEFAULT_LENGTHS,
        "document lengths in tokens; 1: single sentences",
        metavar="N,N,...",
    )
    attentions: tuple[str, ...] = option(
        DEFAULT_ATTENTIONS,
        "attentions, the first (of the first sweep of a --save-dir) is what the others are "
        "compared with. reluformer takes gamma and "
        "regulariser of the --arch reluformer preset; NAME:option=value sets options",
        metavar="NAME,NAME,...",
        parse=parse_attentions,
    )
    seeds: tuple[int, ...] = option(
        DEFAULT_SEEDS, "a model for each of these seeds", metavar="N,N,...", parse=parse_seeds
    )
    budget: Budget | None = option(  # noqa: RUF009
        None,
        f"how long EACH model is trained: {BUDGET_EXAMPLES}",
        metavar="N[u|s|m|h]",
        parse=Budget.parse,
    )
    doc_mixture: tuple[int, ...] = option(
        (),
        "train one model per attention and seed on this mixture of lengths, as 1,128,512, and "
        "evaluate it at every one of --lengths; by default a model for each length",
        metavar="N,N,...",
    )
    start_from: str | None = option(
        None,
        "--save-dir of a sweep with --lengths 1: each model starts from the weights of its "
        "sentence model with the same attention and seed; by default from random weights",
        metavar="DIR",
    )
    gen_subset: str = option("test", "split to evaluate on", metavar="SPLIT")
    checkpoint: str = option(
        "best",
        "checkpoint to evaluate: best, last, or average:N, the mean of the last N that "
        "--save-interval-updates wrote",
        metavar="WHICH",
    )
    generate_flags: tuple[str, ...] = option(
        (),
        "flags for relu-nmt-generate in one text, as --generate-flags='--beam 4 --bf16'",
        metavar="'FLAGS'",
        parse=parse_flags,
    )
    save_dir: str = option(
        "sweep", "folder of the models, logs and the report; the same again goes on", metavar="DIR"
    )

    def __post_init__(self) -> None:
        for flag, lengths in (("--lengths", self.lengths), ("--doc-mixture", self.doc_mixture)):
            if any(length < 1 for length in lengths):
                shown = ",".join(map(str, lengths))
                raise ConfigError(f"{flag} {shown}: expected numbers of 1 or more")
        if len(set(self.lengths)) < len(self.lengths):
            raise ConfigError(f"--lengths {','.join(map(str, self.lengths))}: a length twice")
        if self.checkpoint not in ("best", "last") and self.averaged is None:
            raise ConfigError(
                f"--checkpoint {self.checkpoint}: expected best, last or average:N, N from 2"
            )

    @property
    def averaged(self) -> int | None:
        """How many checkpoints to average, if any."""
        match = re.fullmatch(r"average:(\d+)", self.checkpoint)
        return int(match[1]) if match and int(match[1]) > 1 else None


@dataclass(frozen=True)
class RunConfig:
    """How the commands are run; none of it changes their results, but for the speed.

    Raises:
        ConfigError: no process at all, or fewer than GPUs.
    """

    jobs: int = option(
        1, "processes at once; each has its GPU or its share of the CPU", metavar="N"
    )
    gpus: tuple[str, ...] = option(
        (),
        "GPUs to deal out to the processes in turn, as --gpus 0,1,2,3 --jobs 4",
        metavar="N,N,...",
        parse=parse_gpus,
    )
    delete_checkpoints: bool = option(
        False,
        "when a model has been evaluated at every length, delete its checkpoints but the evaluated "
        "one",
    )
    report_only: bool = option(False, "run nothing, write the report of what is there")

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ConfigError(f"--jobs {self.jobs}: expected 1 or more")
        if len(self.gpus) > self.jobs:
            raise ConfigError(
                f"--gpus {','.join(self.gpus)}: each process uses one, so some would stay "
                f"idle; raise --jobs from {self.jobs} to {len(self.gpus)}"
            )

    def environment(self, place: int) -> dict[str, str]:
        """Return the environment of a process.

        Args:
            place: from 0; of two processes at once, no two have the same.
        """
        found = dict(os.environ)
        threads = max(1, available_cores() // self.jobs)
        found.setdefault("OMP_NUM_THREADS", str(threads))
        if self.gpus:
            found["CUDA_VISIBLE_DEVICES"] = self.gpus[place % len(self.gpus)]
        return found


def available_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
