"""What all sections of the report share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from relu_nmt.sweep.averages import Average
from relu_nmt.sweep.folder import SweepDescription
from relu_nmt.sweep.page_parts import UNKNOWN, Markup, joined, small, styled
from relu_nmt.sweep.plots import Line, Panel
from relu_nmt.sweep.results import NOT_CONVERGED, PENDING, Cell, System
from relu_nmt.sweep.step_state import DIVERGED, DONE, FAILED, STARTED

WORDS = {
    NOT_CONVERGED: "does not converge",
    DIVERGED: "diverged",
    FAILED: "failed",
    STARTED: "under way",
    PENDING: "not begun",
}
BAD = (NOT_CONVERGED, DIVERGED, FAILED)
LENGTH_AXIS = "document length, tokens"


@dataclass(frozen=True)
class ReportData:
    """The results of a sweep, laid out as a table of systems and lengths.

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

    def at(self, system: System, length: int) -> Average | None:
        """Return a place of the table."""
        for average in self.averages:
            if (average.system, average.length) == (system, length):
                return average
        return None

    def row(self, system: System) -> Iterator[Average | None]:
        """Yield the averages of a system, one for each length."""
        for length in self.lengths:
            yield self.at(system, length)

    def rows(self) -> Iterator[tuple[str, Average, str]]:
        """Yield name, results and style of the row of each place that has results."""
        for system in self.systems:
            style = "group"
            for average in self.row(system):
                if average is not None and "d_bleu" in average.record:
                    yield self.label(system), average, style
                    style = "again"

    def label(self, system: System) -> str:
        """Return the name of a system."""
        several = len({other.mixture for other in self.systems}) > 1
        if not (several and system.mixture):
            return system.attention
        return f"{system.attention}, mixture {','.join(map(str, system.mixture))}"

    def columns(self) -> list[str]:
        """Return the titles of the columns."""
        return [length_name(length) for length in self.lengths]

    def panel(self, title: str, column: str, scale: float = 1.0, from_zero: bool = True) -> Panel:
        """Return a plot of a column of the records.

        Args:
            title: what is shown, with its unit.
            column: of the means over seeds.
            scale: the values are divided by it.
            from_zero: whether the vertical axis begins at 0.
        """
        lines = []
        for series, system in enumerate(self.systems):
            points = []
            for position, average in enumerate(self.row(system)):
                value = average and average.record.get(column)
                if value is not None:
                    interval = interval_of(average) if column == "d_bleu" else None
                    points.append((position, value / scale, interval))
            lines.append(Line(series, tuple(points)))
        return Panel(title, tuple(self.columns()), tuple(lines), from_zero)


def length_name(length: int) -> str:
    """Return the title of a column."""
    return "sentences" if length == 1 else f"{length:,}"


def interval_of(average: Average) -> float | None:
    """Return half the width of the interval over seeds or, with one seed, over documents."""
    over_documents = average.record.get("d_bleu_document_interval")
    return average.record.get("d_bleu_seed_interval", over_documents)


def trouble(average: Average) -> str:
    """Return in words what became of the seeds without a result; empty if all have one."""
    parts = []
    for status, word in WORDS.items():
        number = sum(cell.status == status for cell in average.cells)
        if number:
            count = f"{number} of {len(average.cells)} " if number < len(average.cells) else ""
            parts.append(f"{count}{word}")
    return ", ".join(parts)


def place(average: Average | None, value: str, *below: object) -> Markup:
    """Return what stands in a table for a system and a length.

    Args:
        average: the results, None if the sweep has no such place.
        value: the number, if a seed has one.
        below: smaller print under it.
    """
    if average is None:
        return joined(UNKNOWN)
    words = trouble(average)
    is_bad = any(cell.status in BAD for cell in average.cells)
    shown = styled(words, "bad") if is_bad else words
    if any(cell.status == DONE for cell in average.cells):
        return joined(value, small(*below, shown))
    return joined(shown)
