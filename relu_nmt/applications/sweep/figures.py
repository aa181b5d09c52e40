"""The plots of the report: lines in panels side by side, as images embedded in the page."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from relu_nmt.io.page import (
    LEAST_SEEDS,
    arms,
    common_legend,
    draw_image,
    line_style,
    plain_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from relu_nmt.applications.sweep.report import ReportData
    from relu_nmt.applications.sweep.results import Average

PANEL_INCHES = (3.5, 3.0)
WIDE_INCHES = (7.2, 3.9)
MOST_COLUMNS = 3
SPREAD = 0.06
MOST_MARKERS = 20
DOT = 6.0
"""Size of the dot of a seed, in points."""
LEAST_SPAN = 10.0
"""Least quotient of the largest and smallest value for a logarithmic vertical axis."""
MOST_BLEU = 100.0
COURSE_TITLES = {
    "train_loss": ("training loss, bits per token", False),
    "gradient_norm": ("gradient norm", True),
    "output_square": ("mean square of attention outputs", True),
    "query_norm": ("mean length of queries", False),
    "key_norm": ("mean length of keys", False),
    "output_growth": ("exponent e of outputs, decoder: n^e", False),
}
"""Title of each curve of a training, and whether its vertical axis is logarithmic."""
MEMORY_TITLES = {
    "d_bleu": "d-BLEU",
    "memory_variance_ratio": "variance ratio",
    "memory_anisotropy": "anisotropy",
}


@dataclass
class Line:
    """A line of a panel.

    Args:
        label: label in the legend.
        style: index of its colour, marker and dashes.
        points: y by x; in a panel with names, x is the index of the name.
        errors: length of each point's interval below and above it, if there are intervals.
        dots: x and y of single seeds that are too few for an interval.
    """

    label: str
    style: int
    points: dict[float, float]
    errors: list[tuple[float, float]] | None = None
    dots: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class Panel:
    """A plot."""

    title: str  # name of the plotted values, with their unit
    x_label: str  # name of the values on the horizontal axis, with their unit
    lines: list[Line] = field(default_factory=list)
    names: Sequence[str] | None = None  # labels on the horizontal axis; by default it has numbers
    log_x: bool = False  # whether the horizontal axis is logarithmic
    log_y: bool = False  # whether the vertical axis is logarithmic if its values span LEAST_SPAN
    from_zero: bool = False  # whether the vertical axis begins at 0


def image(panels: Sequence[Panel]) -> str:
    """Return the panels with one legend, for the ``src`` of an image.

    Leave out panels with a single point on the horizontal axis; without panels return "".
    """
    panels = [p for p in panels if len({x for line in p.lines for x in line.points}) > 1]
    if not panels:
        return ""
    # Lay the panels out in rows.
    columns = min(MOST_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)

    def draw(figure: "Figure") -> None:
        all_axes = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes, panel in zip(all_axes, panels, strict=False):
            _draw(axes, panel)
        for axes in all_axes[len(panels) :]:
            axes.set_visible(False)
        common_legend(figure, 2 * columns + 1)

    width, height = WIDE_INCHES if len(panels) == 1 else PANEL_INCHES
    return draw_image(width * columns, height * rows, draw)


def _draw(axes: "Axes", panel: Panel) -> None:
    for number, line in enumerate(panel.lines):
        # Shift lines over names sideways, so that their intervals do not overlap.
        style = line_style(line.style)
        if len(line.points) > MOST_MARKERS:
            style["marker"] = None
        shift = SPREAD * (number - (len(panel.lines) - 1) / 2) if panel.names else 0.0
        axes.errorbar(
            [x + shift for x in line.points],
            list(line.points.values()),
            None if line.errors is None else [*zip(*line.errors, strict=True)],
            label=line.label,
            elinewidth=1.0,
            capsize=3,
            **style,
        )
        # Draw single seeds as dots.
        for x, y in line.dots:
            axes.plot(x + shift, y, ".", color=style["color"], markersize=DOT, alpha=0.6)
    # Scale and label the axes.
    if panel.log_x:
        axes.set_xscale("log", base=2 if panel.names is None else 10)
    values = [y for line in panel.lines for y in line.points.values()]
    if panel.log_y and max(values) > LEAST_SPAN * min(values) > 0:
        axes.set_yscale("log")
    # Label the ticks: names, or the values on a logarithmic axis.
    if panel.names is not None:
        axes.set_xticks(range(len(panel.names)), panel.names)
        axes.set_xlim(-0.4, len(panel.names) - 0.6)
    elif panel.log_x:
        ticks = sorted({x for line in panel.lines for x in line.points})
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks], rotation=45)
        axes.minorticks_off()
    if panel.from_zero:
        top = axes.get_ylim()[1]
        axes.set_ylim(-0.03 * top, 1.05 * top)  # room for whole markers
    axes.set_xlabel(panel.x_label)
    plain_axes(axes, panel.title)


# ------------------------------------------------------------------- plots of a sweep


def length_name(length: int) -> str:
    """Return the title of a document length."""
    return "sentences" if length == 1 else f"{length:,}"


def length_figure(
    data: "ReportData", *columns: tuple[str, str, float], from_zero: bool = True
) -> str:
    """Return plots of means over document lengths, for the ``src`` of an image.

    Each of ``columns`` has the column, the title with the unit, and the divisor of the values.
    """
    panels = [
        Panel(
            title,
            "document length, tokens",
            lines_over_lengths(data, column, scale),
            [length_name(n) for n in data.lengths],
            from_zero=from_zero,
        )
        for column, title, scale in columns
    ]
    return image(panels)


def lines_over_lengths(data: "ReportData", column: str, scale: float) -> list[Line]:
    """Return a line for each system with values in the column."""
    lines = []
    for style, system in enumerate(data.systems):
        # Collect the averages by the index of their length.
        means = {
            float(x): average
            for x, average in enumerate(data.row(system))
            if average is not None and column in average.record
        }
        if not means:
            continue
        # Draw the means with their intervals, and too few seeds as dots.
        points = {x: own.record[column] / scale for x, own in means.items()}
        errors = [_error(own, column) for own in means.values()]
        line = Line(data.label(system), style, points, errors if any(map(any, errors)) else None)
        for x, own in means.items():
            if 1 < len(values := own.values(column)) < LEAST_SEEDS:
                line.dots += [(x, value / scale) for value in values]
        lines.append(line)
    return lines


def _error(average: "Average", column: str) -> tuple[float, float]:
    """Return an interval's length below and above a mean; only d-BLEU has one, few seeds none."""
    seeds, record = len(average.values(column)), average.record
    interval = record.get(f"{column}_{'document' if seeds == 1 else 'seed'}_interval")
    if interval is None or 1 < seeds < LEAST_SEEDS:
        return 0.0, 0.0
    return arms(record[column], interval, MOST_BLEU)


