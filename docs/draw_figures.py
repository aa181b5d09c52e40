"""Draw the figures of the laboratory from the tables of its pages.

    python docs/draw_figures.py

``bleu_by_length.svg`` shows the tables of results.md, ``speed_beside_peers.svg`` those of
benchmarks.md. The background is transparent and the text mid-grey, readable in light and dark.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
LAB = Path(__file__).with_name("lab")
sys.path.insert(0, str(ROOT))

from relu_nmt.io.page import STYLE, common_legend, line_style, plain_axes  # noqa: E402

GREY = "#7d858d"
TRANSPARENT = {
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "svg.fonttype": "none",
}
COLOURS = {"softmax": "#4a8fd6", "ReLU": "#d9822b", "peer": "#9aa3ab"}
GROUPS = ("one sentence", "128 tokens", "256", "512", "1,024")


def tables(page: str, heading: str) -> Iterator[list[list[str]]]:
    """Yield the tables under a heading of a page, each as rows of cells, the header first."""
    text = (LAB / page).read_text("utf-8")
    level, _, rest = text.partition(f"# {heading}\n")
    depth = len(level) - len(level.rstrip("#")) + 1
    section = re.split(rf"^#{{1,{depth}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    rows: list[list[str]] = []
    for line in [*section.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip(" *") for cell in line.strip().strip("|").split("|")])
        elif rows:
            yield [rows[0], *rows[2:]]
            rows = []


def number(cell: str) -> float:
    """Return the number at the start of a cell."""
    return float(cell.replace(",", "").split()[0].strip("*"))


def bleu_by_length() -> dict[str, dict[str, list[float]]]:
    """Return d-BLEU by group length for softmax and ReLU, for each kind of positions."""
    found = {}
    names = ("sinusoidal+t5", "sinusoidal+rotary", "sinusoidal+rotary+t5")
    heading = "Aligned document attention with a bias of distances"
    for name, table in zip(names, tables("results.md", heading), strict=False):
        rows = {row[0]: row for row in table[1:]}
        found[name] = {
            "softmax": [number(rows[group][1]) for group in GROUPS],
            "ReLU in encoder and decoder": [number(rows[group][2]) for group in GROUPS],
        }
    return found


def speeds() -> dict[str, dict[str, float]]:
    """Return tokens per second by program: training, and decoding documents of 1,024 tokens."""
    [training, *_] = tables("benchmarks.md", "Training")
    [documents, *_] = tables("benchmarks.md", "Decoding documents")
    return {
        "training, float32": {
            row[0].removesuffix(", float32"): number(row[1])
            for row in training[1:]
            if row[0].endswith("float32")
        },
        "decoding documents of 1,024 tokens": {
            row[0].replace(", float32", ""): number(row[5])
            for row in documents[1:]
            if row[0].endswith(("float32", ", int8"))
        },
    }


def draw_bleu(figure: Figure) -> None:
    """Draw a plot for each kind of positions."""
    for axes, (name, lines) in zip(
        figure.subplots(1, 3, sharey=True), bleu_by_length().items(), strict=True
    ):
        plain_axes(axes, f"--positions {name}")
        axes.grid(axis="y", color=GREY, alpha=0.3)
        for index, (label, values) in enumerate(lines.items()):
            colour = COLOURS["ReLU" if "ReLU" in label else "softmax"]
            axes.plot(GROUPS, values, **{**line_style(index), "color": colour}, label=label)
        axes.set_xticks(range(len(GROUPS)), ["1 sent.", *(g.split()[0] for g in GROUPS[1:])])
        axes.set_xlabel("tokens of a group")
    figure.axes[0].set_ylabel("d-BLEU")
    common_legend(figure, 2)


def colour_of(program: str) -> str:
    """Return the colour of a program's bar."""
    if not program.startswith("relu_nmt"):
        return COLOURS["peer"]
    return COLOURS["ReLU" if "reluformer" in program else "softmax"]


def draw_speeds(figure: Figure) -> None:
    """Draw bars of target tokens per second, a plot for each task."""
    for axes, (task, rows) in zip(figure.subplots(1, 2), speeds().items(), strict=True):
        axes.set_title(task, loc="left", fontsize=9.5)
        names = list(reversed(rows))
        colours = [colour_of(name) for name in names]
        axes.barh(names, [rows[name] for name in names], color=colours)
        axes.set_xlabel("target tokens a second")
        axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Write the figures."""
    with mpl.rc_context({**STYLE, **TRANSPARENT}):
        for name, size, draw in (
            ("bleu_by_length", (9.5, 3.2), draw_bleu),
            ("speed_beside_peers", (9.5, 2.6), draw_speeds),
        ):
            figure = Figure(figsize=size, layout="constrained")
            draw(figure)
            figure.savefig(LAB / f"{name}.svg", transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
