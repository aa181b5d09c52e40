"""results.csv with every number, and report.html, a page that needs nothing but itself."""

import base64
import csv
import io
import math
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relu_nmt.errors import DataError
from relu_nmt.evaluation.significance import DEFAULT_SAMPLES, DEFAULT_SEED
from relu_nmt.io.safe_write import write_text
from relu_nmt.sweep.plan import SweepDescription, models_in, read_description
from relu_nmt.sweep.results import (
    CONTRAST_COLUMNS,
    NOT_CONVERGED,
    PENDING,
    SCORES,
    SLOTS,
    Average,
    Cell,
    Record,
    System,
    average_cells,
    read_cells,
)
from relu_nmt.sweep.steps import DIVERGED, DONE, FAILED, STARTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REPORT_NAME, CSV_NAME = "report.html", "results.csv"
FIRST_COLUMNS = (
    *("row", "attention", "trained_on", "mixture", "length", "seed", "seeds", "status", "note"),
    *("d_bleu", "d_bleu_seed_interval", "d_bleu_document_interval"),
    *("gain", "gain_seed_interval", "gain_document_interval", "p_value"),
    *("s_bleu", "mismatch_rate", "group_bleu", "chrf"),
    *("updates", "train_loss", "valid_nll", "valid_accuracy"),
)
LAST_COLUMNS = (
    *(f"{score}_signature" for score in SCORES),
    *("device", "threads", "relu_nmt", "torch", "python", "started"),
    *("train_command", "evaluate_command"),
)
WORDS = {
    DONE: "done",
    NOT_CONVERGED: "does not converge",
    DIVERGED: "diverged",
    FAILED: "failed",
    STARTED: "under way",
    PENDING: "not begun",
}
BAD = (NOT_CONVERGED, DIVERGED, FAILED)
UNKNOWN = "\u2013"
PANEL_INCHES = (3.5, 3.0)
WIDE_INCHES = (7.2, 3.9)
# Told apart by marker and dashes where there is no colour; the colours differ in lightness too.
COLOURS = ("#1b1f24", "#d1495b", "#2f6db5", "#6a994e", "#8a5fb4", "#b5760a", "#0f8b8d", "#7a4419")
MARKERS = "osD^vPX*"
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
STYLE: Any = {"font.size": 9.5, "svg.hashsalt": "relu_nmt", "axes.edgecolor": "#8b9299"}
SPREAD = 0.06


