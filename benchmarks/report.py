"""The page of benchmarks/run.py: hardware, versions and tables."""

import datetime
import os
import platform
import re
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from relu_nmt.io.safe_write import replacing

if TYPE_CHECKING:
    from run import Measurement

BUSY_LOAD = 0.25
"""A machine counts as busy if other programs use at least this share of its cores."""
REASON = 160


def median(values: Iterable[float]) -> float:
    """Return the median."""
    return statistics.median(values)


class Machine:
    """The machine, and its load at the construction, before the first measurement.

    Args:
        threads: threads of each program.
        device: ``cpu`` or ``cuda``.
    """

    def __init__(self, threads: int, device: str) -> None:
        self.threads = threads
        self.device = device
        self.load = os.getloadavg()[0]
        self.cores = len(os.sched_getaffinity(0))
        self.started = datetime.datetime.now(datetime.timezone.utc)

    def lines(self) -> list[str]:
        """Return the facts about the machine, one per line."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        gpus = []
        if self.device == "cuda":
            gpus = list(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))
        state = ""
        if self.load > BUSY_LOAD * self.cores:
            state = "; **a busy machine**: compare ratios, not figures"
        return [
            f"{self.started:%Y-%m-%d %H:%M} UTC",
            f"{_processor()}, {self.cores} cores, {memory / 1e9:.0f} GB of memory, "
            f"{platform.system()}",
            *gpus,
            f"{self.threads} threads a program; load at the start {self.load:.1f}{state}",
            f"Python {platform.python_version()}, PyTorch {torch.__version__}",
        ]


def _processor() -> str:
    """Return the processor's name, and whether it computes in bfloat16."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    name = re.search(r"model name\s*:\s*(.*)", text)
    kinds = [kind for kind in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if kind in text]
    return f"{name[1] if name else platform.machine()} ({', '.join(kinds) or 'no AVX2'})"


def page(
    machine: Machine,
    versions: Mapping[str, str],
    problems: Mapping[str, str],
    tables: Sequence["Measurement"],
    flags: Sequence[str],
) -> str:
    """Return the page as Markdown."""
    lines = ["# Benchmarks", "", "Written by `benchmarks/run.py`, which says how it measures:", ""]
    lines += [f"    python benchmarks/run.py {shlex.join(_shareable(flags))}", ""]
    lines += [f"* {fact}" for fact in machine.lines()]
    lines += [f"* {name}: {version}" for name, version in versions.items()]
    lines += [f"* **{name}**: {_short(reason)}" for name, reason in problems.items()]
    lines += [
        "",
        "Medians over rounds in which all rows take turns; `ratio` is the median of the ratios to",
        "the first row in the same round. `tokens/s` are target tokens, in a decoding without the",
        "end symbol and of the search alone. `same` are files, or translations, that are those of",
        "this toolkit to the letter. Memory is that of all processes. Documents, and translations",
        "of opennmt-py and joeynmt, which have models of their own, are forced to a fixed length.",
        "`workers` have a thread each, as many as the others have threads.",
    ]
    for measurement in tables:
        lines += ["", f"## {measurement.title}", "", *table(measurement)]
    return "\n".join(lines) + "\n"


def _shareable(flags: Sequence[str]) -> list[str]:
    """Return flags without the paths of this machine."""
    return [Path(flag).name if os.path.isabs(flag) else flag for flag in flags]


def table(measurement: "Measurement") -> list[str]:
    """Return the lines of a table."""
    measured_columns: set[str] = set()
    for rounds in measurement.rounds.values():
        measured_columns.update(*rounds)
    columns = [column for column in measurement.columns if column in measured_columns]
    lines = ["| | " + " | ".join([*columns[:1], "ratio", *columns[1:]]) + " |"]
    lines.append("| --- " * (len(columns) + 2) + "|")
    first = next(iter(measurement.rounds.values()), [])
    for name, rounds in measurement.rounds.items():
        if name in measurement.problems:
            reason = _short(measurement.problems[name]).replace("|", "/")
            lines.append(f"| {name} | failed: {reason} |" + " |" * len(columns))
            continue
        cells = [_median_text(column, rounds) for column in columns]
        ratio = _ratio(columns[0], rounds, first)
        lines.append(f"| {name} | " + " | ".join([*cells[:1], ratio, *cells[1:]]) + " |")
    return lines


def _short(reason: str) -> str:
    reason = " ".join(_shareable(reason.split()))
    return reason if len(reason) <= REASON else f"{reason[:REASON]} ..."


def _ratio(column: str, rounds: list[dict[str, float]], first: list[dict[str, float]]) -> str:
    ratios = []
    for figures, base in zip(rounds, first, strict=False):
        if figures and base and base[column]:
            ratios.append(figures[column] / base[column])
    return f"{median(ratios):.2f}" if ratios else ""


def _median_text(column: str, rounds: list[dict[str, float]]) -> str:
    values = [figures[column] for figures in rounds if column in figures]
    if not values:
        return ""
    value = median(values)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def write(path: Path, text: str) -> None:
    """Write the page."""
    with replacing(path) as temporary:
        temporary.write_text(text, "utf-8")
