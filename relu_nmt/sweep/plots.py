"""Line plots over document lengths as SVG that takes its colours from the page."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

PANEL_INCHES = (3.5, 2.75)
WIDE_INCHES = (7.2, 3.4)
MARKERS = "osD^vPX*"
# Stand-ins that matplotlib understands; the SVG gets the page's colours in their place.
INK, GRID, SERIES = "#010203", "#040506", "#0a0b{:02x}"
NUM_SERIES_COLOURS = 8


@dataclass(frozen=True)
class Line:
    """One line of a plot.

    Args:
        series: number of its colour and marker.
        points: (position on the axis, value, half width of its interval or None).
    """

    series: int
    points: tuple[tuple[int, float, float | None], ...]


@dataclass(frozen=True)
class Panel:
    """One plot.

    Args:
        title: what is shown, with its unit.
        ticks: names of the positions on the horizontal axis.
        lines: one per system.
        from_zero: whether the vertical axis begins at 0.
    """

    title: str
    ticks: tuple[str, ...]
    lines: tuple[Line, ...]
    from_zero: bool = True


def draw(panels: Sequence[Panel], label: str, name: str) -> str:
    """Return the panels side by side as an ``<svg>`` element.

    Args:
        panels: one or more.
        label: of the horizontal axis.
        name: distinguishes the ids in the SVG from those of other plots on the page.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.size": 9.5,
        "text.color": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with mpl.rc_context(settings):
        width, height = WIDE_INCHES if len(panels) == 1 else PANEL_INCHES
        figure = Figure(figsize=(width * len(panels), height), layout="constrained")
        FigureCanvasSVG(figure)
        for axes, panel in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            _draw_panel(axes, panel, label)
        text = io.StringIO()
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(text, format="svg", transparent=True, metadata=metadata)
    return _for_the_page(text.getvalue(), name)


def _draw_panel(axes: object, panel: Panel, label: str) -> None:
    for line in panel.lines:
        if not line.points:
            continue
        positions, values, intervals = zip(*line.points, strict=True)
        colour = SERIES.format(line.series % NUM_SERIES_COLOURS)
        marker = MARKERS[line.series % len(MARKERS)]
        # Lines of different systems side by side, so that their intervals can be told apart.
        spread = 0.06 * (line.series - (len(panel.lines) - 1) / 2)
        positions = [position + spread for position in positions]
        axes.plot(
            positions, values, color=colour, marker=marker, markersize=5, linewidth=1.8, zorder=3
        )
        if any(intervals):
            sizes = [interval or 0.0 for interval in intervals]
            axes.errorbar(
                positions, values, sizes, fmt="none", ecolor=colour, elinewidth=1.2, capsize=3
            )
    axes.set_xticks(range(len(panel.ticks)), panel.ticks)
    axes.set_xlim(-0.4, len(panel.ticks) - 0.6)
    axes.set_xlabel(label)
    axes.set_title(panel.title, loc="left", fontsize=9.5, pad=9)
    if panel.from_zero:
        axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)


def _for_the_page(svg: str, name: str) -> str:
    """Return the ``<svg>`` element alone, with the page's colours and ids of its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = svg.replace(INK, "currentColor").replace(GRID, "var(--grid)")
    for number in range(NUM_SERIES_COLOURS):
        svg = svg.replace(SERIES.format(number), f"var(--series-{number})")
    return svg.strip()


def marker_svg(series: int) -> str:
    """Return a short line with the marker of a system, for the legend."""
    colour = f"var(--series-{series % NUM_SERIES_COLOURS})"
    shapes = {
        "o": '<circle cx="14" cy="7" r="3.6"/>',
        "s": '<rect x="10.6" y="3.6" width="6.8" height="6.8"/>',
        "D": '<path d="M14 2.4 18.6 7 14 11.6 9.4 7z"/>',
        "^": '<path d="M14 2.6 18.2 10.4 9.8 10.4z"/>',
        "v": '<path d="M14 11.4 18.2 3.6 9.8 3.6z"/>',
        "P": '<path d="M12.4 3h3.2v2.4H18v3.2h-2.4V11h-3.2V8.6H10V5.4h2.4z"/>',
        "X": '<path d="M10.4 5 12 3.4l2 2 2-2L17.6 5l-2 2 2 2L16 10.6l-2-2-2 2L10.4 9l2-2z"/>',
        "*": '<path d="M14 2l1.3 3.6H19l-3 2.3 1.1 3.7L14 9.4l-3.1 2.2L12 7.9l-3-2.3h3.7z"/>',
    }
    shape = shapes[MARKERS[series % len(MARKERS)]]
    return (
        f'<svg class="key" width="28" height="14" aria-hidden="true" fill="{colour}">'
        f'<path d="M1 7h26" stroke="{colour}" stroke-width="2"/>{shape}</svg>'
    )
