"""The plots of the report: lines in panels side by side, as an image that a page can hold."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from relu_nmt.io.page import common_legend, draw_image, line_style, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_INCHES = (3.5, 3.0)
WIDE_INCHES = (7.2, 3.9)
MOST_COLUMNS = 3
SPREAD = 0.06
MOST_MARKERS = 20
DOT = 6.0
"""Size of a seed's dot, in points."""
LEAST_SPAN = 10.0
"""Of the values of a logarithmic vertical axis, the largest over the smallest."""


@dataclass
class Line:
    """A line of a panel.

    Args:
        label: of the legend, which has each once.
        style: number of its colour, marker and dashes.
        points: y by x; in a panel with names, x is the place of the name.
        errors: how far the interval of each point reaches below and above it, if there are any.
        dots: x and y of single seeds, where they are too few for an interval.
    """

    label: str
    style: int
    points: dict[float, float]
    errors: list[tuple[float, float]] | None = None
    dots: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class Panel:
    """A plot.

    Args:
        title: what is plotted, with its unit.
        x_label: the same of the horizontal axis.
        lines: what is drawn.
        names: of the places on the horizontal axis; by default it has numbers.
        log_x: whether the horizontal axis is logarithmic, and
        log_y: the vertical one, where its values differ by powers of ten.
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
    """Return the panels with one legend, for the ``src`` of an image.

    Panels with a single place on the horizontal axis are left out; the image is empty if all are.
    """
    panels = [p for p in panels if len({x for line in p.lines for x in line.points}) > 1]
    if not panels:
        return ""
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
        # At named places lines stand side by side, so that their intervals can be told apart.
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
        for x, y in line.dots:
            axes.plot(x + shift, y, ".", color=style["color"], markersize=DOT, alpha=0.6)
    if panel.log_x:
        axes.set_xscale("log", base=2 if panel.names is None else 10)
    values = [y for line in panel.lines for y in line.points.values()]
    if panel.log_y and max(values) > LEAST_SPAN * min(values) > 0:
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
    axes.set_xlabel(panel.x_label)
    plain_axes(axes, panel.title)
