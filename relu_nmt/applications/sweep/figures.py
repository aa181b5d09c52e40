"""The plots of a sweep's report, as images embedded in the page."""

from typing import TYPE_CHECKING

from relu_nmt.io.page import LEAST_SEEDS, Line, Panel, arms, draw_panels

if TYPE_CHECKING:
    from relu_nmt.applications.sweep.report import ReportData
    from relu_nmt.applications.sweep.results import Average

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
    return draw_panels(panels)


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
    return draw_panels(panels)


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
        figures.append(draw_panels(panels))
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
    return [source for source in (*figures, draw_panels(panels)) if source]