@dataclass(frozen=True)
class ReportData:
    """The results of a sweep, which its page lays out as tables of systems and lengths.

    Args:
        description: what the sweep is about.
        cells: one for each model and length.
        averages: one for each system and length, in the order of the report.
    """

    description: SweepDescription
    cells: Sequence[Cell]
    averages: Sequence[Average]

    @property
    def systems(self) -> list[System]:
        """The rows."""
        return list(dict.fromkeys(average.system for average in self.averages))

    @property
    def lengths(self) -> list[int]:
        """The columns, in tokens."""
        return sorted({average.length for average in self.averages})

    def row(self, system: System) -> list[Average | None]:
        """Return the averages of a system, one for each length."""
        found = {a.length: a for a in self.averages if a.system == system}
        return [found.get(length) for length in self.lengths]

    def label(self, system: System) -> str:
        """Return the name of a system."""
        several = len({other.mixture for other in self.systems}) > 1
        if not (several and system.mixture):
            return system.attention
        return f"{system.attention}, mixture {','.join(map(str, system.mixture))}"

    def has(self, *columns: str) -> bool:
        """Say whether any of the averages has a value in one of the columns."""
        return any(column in a.record for a in self.averages for column in columns)

    def distinct(self, column: str) -> str:
        """Return the different texts of a column of the models, of which there should be one."""
        found = (cell.record.get(column) for cell in self.cells)
        return "; ".join(dict.fromkeys(str(value) for value in found if value))

    def best_at(self, length: int) -> Average | None:
        """Return the average with the highest d-BLEU, if several have one."""
        found = [a for a in self.averages if a.length == length and "d_bleu" in a.record]
        return max(found, key=lambda a: a.record["d_bleu"]) if len(found) > 1 else None

    def statuses(self) -> dict[str, int]:
        """Return how many evaluations there are by status."""
        counts = Counter(cell.status for cell in self.cells)
        return {word: counts[status] for status, word in WORDS.items() if counts[status]}

    def went_wrong(self) -> dict[str, Cell]:
        """Return the models, or models at a length, that came to grief."""
        found: dict[str, Cell] = {}
        for cell in self.cells:
            if cell.status in BAD:
                trained = not cell.record["note"] or "evaluate_command" in cell.record
                name = f"{cell.model} at {cell.length}" if trained else str(cell.model)
                found.setdefault(name, cell)
        return found

    def commands(self) -> dict[str, list[str]]:
        """Return the commands by model."""
        found: dict[str, dict[str, None]] = {}
        for cell in self.cells:
            for name in ("train_command", "evaluate_command"):
                if name in cell.record:
                    found.setdefault(str(cell.model), {})[cell.record[name]] = None
        return {name: list(commands) for name, commands in found.items()}

    def buckets(self, counted: str) -> dict[str, float]:
        """Return buckets with how many segments they hold, that of the lowest values first.

        Args:
            counted: the beginning of the columns that tell it: ``documents[``.
        """
        found = {
            column[len(counted) : -1]: value
            for average in self.averages
            for column, value in average.record.items()
            if column.startswith(counted)
        }
        return dict(sorted(found.items(), key=lambda one: _lowest(one[0])))

    def contrasts(self) -> dict[System, dict[str, Record]]:
        """Return what is known of contrasts, by system and category of the contrasts."""
        found: dict[System, dict[str, Record]] = {}
        for average in self.averages:
            for column, value in average.record.items():
                name, _, category = column.rstrip("]").partition("[")
                if name in CONTRAST_COLUMNS:
                    found.setdefault(average.system, {}).setdefault(category, {})[name] = value
        return found

    def realised_lengths(self) -> Iterator[tuple[int, str, str, Record]]:
        """Yield limit, split, prefix of the columns and record that has them."""
        learnt = {length for cell in self.cells for length in cell.model.lengths}
        for length in sorted({*self.lengths, *learnt}):
            everywhere = [cell.record for cell in self.cells]
            here = [cell.record for cell in self.cells if cell.length == length]
            for prefix, split, records in (
                (f"train[{length}]", "training", everywhere),
                ("train", "training", here),
                ("test", self.description.settings.sweep.gen_subset, here),
            ):
                found = next((r for r in records if f"{prefix}_mean_tokens" in r), None)
                if found is not None:
                    yield length, split, prefix, found

    def figure(self, *columns: tuple[str, str, float], from_zero: bool = True) -> str:
        """Return plots of means over document lengths, side by side, for the ``src`` of an image.

        Args:
            columns: column, title with the unit, and what its values are divided by.
            from_zero: whether the vertical axes begin at 0.
        """
        import matplotlib as mpl
        from matplotlib.figure import Figure

        with mpl.rc_context(STYLE):
            width, height = WIDE_INCHES if len(columns) == 1 else PANEL_INCHES
            figure = Figure(figsize=(width * len(columns), height), layout="constrained")
            all_axes = figure.subplots(1, len(columns), squeeze=False)[0]
            legend: dict[str, Any] = {}  # each system once, in whichever panels it is drawn
            for axes, (column, title, scale) in zip(all_axes, columns, strict=True):
                self._draw(axes, column, scale)
                axes.set_title(title, loc="left", fontsize=9.5)
                if from_zero:
                    top = axes.get_ylim()[1]
                    axes.set_ylim(-0.03 * top, 1.05 * top)  # room for whole markers
                for line, name in zip(*axes.get_legend_handles_labels(), strict=True):
                    legend.setdefault(name, line)
            shown = {"ncols": 2 * len(columns) + 1, "frameon": False}
            figure.legend(legend.values(), legend.keys(), loc="outside upper left", **shown)
            file = io.BytesIO()
            figure.savefig(file, format="svg", metadata={"Date": None})
        return "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode("ascii")

    def _draw(self, axes: "Axes", column: str, scale: float) -> None:
        """Draw a line for each system that has values in the column."""
        for number, system in enumerate(self.systems):
            means = {
                place: average
                for place, average in enumerate(self.row(system))
                if average is not None and column in average.record
            }
            if not means:
                continue
            # Systems stand side by side, so that their intervals can be told apart.
            shift = SPREAD * (number - (len(self.systems) - 1) / 2)
            # Over seeds or, with one seed, over documents; only d-BLEU has them.
            names = (f"{column}_seed_interval", f"{column}_document_interval")
            records = [average.record for average in means.values()]
            intervals = [record.get(names[0], record.get(names[1])) for record in records]
            axes.errorbar(
                [place + shift for place in means],
                [record[column] / scale for record in records],
                [interval or 0.0 for interval in intervals] if any(intervals) else None,
                label=self.label(system),
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                linestyle=DASHES[number % len(DASHES)],
                linewidth=1.6,
                markersize=5.5,
                elinewidth=1.0,
                capsize=3,
            )
        axes.set_xticks(range(len(self.lengths)), [length_name(n) for n in self.lengths])
        axes.set_xlim(-0.4, len(self.lengths) - 0.6)
        axes.set_xlabel("document length, tokens")
        axes.grid(axis="y", color="#dfe2e5", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)


