"""Figures of matplotlib as compact SVG: the style of all plots, and maps of weights."""

import io
import re
import textwrap
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

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
FAINTEST = 0.2  # the smallest weight's place in the color map, which begins at nearly white


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
    """Draw a figure, with its size in inches. Return it as SVG, for a page."""
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
