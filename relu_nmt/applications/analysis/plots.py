"""Plots of an analysis; each function returns text for the ``src`` of an image."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relu_nmt.attention.statistics import STATISTICS
from relu_nmt.io.page import common_legend, draw_image, line_style, plain_axes
from relu_nmt.modules.config import SLOTS
from relu_nmt.training.results import TELEMETRY, TRAIN, Course
from relu_nmt.translation.attention_maps import SLOT_NAMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANEL = 3.5, 2.9
"""Width and height of a plot, in inches."""
FIGURE_4_END = 1.5
LEVEL = 1e-6
"""A line whose shares differ by less is level."""


@dataclass(frozen=True)
class Series:
    """A line of the plots.

    Args:
        name: name in the legend.
        index: index of its checkpoint.
        kind: index among the lines of the checkpoint; None if each checkpoint has one.
        records: see :meth:`relu_nmt.applications.analysis.weights.WeightStatistics.records`.
    """

    name: str
    index: int
    kind: int | None
    records: Sequence[Mapping[str, Any]]

    @property
    def style(self) -> dict[str, Any]:
        """Colour, marker and dashes of the line."""
        return line_style(self.index, self.kind)


def by_layer(series: Sequence[Series], statistic: str, title: str, scale: float = 1.0) -> str:
    """Return a plot of a statistic by layer, a panel for each slot: means, and a dot for each head.

    The text is empty if no slot has the statistic in two layers.

    Args:
        series: the lines.
        statistic: name of the statistic.
        title: title of the vertical axis.
        scale: factor of the values.
    """
    # Find the slots and layers that have the statistic.
    places = {
        (record["slot"], record["layer"])
        for one in series
        for record in one.records
        if statistic in record and record["layer"] != "mean"
    }
    slots = [slot for slot in SLOTS if any(slot == place[0] for place in places)]
    # Return no plot for one layer: a curve needs two.
    if not any(layer > 0 for _, layer in places):
        return ""

    def draw(figure: "Figure") -> None:
        panels = figure.subplots(1, len(slots), squeeze=False, sharey=True)[0]
        for axes, slot in zip(panels, slots, strict=True):
            layers: set[int] = set()
            # Each line has a dot for each head, a little beside the layer, and the mean.
            for index, one in enumerate(series):
                known = [r for r in one.records if r["slot"] == slot and statistic in r]
                of_layers = [r for r in known if r["layer"] != "mean"]
                shift = 0.1 * (index - (len(series) - 1) / 2)
                heads = [r for r in of_layers if r["head"] != "mean"]
                axes.scatter(
                    [r["layer"] + shift for r in heads],
                    [r[statistic] * scale for r in heads],
                    s=9,
                    color=one.style["color"],
                    alpha=0.45,
                    linewidths=0,
                )
                # Draw a line through the means over heads.
                means = [r for r in of_layers if r["head"] == "mean"]
                layers |= {r["layer"] for r in means}
                axes.plot(
                    [r["layer"] + shift for r in means],
                    [r[statistic] * scale for r in means],
                    label=one.name,
                    **one.style,
                )
            # Label every layer.
            plain_axes(axes, SLOT_NAMES[slot])
            axes.set_xticks(sorted(layers))
            axes.set_xlabel("layer")
        # Label the shared vertical axis once, and let it include 0.
        panels[0].set_ylabel(title)
        panels[0].set_ylim(bottom=min(0.0, panels[0].get_ylim()[0]))
        common_legend(figure, 4)

    return draw_image(PANEL[0] * max(2, len(slots)), PANEL[1] + 0.3, draw)


def by_rank(series: Sequence[Series]) -> str:
    """Return a plot of ``top_sum`` and ``share_at_rank`` for p up to 1.5 %.

    The text is empty if all lines are level: rows are so short that this is always one key.

    Reference: ReLUFormer, Figure 4.
    """
    sums = [
        [v for p, v in record["top_sum"].items() if p <= FIGURE_4_END]
        for one in series
        for record in one.records
        if record["layer"] == "mean" and record["top_sum"]
    ]
    if all(max(own) - min(own) < LEVEL for own in sums):
        return ""

    def draw(figure: "Figure") -> None:
        # Sums above, shares below; a column for each slot.
        panels = figure.subplots(2, len(SLOTS), sharex=True, sharey="row")
        for column, slot in enumerate(SLOTS):
            for row, statistic in enumerate(("top_sum", "share_at_rank")):
                axes = panels[row, column]
                for one in series:
                    whole = [r for r in one.records if r["slot"] == slot and r["layer"] == "mean"]
                    for record in whole:
                        points = {p: v for p, v in record[statistic].items() if p <= FIGURE_4_END}
                        shares = [100 * share for share in points.values()]
                        axes.plot(list(points), shares, label=one.name, **one.style)
                plain_axes(axes, SLOT_NAMES[slot] if row == 0 else "")
        # Label each axis once: percents at the bottom, titles at the left.
        for axes in panels[1]:
            axes.set_xlabel("largest p % of the visible keys")
        for axes, title in zip(
            panels[:, 0], ("their sum, %", "the smallest of them, %"), strict=True
        ):
            axes.set_ylabel(title)
            axes.set_ylim(bottom=0)
        common_legend(figure, 4)

    return draw_image(PANEL[0] * len(SLOTS), 2 * PANEL[1], draw)


def of_memories(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a plot of ``top_sums`` of the feed-forward memories, by side.

    Args:
        reports: results of :meth:`MemoryStatistics.report`, by the name of the line.
    """

    def draw(figure: "Figure") -> None:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, side in zip(panels, ("encoder", "decoder"), strict=True):
            # Draw a line for each checkpoint with known shares.
            for index, (name, report) in enumerate(reports.items()):
                sums = report["sides"][side].get("top_sums", {})
                points = {float(p): 100 * share for p, share in sums.items() if share is not None}
                if points:
                    axes.plot(list(points), list(points.values()), label=name, **line_style(index))
            plain_axes(axes, side)
            axes.set_xscale("log")
            axes.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
            axes.set_xlabel("largest p % of a token's weights")
        panels[0].set_ylabel("their share of the sum, %")
        panels[0].set_ylim(0, 104)
        common_legend(figure, 4)

    return draw_image(1.3 * PANEL[0] * 2, PANEL[1] + 0.3, draw)


