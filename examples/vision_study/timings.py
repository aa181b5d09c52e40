r"""Time attention blocks by number of tokens N and width D.

    python examples/vision_study/timings.py
    python examples/vision_study/timings.py --setting paper      # on a GPU

SimA runs in both orders of its products. Softmax runs as plain products, like the other attentions,
and by PyTorch's fused kernel. The script writes timings.html and timings.csv.

Reference: Koohpayegani and Pirsiavash 2024, "SimA", Figure 1 and section 4: one block, products in
the order (Q K^T) V, and on a GPU up to images of 1,536 pixels and D = 8192.
"""

import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from study import published_rows
from torch import Tensor

from relu_nmt.applications.environment import describe_environment
from relu_nmt.attention.base import Attention, build_attention, use_backend
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.token_axis import SimAAttention
from relu_nmt.cli.command import Command
from relu_nmt.config import option, settings
from relu_nmt.config.registry import Spec
from relu_nmt.drawing.pages import csv_text, render_page
from relu_nmt.drawing.panels import Curve, Panel, draw_panels
from relu_nmt.errors import ConfigError, reporting
from relu_nmt.evaluation.significance import NORMAL_QUANTILE
from relu_nmt.io.safe_write import write_text
from relu_nmt.modules.multihead import SelfAttention

REPORT = "timings.html"
TABLE = "timings.csv"
PLAIN = "softmax"
FUSED = "softmax fused"
TOKENS_FIRST = "SimA (QK)V"
CHANNELS_FIRST = "SimA Q(KV)"
SPECS = {
    PLAIN: "softmax",
    FUSED: "softmax",
    "ELU": "linear",
    TOKENS_FIRST: "sima",
    CHANNELS_FIRST: "sima",
    "XCA": "xca",
    "SOFT": "soft",
    "Nystromformer": "nystromformer",
    "Linformer": "linformer:length={tokens}",
    "Performer": "performer",
    "efficient": "efficient",
    "cosFormer": "cosformer",
}
"""Attentions by their names in the table, from Koohpayegani and Pirsiavash 2024 and other work."""
_TABLES = {(256, 64): "sima-figure1-tokens", (64, 256): "sima-figure1-channels"}


def _milliseconds(entry: str) -> dict[str, tuple[float, ...]]:
    """Return the numbers of each row of an entry of the papers."""
    return {name: tuple(map(float, row)) for name, row in published_rows(entry).items()}


PUBLISHED = {size: _milliseconds(entry) for size, entry in _TABLES.items()}
"""Milliseconds on Jetson Nano, Apple M1 and Raspberry Pi 4, by N and D."""
PUBLISHED_HEADS = 8
READINGS = {"D of all heads": 1, "D of each head": PUBLISHED_HEADS}
"""The two readings of D in the paper, each with the width of all heads as a multiple of D."""
SETTINGS: dict[str, dict[str, Any]] = {
    "small": {},
    "paper": {
        "runs": 1000,
        "batch_size": 8,
        "tokens": (196, 784, 2304, 4096, 9216),
        "widths": (384, 768, 1536, 3072, 6144, 8192),
    },
}


@settings
class TimingSettings:
    """The attentions, the sizes and the number of runs."""

    setting: str = option(
        "small", "sizes to begin with. Other flags win", presets=SETTINGS, metavar="NAME"
    )
    attentions: tuple[str, ...] = option(
        tuple(SPECS),
        "time these only. Names with spaces are in quotes",
        choices=tuple(SPECS),
        several=True,
    )
    tokens: tuple[int, ...] = option(
        (64, 196, 576, 1024),
        "numbers of tokens N, at the first of --widths",
        least=1,
        metavar="N,N",
    )
    widths: tuple[int, ...] = option(
        (384, 768, 1536), "widths D, at the first of --tokens from 196", least=1, metavar="D,D"
    )
    heads: int = option(8, "attention heads, of which D is a multiple", least=1)
    batch_size: int = option(1, "images at once", least=1)
    runs: int = option(30, "runs of each block, which take turns", least=1)
    cpu: bool = option(False, "use the CPU even if there is a GPU")
    threads: int = option(1, "CPU threads", least=1)
    out: str = option("vision-study/timings", "folder of the report", metavar="DIR")

    def check(self) -> None:
        """Check that the heads divide every width.

        Raises:
            ConfigError: a width is no multiple of the heads.
        """
        for width in self.widths:
            if width % self.heads:
                raise ConfigError(f"--widths {width} must be a multiple of --heads {self.heads}")


