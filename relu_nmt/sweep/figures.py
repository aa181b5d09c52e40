"""The plots of the report: lines in panels side by side, as an image that a page can hold."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_INCHES = (3.5, 3.0)
WIDE_INCHES = (7.2, 3.9)
MOST_COLUMNS = 3
# Told apart by marker and dashes where there is no colour; the colours differ in lightness too.
COLOURS = ("#1b1f24", "#d1495b", "#2f6db5", "#6a994e", "#8a5fb4", "#b5760a", "#0f8b8d", "#7a4419")
MARKERS = "osD^vPX*"
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
STYLE: Any = {"font.size": 9.5, "svg.hashsalt": "relu_nmt", "axes.edgecolor": "#8b9299"}
SPREAD = 0.06
MOST_MARKERS = 20


@dataclass
class Line:
    """A line of a panel.

    Args:
        label: of the legend, which has each once.
        style: number of its colour, marker and dashes.
        points: y by x; in a panel with names, x is the place of the name.
        errors: half widths of the intervals of the points, if there are any.
    """

    label: str
    style: int
    points: dict[float, float]
    errors: list[float] | None = None


@dataclass
class Panel:
    """A plot.

    Args:
        title: what is plotted, with its unit.
        x_label: the same of the horizontal axis.
        lines: what is drawn.
        names: of the places on the horizontal axis; by default it has numbers.
        log_x: whether the horizontal axis is logarithmic, and
        log_y: the vertical one.
        from_zero: whether the vertical axis begins at 0.
    """

    title: str
    x_label: str
    lines: list[Line] = field(default_factory=list)
    names: Sequence[str] | None = None
    log_x: bool = False
    log_y: bool = False
    from_zero: bool = False


def image(panels: Sequence[Panel]) -> str:
    """Return the panels with one legend, for the ``src`` of an image."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    columns = min(MOST_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    width, height = WIDE_INCHES if len(panels) == 1 else PANEL_INCHES
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        all_axes = figure.subplots(rows, columns, squeeze=False).flatten()
        legend: dict[str, Any] = {}  # each label once, in whichever panels it is drawn
        for axes, panel in zip(all_axes, panels, strict=False):
            _draw(axes, panel)
            for line, name in zip(*axes.get_legend_handles_labels(), strict=True):
                legend.setdefault(name, line)
        for axes in all_axes[len(panels) :]:
            axes.set_visible(False)
        shown = {"ncols": 2 * columns + 1, "frameon": False}
        figure.legend(legend.values(), legend.keys(), loc="outside upper left", **shown)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _draw(axes: "Axes", panel: Panel) -> None:
    for number, line in enumerate(panel.lines):
        # At named places lines stand side by side, so that their intervals can be told apart.
        shift = SPREAD * (number - (len(panel.lines) - 1) / 2) if panel.names else 0.0
        axes.errorbar(
            [x + shift for x in line.points],
            list(line.points.values()),
            line.errors,
            label=line.label,
            color=COLOURS[line.style % len(COLOURS)],
            marker=MARKERS[line.style % len(MARKERS)] if len(line.points) <= MOST_MARKERS else None,
            linestyle=DASHES[line.style % len(DASHES)],
            linewidth=1.6,
            markersize=5.5,
            elinewidth=1.0,
            capsize=3,
        )
    if panel.log_x:
        axes.set_xscale("log", base=2 if panel.names is None else 10)
    if panel.log_y:
        axes.set_yscale("log")
    if panel.names is not None:
        axes.set_xticks(range(len(panel.names)), panel.names)
        axes.set_xlim(-0.4, len(panel.names) - 0.6)
    elif panel.log_x:
        places = sorted({x for line in panel.lines for x in line.points})
        axes.set_xticks(places, [f"{x:g}" for x in places], rotation=45)
        axes.minorticks_off()
    if panel.from_zero:
        top = axes.get_ylim()[1]
        axes.set_ylim(-0.03 * top, 1.05 * top)  # room for whole markers
    axes.set_title(panel.title, loc="left", fontsize=9.5)
    axes.set_xlabel(panel.x_label)
    axes.grid(axis="y", color="#dfe2e5", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
