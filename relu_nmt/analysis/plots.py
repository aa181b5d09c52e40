"""The plots of an analysis, each for the ``src`` of an image."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from relu_nmt.analysis.attention import AttentionMap
from relu_nmt.analysis.courses import TELEMETRY, TRAIN, Course
from relu_nmt.attention.spec import SLOTS
from relu_nmt.io.page import COLOURS, common_legend, draw_image, line_style, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SLOT_NAMES = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}
PANEL, PAGE = (3.5, 2.9), 10.4
"""Sizes in inches: of a plot, and the width of the page."""
FIGURE_4_END = 1.5
MOST_LABELS = 48
"""Tokens of a map that still get a label each."""
FEW_LABELS = 30
"""The same of a small one."""
MOST_LINES = 12
"""Ends of sentences that still get a line each."""
MAP_COLOURS, SENTENCES = "Blues", COLOURS[1]


@dataclass(frozen=True)
class Series:
    """A line of the plots.

    Args:
        name: in the legend.
        index: of its checkpoint.
        kind: which line of the checkpoint.
        records: see :meth:`relu_nmt.analysis.weights.WeightStatistics.records`.
    """

    name: str
    index: int
    kind: int
    records: Sequence[Mapping[str, Any]]

    @property
    def style(self) -> dict[str, Any]:
        """How it is drawn."""
        return line_style(self.index, self.kind)


@dataclass(frozen=True)
class SentenceMap:
    """A map of one sentence or of several joined.

    Args:
        map: the weights and their labels.
        query_sentences: [Nq] the number of the sentence of each query; None if there is but one.
        key_sentences: [Nk] the same of the keys.
    """

    map: AttentionMap
    query_sentences: np.ndarray | None = None
    key_sentences: np.ndarray | None = None


def by_layer(series: Sequence[Series], statistic: str, title: str, scale: float = 1.0) -> str:
    """Return a statistic against the layer, a panel for each slot: means, and a dot a head.

    Args:
        series: what is drawn.
        statistic: its name.
        title: of the vertical axis.
        scale: by which values are multiplied.
    """

    def draw(figure: "Figure") -> None:
        panels = figure.subplots(1, len(SLOTS), squeeze=False, sharey=True)[0]
        for axes, slot in zip(panels, SLOTS, strict=True):
            layers: set[int] = set()
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
                means = [r for r in of_layers if r["head"] == "mean"]
                layers |= {r["layer"] for r in means}
                axes.plot(
                    [r["layer"] + shift for r in means],
                    [r[statistic] * scale for r in means],
                    label=one.name,
                    **one.style,
                )
            plain_axes(axes, SLOT_NAMES[slot])
            axes.set_xticks(sorted(layers))
            axes.set_xlabel("layer")
        panels[0].set_ylabel(title)
        panels[0].set_ylim(bottom=min(0.0, panels[0].get_ylim()[0]))
        common_legend(figure, 4)

    return draw_image(PANEL[0] * len(SLOTS), PANEL[1] + 0.3, draw)


def by_rank(series: Sequence[Series]) -> str:
    """Return the sums of the largest shares and the share at each rank, for p up to 1.5 %.

    Reference: ReLUFormer, Figure 4.
    """

    def draw(figure: "Figure") -> None:
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
    """Return the sums of the largest weights of the feed-forward memories, by side.

    Args:
        reports: of :meth:`MemoryStatistics.report`, by the name of the line.
    """

    def draw(figure: "Figure") -> None:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, side in zip(panels, ("encoder", "decoder"), strict=True):
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
    """Return curves against the number of updates.

    Args:
        courses: a line each, in every panel that it has values for.
        panels: title of each by split and metric.
    """
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)

    def draw(figure: "Figure") -> None:
        every = figure.subplots(rows, columns, squeeze=False, sharex=True).flat
        for axes in list(every)[len(panels) :]:
            axes.set_visible(False)
        for axes, (key, title) in zip(figure.axes, panels.items(), strict=False):
            for index, course in enumerate(courses):
                points = sorted(course.curves.get(key, {}).items())
                if points:
                    few = len(points) <= 12
                    style = {**line_style(index), "markersize": 4 if few else 0}
                    axes.plot(*zip(*points, strict=True), label=course.name, **style)
            plain_axes(axes, title)
            if key[0] == TELEMETRY:
                axes.set_ylim(bottom=0)
            axes.xaxis.set_tick_params(labelbottom=True)
            axes.set_xlabel("updates")
        common_legend(figure, 4)

    return draw_image(PANEL[0] * max(2, columns), PANEL[1] * rows + 0.3, draw)


def course_panels(courses: Sequence[Course]) -> list[dict[tuple[str, str], str]]:
    """Return which metrics are drawn, of losses and scores and of the telemetry."""
    known = list(dict.fromkeys(key for course in courses for key in course.curves))
    splits = list(dict.fromkeys(s for s, _ in known if s not in (TRAIN, TELEMETRY)))
    losses = {
        (TRAIN, "loss"): "training loss, bits per token",
        (TRAIN, "nll_loss"): "training NLL, bits per token",
        **{(split, "loss"): f"loss on {split}, bits per token" for split in splits},
        **{(split, "nll_loss"): f"NLL on {split}, bits per token" for split in splits},
        (TRAIN, "attention_norm"): "attention_norm: mean |ln S|",
        (TRAIN, "attention_entropy"): "attention_entropy: excess, nats",
        **{
            (split, name): f"{name} on {split}" for split in splits for name in ("accuracy", "bleu")
        },
        (TRAIN, "gnorm"): "norm of the gradient",
    }
    telemetry = {
        (TELEMETRY, f"{slot} {statistic}"): f"{title}, {slot}"
        for statistic, title in (
            ("entropy", "entropy, nats"),
            ("sum", "row sum"),
            ("zero_fraction", "share of zeros"),
            ("null_fraction", "share of null rows"),
        )
        for slot in SLOTS
    }
    found = [{key: each[key] for key in each if key in known} for each in (losses, telemetry)]
    return [each for each in found if each]


def normalized(weights: np.ndarray) -> np.ndarray:
    """Return the shares of each row; signed weights count by size, null rows stay 0."""
    sizes = np.abs(weights.astype(np.float64))
    total = sizes.sum(-1, keepdims=True)
    return np.divide(sizes, total, out=np.zeros_like(sizes), where=total > 0)


def large_maps(maps: Mapping[str, SentenceMap]) -> str:
    """Return maps of checkpoints side by side, of one head or of the mean of the weights of all.

    Args:
        maps: of one place and one example, by checkpoint.

    Reference: ReLUFormer, Figure 5.
    """
    shares = {}
    for name, own in maps.items():
        weights = own.map.weights
        shares[name] = normalized(weights if weights.ndim == 2 else weights.mean(0))
    shapes = [own.shape for own in shares.values()]
    num_queries, num_keys = (max(sizes) for sizes in zip(*shapes, strict=True))
    named = max(num_queries, num_keys) <= MOST_LABELS
    width = height = min(5.2, PAGE / len(maps))
    if named:
        width = min(6.4, max(3.0, 1.2 + 0.19 * num_keys))
        height = min(7.6, max(2.2, 0.9 + 0.19 * num_queries))

    def draw(figure: "Figure") -> None:
        panels = figure.subplots(1, len(maps), squeeze=False)[0]
        most = _strongest(list(shares.values()))
        for axes, (name, own) in zip(panels, shares.items(), strict=True):
            image = _draw_map(axes, own, most)
            axes.set_title(name, loc="left", fontsize=9.5)
            _label(axes, maps[name], named)
            _divide(axes, maps[name], 0.6)
        for axes in panels[1:]:
            axes.set_ylabel("")
        _add_scale(figure, image, panels, most)

    return draw_image(width * len(maps) + 0.8, height + 0.3, draw)


def head_maps(maps: Mapping[str, SentenceMap]) -> str:
    """Return small maps of all heads, a row for each checkpoint; see :func:`large_maps`."""
    shares = {name: [normalized(one) for one in own.map.weights] for name, own in maps.items()}
    columns = max(map(len, shares.values()))
    side = min(2.6, PAGE / columns)

    def draw(figure: "Figure") -> None:
        panels = figure.subplots(len(maps), columns, squeeze=False)
        most = _strongest([one for own in shares.values() for one in own])
        for line, (name, own) in zip(panels, shares.items(), strict=True):
            line[0].set_ylabel(name, fontsize=9)
            for axes in line[len(own) :]:
                axes.set_visible(False)
            for head, (axes, one) in enumerate(zip(line, own, strict=False)):
                image = _draw_map(axes, one, most)
                axes.set_title(f"head {head}", loc="left", fontsize=8)
                axes.set_xticks([])
                axes.set_yticks([])
                if max(one.shape) <= FEW_LABELS:
                    keys, queries = maps[name].map.keys, maps[name].map.queries
                    axes.set_xticks(range(len(keys)), keys, fontsize=6, rotation=90)
                    if head == 0:
                        axes.set_yticks(range(len(queries)), queries, fontsize=6)
                axes.tick_params(length=1.5, pad=2)
                _divide(axes, maps[name], 0.35)
        _add_scale(figure, image, panels, most)

    return draw_image(side * columns + 0.8, (side + 0.25) * len(maps), draw)


def _strongest(shares: Sequence[np.ndarray]) -> float:
    """Return the share of the darkest colour: few rows have a larger one."""
    largest = np.concatenate([one.max(-1) for one in shares])
    return float(np.clip(np.quantile(largest, 0.9), 0.02, 1.0))


def _draw_map(axes: "Axes", shares: np.ndarray, most: float) -> Any:
    from matplotlib.colors import PowerNorm

    axes.spines[:].set_linewidth(0.5)
    # Of small shares more can be seen by their square roots.
    norm = PowerNorm(0.5, vmin=0.0, vmax=most, clip=True)
    return axes.imshow(shares, cmap=MAP_COLOURS, norm=norm, aspect="auto", interpolation="none")


def _add_scale(figure: "Figure", image: Any, panels: Any, most: float) -> None:
    """Draw which colour stands for which share."""
    beyond = "max" if most < 1 else "neither"
    shrink = min(0.8, 2.6 / figure.get_figheight())
    bar = figure.colorbar(image, ax=panels, shrink=shrink, pad=0.01, extend=beyond, aspect=25)
    bar.outline.set_visible(False)
    bar.set_label("share of the row's weight", fontsize=8)
    ticks = [most * step**2 / 16 for step in range(5)]  # evenly spaced by their square roots
    bar.set_ticks(ticks, labels=[f"{share:.2g}" for share in ticks])
    bar.ax.tick_params(labelsize=7.5)


def _label(axes: "Axes", shown: SentenceMap, named: bool) -> None:
    """Name the tokens, or count them where they are too many."""
    sides = (axes.yaxis, shown.map.queries, "query"), (axes.xaxis, shown.map.keys, "key")
    for axis, labels, name in sides:
        if named:
            axis.set_ticks(range(len(labels)), labels)
        else:
            axis.set_label_text(f"{name}, token", fontsize=8)
        axis.set_tick_params(length=2, labelsize=7.5)
    if named:
        axes.tick_params(axis="x", rotation=90)


def _divide(axes: "Axes", shown: SentenceMap, width: float) -> None:
    """Mark where sentences end, by lines if these do not hide what is between them."""
    sides = (
        (axes.yaxis, shown.query_sentences, axes.axhline),
        (axes.xaxis, shown.key_sentences, axes.axvline),
    )
    for axis, numbers, line in sides:
        ends = [] if numbers is None else list(np.flatnonzero(np.diff(numbers)) + 0.5)
        axis.set_ticks(ends, minor=True)
        for end in ends if len(ends) <= MOST_LINES else []:
            line(end, color=SENTENCES, linewidth=width, alpha=0.5)
    only: Any = {"top": True, "right": True, "bottom": False, "left": False}
    axes.tick_params(which="minor", length=3, color=SENTENCES, width=0.7, **only)
