"""The plots of an analysis, as SVG: weights by layer and by rank, memories, courses of training."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from relu_nmt.applications.statistics import STATISTICS
from relu_nmt.applications.weight_statistics import ALL_KEYS, OWN_SENTENCE, Records
from relu_nmt.drawing.attention_maps import SLOT_NAMES
from relu_nmt.drawing.panels import Curve, Panel, curve_lines, draw_panels
from relu_nmt.jobs.analyze.curves import GROWTH, TELEMETRY, TRAIN, Curves
from relu_nmt.modules.config import SLOTS

DRAWN_TELEMETRY = (
    *("entropy", "sum", "zero_fraction", "null_fraction"),
    *("query_norm", "key_norm", "output_square"),
)
SEEN = {ALL_KEYS: "document", OWN_SENTENCE: "own sentence"}
FIGURE_4_END = 1.5
LEVEL = 1e-6  # a line of a plot whose shares differ by less is level


class Series(NamedTuple):
    """The records of a line of the plots."""

    name: str  # in the legend
    color: int  # index of its color
    dashes: int | None  # index of its dashes
    records: Records

    def curve(self) -> Curve:
        """Return a line without points."""
        return Curve(self.name, self.color, {}, dashes=self.dashes)


def series_of(models: Mapping[str, Records]) -> list[Series]:
    """Return the lines of the plots: one per checkpoint, or one per kind of visible keys."""
    # With attention inside sentences, a checkpoint has two kinds of lines. Dashes tell them apart.
    kinds = {record["sees"] for records in models.values() for record in records}
    all_series: list[Series] = []
    for color, (name, records) in enumerate(models.items()):
        kinds_of_model = sorted({record["sees"] for record in records})
        for number, sees in enumerate(kinds_of_model):
            label = f"{name}, {SEEN[sees]}" if OWN_SENTENCE in kinds_of_model else name
            dashes = number if OWN_SENTENCE in kinds else None
            of_kind = [record for record in records if record["sees"] == sees]
            all_series.append(Series(label, color, dashes, of_kind))
    return all_series


def by_layer(all_series: Sequence[Series], statistic: str, title: str, scale: float = 1.0) -> str:
    """Return a plot of a statistic by layer, one panel per slot, "" if no slot has two layers."""
    panels = []
    for slot in SLOTS:
        lines: list[Curve] = []
        for series in all_series:
            line = series.curve()
            for record in series.records:
                layer = record["layer"]
                if record["slot"] == slot and layer != "mean" and statistic in record:
                    value = scale * record[statistic]
                    if record["head"] == "mean":
                        line.points[layer] = value
                    else:
                        line.dots.append((layer, value))
            lines.append(line)
        panel = Panel(f"{SLOT_NAMES[slot]}: {title}", "layer", lines, from_zero=True)
        panel.names = list(map(str, panel.x_values))  # a label for every layer
        panels.append(panel)
    return draw_panels(panels, share_y=True)


def by_rank(all_series: Sequence[Series]) -> str:
    """Return a plot of ``top_sum`` and ``share_at_rank`` for p up to 1.5%.

    The result is "" if all lines are level: rows are so short that p percent is always one key.

    Reference: ReLUFormer, Figure 4.
    """
    panels = []
    is_level = True
    for statistic, title in (("top_sum", "their sum, %"), ("share_at_rank", "the smallest, %")):
        for slot in SLOTS:
            lines: list[Curve] = []
            for series in all_series:
                for record in series.records:
                    if record["slot"] != slot or record["layer"] != "mean":
                        continue
                    line = series.curve()
                    for percent, share in record[statistic].items():
                        if percent <= FIGURE_4_END:
                            line.points[percent] = 100 * share
                    shares = line.points.values()
                    if shares and max(shares) - min(shares) >= 100 * LEVEL:
                        is_level = False
                    lines.append(line)
            x_label = "largest p% of the visible keys"
            panels.append(Panel(f"{SLOT_NAMES[slot]}: {title}", x_label, lines, from_zero=True))
    return "" if is_level else draw_panels(panels, share_y=True)


def of_memories(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """Return plots of ``top_sums`` by side. The keys of ``reports`` are the names of lines."""
    panels = []
    for side in ("encoder", "decoder"):
        curves = []
        for name, report in reports.items():
            points = {}
            for percent, share in report["sides"][side].get("top_sums", {}).items():
                if share is not None:
                    points[float(percent)] = 100 * share
            curves.append((name, points))
        title = f"{side}: share of the sum, %"
        x_label = "largest p% of a token's weights"
        panels.append(Panel(title, x_label, curve_lines(curves), log_x=True, from_zero=True))
    return draw_panels(panels, share_y=True)


def of_courses(courses: Mapping[str, Curves], panels: Mapping[tuple[str, str], str]) -> str:
    """Return a plot of the trainings' curves over updates, with ``panels`` by split and metric."""
    drawn = []
    for key, title in panels.items():
        curves = [(name, course.get(key, {})) for name, course in courses.items()]
        drawn.append(Panel(title, "updates", curve_lines(curves), from_zero=key[0] == TELEMETRY))
    return draw_panels(drawn)


def course_panels(courses: Mapping[str, Curves]) -> list[dict[tuple[str, str], str]]:
    """Return the panels of losses and scores, then of the telemetry, without empty ones."""
    # Find the metrics with two values in a training, which make a curve, and the losses' unit.
    drawn: dict[tuple[str, str], None] = {}
    bits = "bits per example"
    for course in courses.values():
        for key, points in course.items():
            if len(points) > 1:
                drawn[key] = None
            # Only translation models log a loss without smoothing. Other models count examples.
            if key == (TRAIN, "nll_loss"):
                bits = "bits per token"
    splits = list(dict.fromkeys(split for split, _ in drawn if split not in (TRAIN, TELEMETRY)))
    # Order: training loss, losses on the other splits, regularizer, scores, gradient.
    losses = {
        (TRAIN, "loss"): f"training loss, {bits}",
        (TRAIN, "nll_loss"): "training NLL, bits per token",
    }
    for split in splits:
        losses[split, "loss"] = f"loss on {split}, {bits}"
    for split in splits:
        losses[split, "nll_loss"] = f"NLL on {split}, bits per token"
    losses[TRAIN, "attention_norm"] = "attention_norm: mean |ln S|"
    losses[TRAIN, "attention_entropy"] = "attention_entropy: excess, nats"
    for split in splits:
        losses[split, "accuracy"] = f"accuracy, %, on {split}"
        losses[split, "bleu"] = f"BLEU on {split}"
    losses[TRAIN, "gnorm"] = "norm of the gradient"
    # Group the telemetry by statistic, then by slot.
    telemetry: dict[tuple[str, str], str] = {}
    for name in DRAWN_TELEMETRY:
        for slot in SLOTS:
            telemetry[TELEMETRY, f"{slot} {name}"] = f"{STATISTICS[name].label}, {slot}"
    telemetry[TELEMETRY, f"decoder {GROWTH}"] = "e of the mean square n^e of outputs, decoder"
    panels = []
    for titles in (losses, telemetry):
        panels.append({key: title for key, title in titles.items() if key in drawn})
    return list(filter(None, panels))
