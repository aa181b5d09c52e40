"""What a report shows: the results of a sweep as tables of systems and lengths, and their plots."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from relu_nmt.applications.sweep.averages import Average, average_cells, compare
from relu_nmt.applications.sweep.figures import Line, Panel, image
from relu_nmt.applications.sweep.plan import SweepDescription, models_in
from relu_nmt.applications.sweep.published import Value
from relu_nmt.applications.sweep.results import (
    CONTRAST_COLUMNS,
    NOT_CONVERGED,
    PENDING,
    Cell,
    Record,
    System,
    read_cells,
)
from relu_nmt.applications.sweep.steps import DIVERGED, DONE, FAILED, STARTED
from relu_nmt.io.page import LEAST_SEEDS, arms

WORDS = {
    DONE: "done",
    NOT_CONVERGED: "not converged",
    DIVERGED: "diverged",
    FAILED: "failed",
    STARTED: "under way",
    PENDING: "not begun",
}
BAD = (NOT_CONVERGED, DIVERGED, FAILED)
COURSE_TITLES = {
    "train_loss": ("training loss, bits per token", False),
    "gradient_norm": ("gradient norm", True),
    "output_square": ("mean square of attention outputs", True),
    "query_norm": ("mean length of queries", False),
    "key_norm": ("mean length of keys", False),
    "output_growth": ("exponent e of outputs, decoder: n^e", False),
}
"""Of the plots of the course of training, and whether their vertical axis is logarithmic."""
SIGNIFICANT, MOST_BLEU = 0.05, 100.0
MOST_NAMED = 3
"""Models that ended alike and are named."""
MEMORY_TITLES = {
    "d_bleu": "d-BLEU",
    "memory_variance_ratio": "variance ratio",
    "memory_anisotropy": "anisotropy",
}


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

    @property
    def seeds(self) -> list[int]:
        """The seeds of all models."""
        return sorted({cell.model.seed for cell in self.cells})

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
        """Return the average with the highest d-BLEU, if it is better than any other.

        Better is a gain on at least LEAST_SEEDS seeds, significant over documents and over seeds.
        """
        found = [a for a in self.averages if a.length == length and "d_bleu" in a.record]
        best = max(found, key=lambda a: a.record["d_bleu"], default=None)
        others = [other for other in found if other is not best]
        for other in others:
            gain, seeds = compare(best, other) if best else ({}, [])
            if len(seeds) < LEAST_SEEDS or gain["p_value"] >= SIGNIFICANT:
                return None
            if gain["gain"] <= gain["gain_seed_interval"]:
                return None
        return best if others else None

    def statuses(self) -> dict[str, int]:
        """Return how many evaluations there are by status."""
        counts = Counter(cell.status for cell in self.cells)
        return {word: counts[status] for status, word in WORDS.items() if counts[status]}

    def went_wrong(self) -> list[tuple[str, Cell]]:
        """Return the models, or models at a length, that came to grief: together if in one way."""
        found: dict[str, Cell] = {}
        for cell in self.cells:
            if cell.status in BAD:
                trained = not cell.record["note"] or "evaluate_command" in cell.record
                name = f"{cell.model} at {cell.length}" if trained else str(cell.model)
                found.setdefault(name, cell)
        alike: dict[tuple[str, str], list[str]] = {}
        for name, cell in found.items():
            alike.setdefault((cell.status, cell.record["note"]), []).append(name)
        return [
            (
                "; ".join(names[:MOST_NAMED])
                + (f"; {more:,} more" if (more := len(names) - MOST_NAMED) > 0 else ""),
                found[names[0]],
            )
            for names in alike.values()
        ]

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
        panels = [
            Panel(
                title,
                "document length, tokens",
                self._lines_over_lengths(column, scale),
                [length_name(n) for n in self.lengths],
                from_zero=from_zero,
            )
            for column, title, scale in columns
        ]
        return image(panels)

    def _lines_over_lengths(self, column: str, scale: float) -> list[Line]:
        """Return a line for each system that has values in the column."""
        lines = []
        for number, system in enumerate(self.systems):
            means = {
                float(place): average
                for place, average in enumerate(self.row(system))
                if average is not None and column in average.record
            }
            if not means:
                continue
            points = {place: own.record[column] / scale for place, own in means.items()}
            errors = [_error(own, column) for own in means.values()]
            line = Line(
                self.label(system), number, points, errors if any(map(any, errors)) else None
            )
            for place, own in means.items():
                if 1 < len(values := own.values(column)) < LEAST_SEEDS:
                    line.dots += [(place, value / scale) for value in values]
            lines.append(line)
        return lines

    def course_figure(self) -> str:
        """Return plots of the first seed's trainings over updates, for the ``src`` of an image."""
        panels = []
        courses = {cell.system: cell.course for cell in reversed(self.cells)}
        for name, (title, log_y) in COURSE_TITLES.items():
            lines = [
                Line(self.label(system), number, dict(sorted(courses[system][name].items())))
                for number, system in enumerate(self.systems)
                if courses.get(system, {}).get(name)
            ]
            panels.append(Panel(title, "updates", lines, log_y=log_y))
        return image(panels)

    def memories(self) -> dict[str, list[Record]]:
        """Return the records that have statistics of memories, by network, smallest first."""
        found: dict[str, list[Record]] = {}
        for average in sorted(self.averages, key=lambda one: one.record.get("memory_size", 0)):
            if "memory_size" in average.record and average.length == self.lengths[0]:
                found.setdefault(average.record["feed_forward"], []).append(average.record)
        return found

    def memory_figures(self) -> list[str]:
        """Return plots of the memories, for the ``src`` of images: over sizes, and of the sums."""
        memories = self.memories()
        figures = []
        if max((len(records) for records in memories.values()), default=0) > 1:
            panels = []
            for column, title in MEMORY_TITLES.items():
                lines = []
                for number, (name, records) in enumerate(memories.items()):
                    points = {one["memory_size"]: one[column] for one in records if column in one}
                    if points:
                        lines.append(Line(name, number, points))
                panels.append(Panel(title, "size of the memory, keys", lines, log_x=True))
            figures.append(image(panels))
        sizes = sorted({one["memory_size"] for records in memories.values() for one in records})
        panels = []
        for name, records in memories.items():
            lines = []
            for record in records:
                sums = {
                    float(percent): value
                    for percent in self.percents()
                    if (value := record.get(f"memory_top_sum[{percent}]")) is not None
                }
                if sums:
                    size = record["memory_size"]
                    lines.append(Line(f"size {size:g}", sizes.index(size), sums))
            title = f"{name}: share of the sum"
            panels.append(Panel(title, "largest p %", lines, log_x=True, from_zero=True))
        return [source for source in (*figures, image(panels)) if source]

    def percents(self) -> list[str]:
        """Return the p of the sums of the largest p percent of the weights of memories."""
        return list(self.buckets("memory_top_sum["))

    def published_rows(self) -> list[tuple[str, list[tuple[Average | None, str, Value]]]]:
        """Return the systems of the published table and of this sweep.

        Returns:
            names, and for each column the average that has the measured value, where there is
            one, the column's name, and the published value.
        """
        table = self.description.published
        if table is None:
            return []
        first: dict[str, System] = {}
        for system in self.systems:
            first.setdefault(system.attention, system)
        rows = []
        for name in dict.fromkeys([*table.rows, *first]):
            row = []
            for column in table.columns:
                title, _, length = column.partition("@")
                own = self.row(first[name]) if name in first else []
                places = [a for a in own if a is not None]
                if length:
                    places = [a for a in places if a.length == int(length)]
                row.append((places[0] if places else None, title, table.value(name, column)))
            rows.append((name, row))
        return rows


def _error(average: Average, column: str) -> tuple[float, float]:
    """Return how far an interval reaches down and up; only d-BLEU has one.

    It is over seeds, over documents of one seed, and none of seeds too few for one.
    """
    seeds, record = len(average.values(column)), average.record
    interval = record.get(f"{column}_{'document' if seeds == 1 else 'seed'}_interval")
    if interval is None or 1 < seeds < LEAST_SEEDS:
        return 0.0, 0.0
    return arms(record[column], interval, MOST_BLEU)


def _lowest(bucket: str) -> float:
    """Return the lowest value of a bucket; of the last one, ``>19``, 19.5."""
    return float(f"{bucket[1:]}.5" if bucket[0] == ">" else bucket.split("-")[0])


def length_name(length: int) -> str:
    """Return the title of a column."""
    return "sentences" if length == 1 else f"{length:,}"


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