@dataclass(frozen=True)
class Size:
    """A problem: images of N tokens and D channels in H heads.

    Args:
        tokens: number N of tokens.
        width: width D of all heads together.
        heads: number H of heads.
        part: table or plot of the report that shows it.
    """

    tokens: int
    width: int
    heads: int
    part: str


class TokensFirst(SimAAttention):
    """SimA as (Q K^T) V, with N^2 D products."""

    def channels_first(self, num_queries: int, num_keys: int) -> bool:
        """Return False."""
        return False


class ChannelsFirst(SimAAttention):
    """SimA as Q (K^T V), with N D^2 / H products."""

    def channels_first(self, num_queries: int, num_keys: int) -> bool:
        """Return True."""
        return True


BACKENDS = {PLAIN: "reference", FUSED: "fused"}
ORDERS = {TOKENS_FIRST: TokensFirst, CHANNELS_FIRST: ChannelsFirst}


def make_block(name: str, size: Size, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return a block: the projections and the attention between them.

    Args:
        name: name of an attention in ``SPECS``.
        size: size of the problem.
        device: device of the block.

    Raises:
        ConfigError: the attention cannot work at this size.
    """
    head_dim = size.width // size.heads
    attention: Attention
    if name in ORDERS:
        attention = ORDERS[name](SimAAttention.Config(), size.heads, head_dim, 0.0)
    else:
        spec = Spec.parse(SPECS[name].format(tokens=size.tokens))
        attention = build_attention(spec, "encoder", 0, size.heads, head_dim, 0.0)
        use_backend(attention, BACKENDS.get(name, "auto"))
    block = SelfAttention(size.width, attention).to(device).eval()
    visibility = Visibility(size.tokens, size.tokens, device=device)
    return lambda x: block(x, visibility)


@torch.inference_mode()
def timed(size: Size, settings: TimingSettings, device: torch.device) -> dict[str, list[float]]:
    """Return the milliseconds of all runs of each attention.

    The attentions take turns, so that all meet the same state of the machine. The first turn does
    not count. One thread of a CPU has processor time, which other processes hardly change.

    Raises:
        ConfigError: an attention cannot work at this size.
    """
    torch.manual_seed(1)
    x = torch.randn(settings.batch_size, size.tokens, size.width, device=device)
    blocks = {name: make_block(name, size, device) for name in settings.attentions}
    times: dict[str, list[float]] = {name: [] for name in blocks}
    one_thread = device.type == "cpu" and settings.threads == 1
    clock = time.process_time if one_thread else time.perf_counter
    for run_index in range(settings.runs + 1):
        for name, block in blocks.items():
            start = clock()
            block(x)
            if device.type == "cuda":
                torch.cuda.synchronize()
            if run_index > 0:
                times[name].append(1e3 * (clock() - start))
    return times


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of a median: two of the values, by their ranks.

    The ranks are half the number of values, minus and plus 1.96 standard deviations of a binomial.
    """
    ordered = sorted(values)
    rank = max(0, int((len(ordered) - NORMAL_QUANTILE * math.sqrt(len(ordered))) / 2))
    return ordered[rank], ordered[-1 - rank]


def sizes_of(settings: TimingSettings) -> list[Size]:
    """Return the sizes of the paper in both readings of D, and the sizes of the two plots."""
    sizes = []
    for tokens, width in PUBLISHED:
        for part, factor in READINGS.items():
            sizes.append(Size(tokens, factor * width, PUBLISHED_HEADS, part))
    first = min((n for n in settings.tokens if n >= 196), default=settings.tokens[0])
    by_tokens = [Size(n, settings.widths[0], settings.heads, "by N") for n in settings.tokens]
    by_width = [Size(first, width, settings.heads, "by D") for width in settings.widths]
    return sizes + by_tokens + by_width


def panels_of(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Return the plots of medians over N and over D."""
    panels = []
    for part, other, axis in (("by N", "width", "tokens"), ("by D", "tokens", "width")):
        points: dict[str, dict[float, float]] = {}
        for row in rows:
            if row["part"] == part:
                points.setdefault(row["attention"], {})[row[axis]] = row["median"]
                fixed_size = row[other]
        title = f"ms a block, {'D' if part == 'by N' else 'N'} = {fixed_size}"
        panel = Panel(title, f"{part[-1]} ({axis})", log_x=True, log_y=True)
        for style, (name, line_points) in enumerate(points.items()):
            panel.lines.append(Curve(name, style, line_points))
        panels.append(panel)
    return panels


def table_of(rows: Sequence[Mapping[str, Any]], tokens: int, width: int) -> dict[str, Any]:
    """Return the table of a size of the paper: the medians of each attention, and the paper's."""
    medians_of: dict[str, list[float]] = {}
    for part, factor in READINGS.items():
        for row in rows:
            if (row["part"], row["tokens"], row["width"]) == (part, tokens, factor * width):
                medians_of.setdefault(row["attention"], []).append(row["median"])
    lines = []
    for name, medians in medians_of.items():
        published = PUBLISHED[tokens, width].get(name, (None, None, None))
        lines.append((name, [*medians, *published]))
    return {"tokens": tokens, "width": width, "lines": lines}


def write_report(rows: Sequence[Mapping[str, Any]], settings: TimingSettings, device: str) -> None:
    """Write the page and the table of all times.

    Raises:
        DataError: they cannot be written.
    """
    folder = Path(settings.out)
    environment = describe_environment([])
    facts = [(name, environment.get(name)) for name in ("cpu", "relu_nmt", "revision", "torch")]
    values = {
        "facts_of_all": [
            ("device", device),
            ("threads", settings.threads),
            ("images at once", settings.batch_size),
            ("runs of each", settings.runs),
            *facts,
            ("report of", time.strftime("%d %B %Y, %H:%M")),
        ],
        "tables": [table_of(rows, tokens, width) for tokens, width in PUBLISHED],
        "figures": [("Medians; both axes are logarithmic.", draw_panels(panels_of(rows)))],
    }
    with reporting(f"{folder / REPORT}: cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / TABLE, csv_text(list(rows[0]), rows))
        write_text(folder / REPORT, render_page(Path(__file__).parent, REPORT, values))


def run(settings: TimingSettings) -> None:
    """Time all blocks at all sizes, and write the report.

    Raises:
        ConfigError: an attention cannot work at a size.
        DataError: the report cannot be written.
    """
    device = torch.device("cuda" if torch.cuda.is_available() and not settings.cpu else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    torch.set_num_threads(settings.threads)
    sizes = sizes_of(settings)
    rows = []
    for size in sizes:  # check all before the first run
        for attention in settings.attentions:
            make_block(attention, size, torch.device("meta"))
    for size in sizes:
        times_of = timed(size, settings, device)
        base_times = times_of[settings.attentions[0]]
        for attention, times in times_of.items():
            row = {**vars(size), "attention": attention, "mean": statistics.fmean(times)}
            row["median"] = statistics.median(times)
            # Compare the times of a turn, beside the first attention's.
            ratios = [
                milliseconds / base_milliseconds
                for milliseconds, base_milliseconds in zip(times, base_times, strict=True)
            ]
            row["ratio"] = statistics.median(ratios)
            row["ratio_low"], row["ratio_high"] = median_interval(ratios)
            rows.append(row)
            print(
                f"{size.part:14} N {size.tokens:5} D {size.width:5} {attention:14} "
                f"{row['median']:9.3f} ms",
                flush=True,
            )
    write_report(rows, settings, name)
    print(f"report: {Path(settings.out) / REPORT}")


main = Command("timings", __doc__, TimingSettings, run, user_modules=False)

if __name__ == "__main__":
    sys.exit(main())
