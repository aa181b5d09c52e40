"""Plots over document lengths, as SVG that a page holds within itself."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PANEL_INCHES = (3.5, 3.0)
WIDE_INCHES = (7.2, 3.9)
# Told apart by marker and dashes where there is no colour; the colours differ in lightness too.
COLOURS = ("#1b1f24", "#d1495b", "#2f6db5", "#6a994e", "#8a5fb4", "#b5760a", "#0f8b8d", "#7a4419")
MARKERS = "osD^vPX*"
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
STYLE = {"font.size": 9.5, "svg.hashsalt": "relu_nmt", "axes.edgecolor": "#8b9299"}
SPREAD = 0.06

Point = tuple[int, float, float | None]
"""Position on the horizontal axis, value, and half the width of its interval if there is one."""


@dataclass(frozen=True)
class Panel:
    """One plot.

    Args:
        title: what is shown, with its unit.
        lines: the points of each system.
        from_zero: whether the vertical axis begins at 0.
    """

    title: str
    lines: Sequence[Sequence[Point]]
    from_zero: bool = True


def draw(panels: Sequence[Panel], names: Sequence[str], ticks: Sequence[str], label: str) -> str:
    """Return plots side by side, with one legend, as an address that ``<img>`` takes.

    Args:
        panels: one or more.
        names: of the systems.
        ticks: names of the positions on the horizontal axis.
        label: of the horizontal axis.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        width, height = WIDE_INCHES if len(panels) == 1 else PANEL_INCHES
        figure = Figure(figsize=(width * len(panels), height), layout="constrained")
        all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, panel in zip(all_axes, panels, strict=True):
            _draw_panel(axes, panel, names)
            axes.set_xticks(range(len(ticks)), ticks)
            axes.set_xlim(-0.4, len(ticks) - 0.6)
            axes.set_xlabel(label)
        lines, shown = _legend_entries(all_axes)
        columns = 2 * len(panels) + 1
        figure.legend(lines, shown, loc="outside upper left", ncols=columns, frameon=False)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _draw_panel(axes: Any, panel: Panel, names: Sequence[str]) -> None:
    for number, (points, name) in enumerate(zip(panel.lines, names, strict=True)):
        if not points:
            continue
        positions, values, intervals = zip(*points, strict=True)
        # Systems stand side by side, so that their intervals can be told apart.
        shift = SPREAD * (number - (len(names) - 1) / 2)
        axes.errorbar(
            [position + shift for position in positions],
            values,
            [interval or 0.0 for interval in intervals] if any(intervals) else None,
            label=name,
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            linestyle=DASHES[number % len(DASHES)],
            linewidth=1.6,
            markersize=5.5,
            elinewidth=1.0,
            capsize=3,
        )
    axes.set_title(panel.title, loc="left", fontsize=9.5)
    if panel.from_zero:
        top = axes.get_ylim()[1]
        axes.set_ylim(-0.03 * top, 1.05 * top)  # room for whole markers
    axes.grid(axis="y", color="#dfe2e5", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _legend_entries(all_axes: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Return each system once, in whichever panels it is drawn."""
    found: dict[str, Any] = {}
    for axes in all_axes:
        for line, name in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(name, line)
    return list(found.values()), list(found)
