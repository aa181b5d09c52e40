"""Plots of curves, side by side under one legend."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from relu_nmt.drawing.figures import common_legend, draw_svg, line_style, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_INCHES = (3.5, 3.0)
WIDE_INCHES = (7.2, 3.9)
MOST_COLUMNS = 3
SHIFT = 0.06  # between lines over one name, as a share of the distance of two names
MOST_MARKERS = 20
DOT = 6.0  # size of the dot of a seed, in points
LEAST_SPAN = 10.0  # least ratio of largest to smallest value for a logarithmic vertical axis


@dataclass
class Curve:
    """A line of a panel."""

    label: str  # label in the legend
    style: int  # index of its color, marker and dashes
    points: dict[float, float]  # y by x. In a panel with names, x is the index of the name.
    # Length of each point's interval below and above it, if there are intervals.
    errors: list[tuple[float, float]] = field(default_factory=list)
    # x and y of single values, such as seeds that are too few for an interval.
    dots: list[tuple[float, float]] = field(default_factory=list)
    dashes: int | None = None  # index of dashes, if not the dashes of the style


@dataclass
class Panel:
    """A plot."""

    title: str  # name of the plotted values, with their unit
    x_label: str  # name of the values on the horizontal axis, with their unit
    lines: list[Curve] = field(default_factory=list)
    names: Sequence[str] | None = None  # labels on the horizontal axis, by default numbers
    log_x: bool = False  # whether the horizontal axis is logarithmic
    log_y: bool = False  # whether the vertical axis is logarithmic if its values span LEAST_SPAN
    from_zero: bool = False  # whether the vertical axis begins at 0, or below for negative values

    @property
    def x_values(self) -> list[float]:
        """Distinct values on the horizontal axis, sorted."""
        return sorted(set().union(*(line.points for line in self.lines)))

    @property
    def y_values(self) -> list[float]:
        """All values on the vertical axis."""
        return list(chain.from_iterable(line.points.values() for line in self.lines))


def curve_lines(curves: Iterable[tuple[str, Mapping[Any, float]]]) -> list[Curve]:
    """Return a line for each named curve, y by x, each in another style."""
    lines = []
    for style, (name, points) in enumerate(curves):
        lines.append(Curve(name, style, dict(sorted(points.items()))))
    return lines


def draw_panels(panels: Sequence[Panel], share_y: bool = False) -> str:
    """Return the panels with one legend as SVG, "" without panels."""
    drawn = []
    for panel in panels:
        panel = replace(panel, lines=[line for line in panel.lines if line.points])
        if len(panel.x_values) > 1:
            drawn.append(panel)
    if not drawn:
        return ""
    columns = min(MOST_COLUMNS, len(drawn))
    rows = -(-len(drawn) // columns)

    def draw(figure: "Figure") -> None:
        sharing: Any = "row" if share_y else False
        all_axes = figure.subplots(rows, columns, squeeze=False, sharey=sharing).flatten()
        for axes, panel in zip(all_axes, drawn, strict=False):
            _draw(axes, panel)
        # Include 0, and leave room for whole markers.
        ranges = [axes.get_ylim() for axes in all_axes]
        for axes, panel, (low, top) in zip(all_axes, drawn, ranges, strict=False):
            if panel.from_zero:
                axes.set_ylim(low if min(panel.y_values) < 0 else -0.03 * top, 1.05 * top)
        for axes in all_axes[len(drawn) :]:
            axes.set_visible(False)
        common_legend(figure, 2 * columns + 1)

    width, height = PANEL_INCHES
    if len(drawn) == 1:
        width, height = WIDE_INCHES
    return draw_svg(width * columns, height * rows, draw)


def _draw(axes: "Axes", panel: Panel) -> None:
    for number, line in enumerate(panel.lines):
        # Shift lines over names sideways, so that their intervals do not overlap.
        style = line_style(line.style, line.dashes)
        if len(line.points) > MOST_MARKERS:
            style["marker"] = None
        shift = SHIFT * (number - (len(panel.lines) - 1) / 2) if panel.names else 0.0
        axes.errorbar(
            [x + shift for x in line.points],
            list(line.points.values()),
            np.array(line.errors).T if any(map(any, line.errors)) else None,
            label=line.label,
            elinewidth=1.0,
            capsize=3,
            **style,
        )
        for x, y in line.dots:
            axes.plot(x + shift, y, ".", color=style["color"], markersize=DOT, alpha=0.6)
    if panel.log_x:
        axes.set_xscale("log", base=2 if panel.names is None else 10)
    values = panel.y_values
    if panel.log_y and max(values) > LEAST_SPAN * min(values) > 0:
        axes.set_yscale("log")
    if panel.names is not None:
        axes.set_xticks(range(len(panel.names)), panel.names)
        axes.set_xlim(-0.4, len(panel.names) - 0.6)
    elif panel.log_x:
        ticks = panel.x_values
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks], rotation=45)
        axes.minorticks_off()
    axes.set_xlabel(panel.x_label)
    plain_axes(axes, panel.title)
