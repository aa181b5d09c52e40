"""Draw the plots of the laboratory from the tables of its pages.

    python docs/draw_figures.py

Each plot has the page and heading of its table in a function below. The background is transparent
and the text mid-gray, readable in light and dark. ``train_and_draw.py`` draws trained models.
"""

import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
LAB = Path(__file__).with_name("lab")
sys.path.insert(0, str(ROOT))

from examples.paper_registry import read_measurements  # noqa: E402
from relu_nmt.drawing.figures import STYLE, common_legend, line_style, plain_axes  # noqa: E402

GRAY = "#7d858d"
TRANSPARENT = {
    "text.color": GRAY,
    "axes.labelcolor": GRAY,
    "axes.edgecolor": GRAY,
    "xtick.color": GRAY,
    "ytick.color": GRAY,
    "svg.fonttype": "none",
}
COLORS = {"softmax": "#4a8fd6", "ReLU": "#d9822b", "SimA": "#4f9e6a", "peer": "#9aa3ab"}
COLORS["relu/L"] = COLORS["ReLU"]
GROUPS = ("one sentence", "128 tokens", "256", "512", "1,024")


def tables(page: str, heading: str) -> Iterator[list[list[str]]]:
    """Yield the tables under a heading of a page, each as rows of cells, the header first."""
    text = (LAB / page).read_text("utf-8")
    level, _, following = text.partition(f"# {heading}\n")
    depth = len(level) - len(level.rstrip("#")) + 1
    section = re.split(rf"^#{{1,{depth}}} ", following, maxsplit=1, flags=re.MULTILINE)[0]
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
    scores = {}
    names = ("sinusoidal+t5", "sinusoidal+rotary", "sinusoidal+rotary+t5")
    heading = "Aligned document attention with a bias of distances"
    for name, table in zip(names, tables("documents.md", heading), strict=False):
        rows = {row[0]: row for row in table[1:]}
        scores[name] = {
            "softmax": [number(rows[group][1]) for group in GROUPS],
            "ReLU in encoder and decoder": [number(rows[group][2]) for group in GROUPS],
        }
    return scores


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


def attention_costs() -> dict[str, dict[str, list[float]]]:
    """Return tokens, milliseconds and megabytes of forward and backward, by attention."""
    [table, *_] = tables("attention_cost.md", "Time and memory, measured")
    rows = [row for row in table[1:] if row[:2] == ["fp32", "both"]]
    names = {
        "ReLU, whole matrix": table[0].index("reference"),
        "ReLU, blockwise": table[0].index("blockwise"),
        "softmax, PyTorch's fused": table[0].index("sdpa"),
    }
    return {
        name: {
            "tokens": [number(row[2]) for row in rows],
            "milliseconds": [number(row[column]) for row in rows],
            "memory, MB": [number(row[column].partition(", ")[2]) for row in rows],
        }
        for name, column in names.items()
    }


def training_costs() -> dict[str, dict[str, list[float]]]:
    """Return tokens of a document, microseconds a token and gigabytes of a training step."""
    [table, *_] = tables("performance.md", "By length")
    costs = {}
    for row in table[1:]:
        name = row[0].partition(":")[0]
        if "the same" in name:  # with checkpointing
            continue
        cells = [cell.replace("*", "").split(", ") for cell in row[1:] if "out of" not in cell]
        costs[name] = {
            "tokens": [number(cell) for cell in table[0][1 : 1 + len(cells)]],
            "µs a token": [number(time) for time, _ in cells],
            "memory, GB": [number(memory) for _, memory in cells],
        }
    return costs


def learning_curves() -> dict[str, dict[str, list[float]]]:
    """Return accuracy in validation by updates, for each attention of the two image models."""
    table = read_measurements()["comparison-curves"]
    labels = {
        "ViT": {
            "softmax": "softmax",
            "softmax qk-norm": "softmax, normed q, k",
            "relu/L": "relu/L, normed q, k",
            "SimA": "SimA",
        },
        "XCiT": {"XCiT XCA": "XCA", "XCiT SimA": "SimA"},
    }
    curves = {}
    for name, rows in labels.items():
        curves[name] = {label: list(map(number, table["rows"][row])) for row, label in rows.items()}
        curves[name]["updates"] = list(map(number, table["columns"]))
    return curves


def perplexities() -> dict[str, list[float]]:
    """Return updates, and perplexity in validation with softmax and with ReLU."""
    [table] = tables("pictures.md", "How they learn")
    columns = zip(*table, strict=True)
    return {name: [number(cell) for cell in cells] for name, *cells in columns}


