"""Pages of HTML in one file with their plots and numbers, and CSV beside them.

A page is a Jinja2 template in the folder ``templates`` of its package or in an example's folder. It
extends ``page.html``, the shell with the style, and imports parts of tables and figures from
``parts.html``.
"""

import base64
import csv
import functools
import io
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import jinja2
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

LARGE = 1e6
UNKNOWN = "\u2013"
# Marker and dashes distinguish lines without color. The colors differ in lightness too.
COLORS = ("#1b1f24", "#d1495b", "#2f6db5", "#6a994e", "#8a5fb4", "#b5760a", "#0f8b8d", "#7a4419")
MARKERS = "osD^vPX*"
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
STYLE: Any = {"font.size": 9.5, "svg.hashsalt": "relu_nmt", "axes.edgecolor": "#8b9299"}
IMAGE_DPI = 160
TITLE_LETTERS = 12.0  # letters of a title that fit an inch
FONTS = "text{font-family:'DejaVu Sans',Verdana,system-ui,sans-serif}"
LEGEND_LINE = 4.5  # length of a line in a legend, in letters' heights, long enough to show dashes
LETTERS_PER_INCH = 14
LEGEND_LETTERS = 12  # letters that the line of a legend and the space around take
PANEL_INCHES = (3.5, 3.0)
WIDE_INCHES = (7.2, 3.9)
MOST_COLUMNS = 3
SPREAD = 0.06
MOST_MARKERS = 20
DOT = 6.0  # size of the dot of a seed, in points
LEAST_SPAN = 10.0  # least ratio of largest to smallest value for a logarithmic vertical axis
FAINTEST = 0.2  # the smallest weight's place in the color map, which begins at nearly white
LEAST_SEEDS = 4
"""Fewer seeds are listed one by one: an interval would be wider than the effect it measures."""