def _lowest(bucket: str) -> float:
    """Return the lowest value of a bucket; of the last one, ``>19``, 19.5."""
    return float(f"{bucket[1:]}.5" if bucket[0] == ">" else bucket.split("-")[0])


def length_name(length: int) -> str:
    """Return the title of a column."""
    return "sentences" if length == 1 else f"{length:,}"


def number(value: float | None, decimals: int = 2, signed: bool = False) -> str:
    """Return a number for readers; a dash if it is unknown or not finite.

    Example:
        >>> number(31.236), number(1234567.0, 0), number(None), number(-0.5, 1, signed=True)
        ('31.24', '1,234,567', '–', '−0.5')
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    text = f"{value:{'+' if signed else ''},.{decimals}f}"
    if not float(text.replace(",", "")):
        text = text.lstrip("+-")
    return text.replace("-", "\u2212")


def trouble(average: Average) -> str:
    """Return in words what became of the seeds without a result; empty if all have one."""
    counts, total = Counter(cell.status for cell in average.cells), len(average.cells)
    bad = {word: counts[status] for status, word in WORDS.items() if status != DONE}
    parts = [word if n == total else f"{n} of {total} {word}" for word, n in bad.items() if n]
    return ", ".join(parts)


def read_report(folder: Path, description: SweepDescription) -> ReportData:
    """Return the results that a sweep's folder holds now.

    Args:
        folder: of the sweep.
        description: what it is about.

    Raises:
        DataError: a file of the folder is damaged.
    """
    attentions = description.attentions
    rank = {name: position for position, name in enumerate(attentions)}

    def order(cell: Cell) -> tuple[object, ...]:
        name, mixture = cell.system
        return mixture, rank.get(name, len(rank)), name, cell.length, cell.model.seed

    cells = sorted(read_cells(folder, models_in(folder, description.settings)), key=order)
    return ReportData(description, cells, average_cells(cells, attentions[0]))


def write_report(folder: Path, description: SweepDescription) -> ReportData:
    """Write report.html and results.csv; return what is in them.

    Raises:
        DataError: a file of the folder is damaged, or cannot be written.
    """
    data = read_report(folder, description)
    try:
        write_text(folder / CSV_NAME, csv_text(data))
        write_text(folder / REPORT_NAME, page(data))
    except OSError as error:
        raise DataError(f"{folder / REPORT_NAME}: cannot be written: {error.strerror}") from error
    return data


def csv_text(data: ReportData) -> str:
    """Return the records, numbers in full precision: rows ``cell`` and rows ``mean``."""
    rows = [{"row": "cell", **cell.record} for cell in data.cells]
    rows += [{"row": "mean", **average.record} for average in data.averages]
    known = {*FIRST_COLUMNS, *LAST_COLUMNS}
    others = dict.fromkeys(name for row in rows for name in row if name not in known)
    text = io.StringIO()
    writer = csv.DictWriter(text, [*FIRST_COLUMNS, *others, *LAST_COLUMNS], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def page(data: ReportData) -> str:
    """Return the page."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("relu_nmt.sweep"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "length_name": length_name}
    return environment.get_template(REPORT_NAME).render(
        data=data,
        settings=data.description.settings,
        start=_start_in_words(data.description.settings.sweep.start_from),
        command=shlex.join(["relu-nmt-sweep", *data.description.settings.command]),
        now=time.strftime("%d %B %Y, %H:%M"),
        trouble=trouble,
        WORDS=WORDS,
        BAD=BAD,
        SLOTS=SLOTS,
        SAMPLES=DEFAULT_SAMPLES,
        SEED=DEFAULT_SEED,
        CSV_NAME=CSV_NAME,
    )


def _start_in_words(folder: str | None) -> str:
    """Return which models those of the sweep start from, and how long these were trained."""
    if folder is None:
        return ""
    earlier = read_description(Path(folder))
    budget = "unknown" if earlier is None else earlier.settings.sweep.time
    return f"the sentence models of {folder}, {budget} per model"