def of_courses(courses: Sequence[Course], panels: Mapping[tuple[str, str], str]) -> str:
    """Return a plot of curves against the number of updates.

    Args:
        courses: trainings, a line each in every panel for which it has values.
        panels: title of each panel by split and metric.
    """
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)

    def draw(figure: "Figure") -> None:
        # Fill the grid of panels, and hide the rest.
        every = figure.subplots(rows, columns, squeeze=False, sharex=True).flat
        for axes in list(every)[len(panels) :]:
            axes.set_visible(False)
        for axes, (key, title) in zip(figure.axes, panels.items(), strict=False):
            for index, course in enumerate(courses):
                points = sorted(course.curves.get(key, {}).items())
                if points:
                    # Mark the values of short curves only.
                    few = len(points) <= 12
                    style = {**line_style(index), "markersize": 4 if few else 0}
                    axes.plot(*zip(*points, strict=True), label=course.name, **style)
            plain_axes(axes, title)
            if key[0] == TELEMETRY:
                axes.set_ylim(bottom=0)
            # Number the updates below every panel, although the panels share the axis.
            axes.xaxis.set_tick_params(labelbottom=True)
            axes.set_xlabel("updates")
        common_legend(figure, 4)

    return draw_image(PANEL[0] * max(2, columns), PANEL[1] * rows + 0.3, draw)


def course_panels(courses: Sequence[Course]) -> list[dict[tuple[str, str], str]]:
    """Return the panels of losses and scores, and those of the telemetry, without empty ones.

    A metric needs two values in a training to make a curve.
    """
    # Find the metrics with two values in a training, and the unit of the losses.
    curves = [curve for course in courses for curve in course.curves.items()]
    known = list(dict.fromkeys(key for key, points in curves if len(points) > 1))
    # Only translation models have a loss without smoothing; others count examples, not tokens.
    bits = "bits per token" if (TRAIN, "nll_loss") in dict(curves) else "bits per example"
    # Order: training loss, losses on the other splits, regulariser, scores, gradient.
    splits = list(dict.fromkeys(s for s, _ in known if s not in (TRAIN, TELEMETRY)))
    losses = {
        (TRAIN, "loss"): f"training loss, {bits}",
        (TRAIN, "nll_loss"): "training NLL, bits per token",
        **{(split, "loss"): f"loss on {split}, {bits}" for split in splits},
        **{(split, "nll_loss"): f"NLL on {split}, bits per token" for split in splits},
        (TRAIN, "attention_norm"): "attention_norm: mean |ln S|",
        (TRAIN, "attention_entropy"): "attention_entropy: excess, nats",
        **{
            (split, name): f"{title} on {split}"
            for split in splits
            for name, title in (("accuracy", "accuracy, %,"), ("bleu", "BLEU"))
        },
        (TRAIN, "gnorm"): "norm of the gradient",
    }
    # Group the telemetry by statistic, then by slot.
    telemetry = {
        (TELEMETRY, f"{slot} {name}"): f"{STATISTICS[name].label}, {slot}"
        for name in ("entropy", "sum", "zero_fraction", "null_fraction")
        for slot in SLOTS
    }
    found = [{key: each[key] for key in each if key in known} for each in (losses, telemetry)]
    return [each for each in found if each]