def line_style(index: int, kind: int | None = None) -> dict[str, Any]:
    """Return style number ``index`` of a line for matplotlib, with the dashes of ``kind``."""
    dashes = kind if kind is not None else index
    return {
        "color": COLORS[index % len(COLORS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[(dashes + dashes // len(COLORS)) % len(DASHES)],
        "linewidth": 1.6,
        "markersize": 5.5,
    }


def plain_axes(axes: "Axes", title: str) -> None:
    """Give a plot its title, wrapped to its width, and a frame and a grid that do not distract."""
    # Estimate the width of the axes by their share of the figure, which is laid out later.
    figure = axes.get_figure(root=True)
    place = axes.get_subplotspec()
    if figure is not None and place is not None:
        inches = figure.get_figwidth() / place.get_gridspec().ncols
        title = textwrap.fill(title, int(TITLE_LETTERS * inches))
    axes.set_title(title, loc="left", fontsize=9.5)
    axes.grid(axis="y", color="#dfe2e5", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def common_legend(figure: "Figure", columns: int) -> None:
    """Put one legend above all plots of a figure, each name once, in ``columns`` at most."""
    legend: dict[str, Any] = {}
    for axes in figure.axes:
        for line, name in zip(*axes.get_legend_handles_labels(), strict=True):
            legend.setdefault(name, line)
    longest = max(map(len, legend), default=0)
    fitting = int(LETTERS_PER_INCH * figure.get_figwidth() / (longest + LEGEND_LETTERS))
    layout = {"ncols": max(1, min(columns, fitting)), "frameon": False, "handlelength": LEGEND_LINE}
    figure.legend(legend.values(), legend.keys(), loc="outside upper left", **layout)


def escaped(text: str) -> str:
    """Return text for a plot. Dollar signs are escaped, since they would begin a formula."""
    return text.replace("$", r"\$")


def draw_weights(axes: "Axes", weights: np.ndarray, darkest: float, signed: bool) -> "AxesImage":
    """Draw weights [queries, keys]: exact zeros white, positive ones blue, negative ones red."""
    from matplotlib import colormaps
    from matplotlib.colors import FuncNorm, ListedColormap

    tints = np.linspace(FAINTEST, 1.0, 128)
    shades = colormaps["Blues"](tints)
    lowest = 0.0
    if signed:
        shades = np.concatenate([colormaps["Reds"](tints[::-1]), shades])
        lowest = -darkest
    colors = ListedColormap(shades).with_extremes(bad="white")
    norm = FuncNorm(
        (lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda x: np.sign(x) * x**2),
        vmin=lowest,
        vmax=darkest,
        clip=True,
    )
    drawn = np.ma.masked_equal(weights, 0)
    return axes.imshow(drawn, cmap=colors, norm=norm, aspect="auto", interpolation="none")


def draw_svg(width: float, height: float, draw: Callable[["Figure"], object]) -> str:
    """Draw a figure, with its size in inches. Return it as SVG, for :func:`image_source`."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({**STYLE, "svg.fonttype": "none"}), warnings.catch_warnings():
        # Browsers have letters that matplotlib's font lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure = Figure(figsize=(width, height), layout="constrained", dpi=IMAGE_DPI)
        draw(figure)
        file = io.BytesIO()
        # Leave out the date, so that equal figures give equal files.
        figure.savefig(file, format="svg", metadata={"Date": None})
    return _compact(file.getvalue().decode("utf-8"))


def image_source(svg: str) -> str:
    """Return a picture as the ``src`` of an image: a filter of the templates."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode("utf-8")).decode("ascii")


def _compact(svg: str) -> str:
    """Return the same picture without metadata, unused names, line breaks and needless digits."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Name the fonts once. Every text has them.
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = svg.replace("</style>", f"{FONTS}</style>", 1)
    referred = set(re.findall(r"#([\w.-]+)", svg))
    for name in set(re.findall(r' id="([^"]*)"', svg)) - referred:
        svg = svg.replace(f' id="{name}"', "")
    # Round the coordinates, which stand in tags. Labels may have as many digits.
    svg = re.sub(r"<[^<>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), svg)
    svg = re.sub(r"\s*\n\s*", " ", svg)
    return svg.replace("> <", "><")


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
        shift = SPREAD * (number - (len(panel.lines) - 1) / 2) if panel.names else 0.0
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


def render_page(folder: str | Path, template: str, values: Mapping[str, Any]) -> str:
    """Return the page of a template. ``folder`` is a path, or the name of a package as text."""
    return _environment(folder).get_template(template).render(values)


@functools.cache
def _environment(folder: str | Path) -> "jinja2.Environment":
    """Return the templates of :func:`render_page`, each of which is compiled once."""
    import jinja2

    # Look for templates in the caller's folder first, then in the shared one.
    loader: jinja2.BaseLoader = jinja2.FileSystemLoader(folder)
    if isinstance(folder, str):
        loader = jinja2.PackageLoader(folder)
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([loader, jinja2.PackageLoader("relu_nmt.io")]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "image_source": image_source}
    environment.globals |= {"spread": spread, "plus_minus": plus_minus}
    return environment


def number(value: float | None, decimals: int = 2, signed: bool = False) -> str:
    """Return a number for readers, or a dash if it is unknown or not finite.

    From a million on, a number with decimals is written with a power of ten.

    Example:
        >>> number(31.236), number(1234567.0, 0), number(None), number(-0.5, 1, signed=True)
        ('31.24', '1,234,567', '–', '−0.5')
        >>> number(10794720.53)
        '1.08e7'
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    sign = "+" if signed else ""
    text = f"{value:{sign},.{decimals}f}"
    if decimals and abs(value) >= LARGE:
        mantissa, _, exponent = f"{value:{sign}.{decimals}e}".partition("e")
        text = f"{mantissa}e{int(exponent)}"
    # Drop the sign of a number that is rounded to 0.
    if not float(text.replace(",", "")):
        text = text.lstrip("+-")
    return text.replace("-", "\u2212")


def spread(
    values: Sequence[float], interval: float | None, signed: bool = False, highest: float = math.inf
) -> str:
    """Return the spread of several seeds' scores in words, empty for one seed.

    ``interval`` is half the width of the interval of their mean. Differences are ``signed``,
    scores are between 0 and ``highest``. Fewer than LEAST_SEEDS values are listed.

    Example:
        >>> spread([24.56, 31.24], 42.4)
        'seeds 24.56, 31.24'
        >>> spread([1.0, 2.0, 3.0, 4.0], 2.05), spread([0.0, 0.0, 0.0, 4.0], 3.18)
        ('± 2.05 seeds', '0.00 to 4.18 seeds')
    """
    if len(values) < 2:
        return ""
    if len(values) < LEAST_SEEDS or interval is None:
        return f"seeds {', '.join(number(value, signed=signed) for value in values)}"
    return f"{plus_minus(sum(values) / len(values), interval, signed, highest)} seeds"


def plus_minus(
    mean: float, interval: float, signed: bool = False, highest: float = math.inf
) -> str:
    """Return an interval in words, with both ends if one is cut off at 0 or ``highest``.

    Example:
        >>> plus_minus(5.0, 1.5), plus_minus(1.0, 1.5), plus_minus(1.0, 1.5, signed=True)
        ('± 1.50', '0.00 to 2.50', '± 1.50')
    """
    below, above = arms(mean, interval, highest)
    if signed or below == above == interval:
        return f"± {number(interval)}"
    return f"{number(mean - below)} to {number(mean + above)}"


def arms(mean: float, interval: float, highest: float = math.inf) -> tuple[float, float]:
    """Return the lengths of an interval below and above its mean, cut at 0 and ``highest``."""
    return min(interval, mean), min(interval, highest - mean)


def csv_text(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> str:
    """Return the columns of the rows as CSV, in full precision. Unknown values are empty cells."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