def course_figure(data: "ReportData") -> str:
    """Return plots of the first seed's trainings over updates, for the ``src`` of an image."""
    panels = []
    # Go through the cells backwards, so that the first seed's course stays.
    courses = {cell.system: cell.course for cell in reversed(data.cells)}
    for name, (title, log_y) in COURSE_TITLES.items():
        lines = [
            Line(data.label(system), style, dict(sorted(courses[system][name].items())))
            for style, system in enumerate(data.systems)
            if courses.get(system, {}).get(name)
        ]
        panels.append(Panel(title, "updates", lines, log_y=log_y))
    return image(panels)


def memory_figures(data: "ReportData") -> list[str]:
    """Return plots of the memories: over their sizes, and of their sums."""
    memories = data.memories()
    figures = []
    # Plot scores and statistics over sizes, if a network has several sizes.
    if max((len(records) for records in memories.values()), default=0) > 1:
        panels = []
        for column, title in MEMORY_TITLES.items():
            lines = []
            for style, (name, records) in enumerate(memories.items()):
                points = {one["memory_size"]: one[column] for one in records if column in one}
                if points:
                    lines.append(Line(name, style, points))
            panels.append(Panel(title, "size of the memory, keys", lines, log_x=True))
        figures.append(image(panels))
    # Plot the sum of the largest p percent of the weights over p, with a line for each size.
    sizes = sorted({one["memory_size"] for records in memories.values() for one in records})
    percents = list(data.buckets("memory_top_sum["))
    panels = []
    for name, records in memories.items():
        lines = []
        for record in records:
            sums = {
                float(percent): value
                for percent in percents
                if (value := record.get(f"memory_top_sum[{percent}]")) is not None
            }
            if sums:
                # Give a size the same style in every panel.
                size = record["memory_size"]
                lines.append(Line(f"size {size:g}", sizes.index(size), sums))
        title = f"{name}: share of the sum"
        panels.append(Panel(title, "largest p %", lines, log_x=True, from_zero=True))
    return [source for source in (*figures, image(panels)) if source]