def draw_bleu(figure: Figure) -> None:
    """Draw a plot for each kind of positions."""
    for axes, (name, lines) in zip(
        figure.subplots(1, 3, sharey=True), bleu_by_length().items(), strict=True
    ):
        plain_axes(axes, f"--positions {name}")
        axes.grid(axis="y", color=GRAY, alpha=0.3)
        for index, (label, values) in enumerate(lines.items()):
            color = color_of_attention(label)
            axes.plot(GROUPS, values, **{**line_style(index), "color": color}, label=label)
        axes.set_xticks(range(len(GROUPS)), ["1 sent.", *(g.split()[0] for g in GROUPS[1:])])
        axes.set_xlabel("tokens of a group")
    figure.axes[0].set_ylabel("d-BLEU")
    common_legend(figure, 2)


def color_of(program: str) -> str:
    """Return the color of a program's bar."""
    if not program.startswith("relu_nmt"):
        return COLORS["peer"]
    return COLORS["ReLU" if "reluformer" in program else "softmax"]


def draw_speeds(figure: Figure) -> None:
    """Draw bars of target tokens per second, a plot for each task."""
    for axes, (task, rows) in zip(figure.subplots(1, 2), speeds().items(), strict=True):
        axes.set_title(task, loc="left", fontsize=9.5)
        names = list(reversed(rows))
        colors = [color_of(name) for name in names]
        axes.barh(names, [rows[name] for name in names], color=colors)
        axes.set_xlabel("target tokens a second")
        axes.spines[["top", "right"]].set_visible(False)


def draw_costs(figure: Figure, costs: dict[str, dict[str, list[float]]]) -> None:
    """Draw a plot for each measure by length, a line for each attention; all axes logarithmic."""
    _, *measures = next(iter(costs.values()))
    for axes, measure in zip(figure.subplots(1, len(measures)), measures, strict=True):
        plain_axes(axes, measure)
        axes.grid(axis="y", color=GRAY, alpha=0.3)
        for index, (name, values) in enumerate(costs.items()):
            style = {**line_style(index), "color": color_of_attention(name)}
            axes.loglog(values["tokens"], values[measure], **style, label=name)
        tokens = max((values["tokens"] for values in costs.values()), key=len)
        axes.set_xticks(tokens, [f"{count:,.0f}" for count in tokens], minor=False)
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("tokens")
    common_legend(figure, 2)


def color_of_attention(name: str) -> str:
    """Return the color of an attention's line, by the start of its name."""
    return next((color for start, color in COLORS.items() if name.startswith(start)), GRAY)


def draw_learning(figure: Figure) -> None:
    """Draw accuracy of two image models and perplexity of a translation model by updates."""
    plots = {f"{name}, CIFAR-10: accuracy, %": lines for name, lines in learning_curves().items()}
    plots["translation of documents: perplexity"] = perplexities()
    for axes, (title, lines) in zip(figure.subplots(1, len(plots)), plots.items(), strict=True):
        plain_axes(axes, title)
        axes.grid(axis="y", color=GRAY, alpha=0.3)
        updates = lines.pop("updates")
        for index, (name, values) in enumerate(lines.items()):
            style = {**line_style(index), "color": color_of_attention(name), "markersize": 4}
            axes.plot(updates, values, **style, label=name)
        if "perplexity" in title:
            axes.set_yscale("log")
            axes.set_yticks([1, 2, 5, 10, 20, 50, 100], minor=False)
            axes.yaxis.set_major_formatter("{x:g}")
            axes.minorticks_off()
        corner = "lower right" if "accuracy" in title else "upper right"
        axes.legend(frameon=False, fontsize=8, loc=corner)
        axes.set_xlabel("updates")


def main() -> None:
    """Write the figures."""
    with mpl.rc_context({**STYLE, **TRANSPARENT}):
        for name, size, draw in (
            ("bleu_by_length", (9.5, 3.2), draw_bleu),
            ("speed_beside_peers", (9.5, 2.6), draw_speeds),
            ("learning_curves", (9.5, 3.2), draw_learning),
            ("attention_by_length", (9.5, 3.2), partial(draw_costs, costs=attention_costs())),
            ("training_by_length", (9.5, 3.2), partial(draw_costs, costs=training_costs())),
        ):
            figure = Figure(figsize=size, layout="constrained")
            draw(figure)
            figure.savefig(LAB / f"{name}.svg", transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
