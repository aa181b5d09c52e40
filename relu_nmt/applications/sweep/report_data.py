"""The results of a sweep for its report: means over seeds, gains, and tables."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from relu_nmt.applications.sweep.plan import SweepDescription, Value, models_in
from relu_nmt.applications.sweep.results import (
    CONTRAST_COLUMNS,
    NOT_CONVERGED,
    PENDING,
    SCORES,
    Cell,
    Record,
    System,
    read_cells,
)
from relu_nmt.applications.sweep.steps import DIVERGED, DONE, FAILED, STARTED
from relu_nmt.evaluation.significance import (
    mean_interval,
    p_value,
    resampled_scores,
    resampling_interval,
)
from relu_nmt.io.page import LEAST_SEEDS

WORDS = {
    DONE: "done",
    NOT_CONVERGED: "not converged",
    DIVERGED: "diverged",
    FAILED: "failed",
    STARTED: "under way",
    PENDING: "not begun",
}
BAD = (NOT_CONVERGED, DIVERGED, FAILED)
SIGNIFICANT = 0.05
MOST_NAMED = 3
"""Number of models named in the report among those with the same error."""
SPEEDS = {f"{kind}_relative_speed": f"{kind}_tokens_per_second" for kind in ("train", "decode")}
"""Columns of speeds by those of the quotients with the baseline's speed."""
# Numbers whose mean over seeds has no meaning.
NO_MEAN = ("seed", "mixture", "length")
SHARED = ("attention", "trained_on", "mixture", "length")
TEXTS = (*(f"{score}_signature" for score in SCORES), "feed_forward")


@dataclass
class Average:
    """A system at a document length in tokens, with a cell for each seed.

    Args:
        record: means by column, intervals, gain; see :func:`average_cells`.
        resampled: d-BLEU of each resample of the documents, by converged seed.
        gains: gain in d-BLEU over the baseline, for each seed that converged with both.
    """

    system: System
    length: int
    cells: list[Cell]
    record: Record = field(default_factory=dict)
    resampled: dict[int, np.ndarray] = field(default_factory=dict)
    gains: list[float] = field(default_factory=list)

    def values(self, column: str) -> list[float]:
        """Return the values of the seeds that converged."""
        records = (cell.record for cell in self.cells if cell.status == DONE)
        return [record[column] for record in records if column in record]


def average_cells(cells: Sequence[Cell], baseline: str) -> list[Average]:
    """Return an average for each system and length, in the order of the cells and their seeds.

    A mean is over the seeds whose training converged; the record counts the others. It has the
    columns of the cells and

    * ``d_bleu_seed_interval``, ``d_bleu_document_interval``: half widths of 95% intervals;
    * ``gain``, ``gain_seed_interval``, ``gain_document_interval``, ``p_value``: gain in d-BLEU
      over the baseline, for the seeds that converged with both, ``gain_seeds``;
    * ``train_relative_speed``, ``decode_relative_speed``: tokens per second over those of the
      baseline;
    * ``seeds``, and the numbers of seeds by status.
    """
    # Group the seeds of each system and length.
    groups: dict[tuple[System, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.system, cell.length), []).append(cell)
    averages = {key: _average(*key, own) for key, own in groups.items()}
    # Compare each average with the baseline at the same length.
    for (system, length), average in averages.items():
        other = averages.get((System(baseline, system.mixture), length))
        if other is None:
            continue
        for column, speed in SPEEDS.items():
            if average.record.get(speed) and other.record.get(speed):
                average.record[column] = average.record[speed] / other.record[speed]
        # Leave the baseline without a gain over itself.
        if other is not average:
            gain, average.gains = compare(average, other)
            average.record |= gain
    return list(averages.values())


def _average(system: System, length: int, cells: list[Cell]) -> Average:
    converged = [cell for cell in cells if cell.status == DONE]
    average = Average(system, length, cells)
    record = average.record
    # Count the seeds by status.
    record |= {name: cells[0].record[name] for name in SHARED}
    record["seeds"] = ",".join(str(cell.model.seed) for cell in converged)
    for status in (DONE, NOT_CONVERGED, DIVERGED, FAILED, PENDING, STARTED):
        number = sum(cell.status == status for cell in cells)
        if number:
            record[f"seeds_{status.replace(' ', '_')}"] = number
    if not converged:
        return average
    # Average the numbers that all converged seeds have.
    for name, value in converged[0].record.items():
        values = [cell.record.get(name) for cell in converged]
        numbers = [v for v in values if isinstance(v, int | float)]
        if name in TEXTS and len(set(values)) == 1:
            record[name] = value
        elif name not in NO_MEAN and len(numbers) == len(values):
            record[name] = sum(numbers) / len(numbers)
    # Add the interval over seeds, if there are two or more.
    interval = mean_interval([cell.record["d_bleu"] for cell in converged])
    if interval is not None:
        record["d_bleu_seed_interval"] = interval
    # Resample the documents of all seeds together, if they evaluated the same ones.
    found = [cell.statistics for cell in converged if cell.statistics is not None]
    if len(found) == len(converged) and len({len(one.counts) for one in found}) == 1:
        scores = resampled_scores(found)
        seeds = (cell.model.seed for cell in converged)
        average.resampled = dict(zip(seeds, scores, strict=True))
        record["d_bleu_document_interval"] = resampling_interval(scores.mean(0))
    return average


def compare(average: Average, other: Average) -> tuple[Record, list[float]]:
    """Return the columns of a gain in d-BLEU, over the seeds of both averages, and its values.

    Both results are empty without a common seed.
    """
    # Compare on common seeds only.
    seeds = sorted(average.resampled.keys() & other.resampled.keys())
    if not seeds:
        return {}, []
    # Average the resampled scores over the seeds, and the gains of single seeds.
    sides = (average, other)
    own, base = (np.mean([side.resampled[seed] for seed in seeds], axis=0) for side in sides)
    scores = [
        {cell.model.seed: cell.record["d_bleu"] for cell in side.cells if cell.status == DONE}
        for side in sides
    ]
    # Intervals: over seeds, and over resamples of the documents.
    gains = [scores[0][seed] - scores[1][seed] for seed in seeds]
    gain = sum(gains) / len(gains)
    record: Record = {"gain": gain}
    interval = mean_interval(gains)
    if interval is not None:
        record["gain_seed_interval"] = interval
    record["gain_document_interval"] = resampling_interval(own - base)
    record["p_value"] = p_value(own, base, gain)
    record["gain_seeds"] = ",".join(map(str, seeds))
    return record, gains


@dataclass(frozen=True)
class ReportData:
    """The results of a sweep, laid out as tables of systems and lengths."""

    description: SweepDescription
    cells: Sequence[Cell]
    averages: Sequence[Average]

    @property
    def systems(self) -> list[System]:
        """The rows of the tables."""
        return list(dict.fromkeys(average.system for average in self.averages))

    @property
    def lengths(self) -> list[int]:
        """The columns of the tables, in tokens."""
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
        """Return whether an average has a value in one of the columns."""
        return any(column in a.record for a in self.averages for column in columns)

    def distinct(self, column: str) -> str:
        """Return the different texts in a column of the models; usually there is only one."""
        found = (cell.record.get(column) for cell in self.cells)
        return "; ".join(dict.fromkeys(str(value) for value in found if value))

    def best_at(self, length: int) -> Average | None:
        """Return the average with the highest d-BLEU, if it is better than all others.

        Better means a gain on at least LEAST_SEEDS seeds, significant over documents and seeds.
        """
        # Compare the highest score with all others.
        found = [a for a in self.averages if a.length == length and "d_bleu" in a.record]
        best = max(found, key=lambda a: a.record["d_bleu"], default=None)
        others = [other for other in found if other is not best]
        for other in others:
            gain, seeds = compare(best, other) if best else ({}, [])
            if len(seeds) < LEAST_SEEDS or gain["p_value"] >= SIGNIFICANT:
                return None
            # Refuse a gain that its spread over seeds could explain.
            if gain["gain"] <= gain["gain_seed_interval"]:
                return None
        return best if others else None

    def statuses(self) -> dict[str, int]:
        """Return the number of evaluations by status, in words."""
        counts = Counter(cell.status for cell in self.cells)
        return {word: counts[status] for status, word in WORDS.items() if counts[status]}

    def went_wrong(self) -> list[tuple[str, Cell]]:
        """Return the names of models, or models at a length, by error, with an example each."""
        # Name a training once, an evaluation with its length.
        found: dict[str, Cell] = {}
        for cell in self.cells:
            if cell.status in BAD:
                trained = not cell.record["note"] or "evaluate_command" in cell.record
                name = f"{cell.model} at {cell.length}" if trained else str(cell.model)
                found.setdefault(name, cell)
        # Join the names of models with the same error.
        alike: dict[tuple[str, str], list[str]] = {}
        for name, cell in found.items():
            alike.setdefault((cell.status, cell.record["note"]), []).append(name)
        # Show a few names for each error, and count the rest.
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
        """Return the number of segments by bucket, from columns such as ``documents[1-19]``."""
        found = {
            column[len(counted) : -1]: value
            for average in self.averages
            for column, value in average.record.items()
            if column.startswith(counted)
        }
        return dict(sorted(found.items(), key=lambda one: _lowest(one[0])))

    def contrasts(self) -> dict[System, dict[str, Record]]:
        """Return the columns of contrasts by system and category of the contrasts."""
        found: dict[System, dict[str, Record]] = {}
        for average in self.averages:
            for column, value in average.record.items():
                name, _, category = column.rstrip("]").partition("[")
                if name in CONTRAST_COLUMNS:
                    found.setdefault(average.system, {}).setdefault(category, {})[name] = value
        return found

    def realised_lengths(self) -> Iterator[tuple[int, str, str, Record]]:
        """Yield the length limit, the split, the prefix of its columns, and their record."""
        # Take the first record with the lengths of a split.
        trained = {length for cell in self.cells for length in cell.model.lengths}
        for length in sorted({*self.lengths, *trained}):
            # Look for mixtures in all records, for other models at their length.
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

    def memories(self) -> dict[str, list[Record]]:
        """Return the records with statistics of memories, by network, smallest first."""
        found: dict[str, list[Record]] = {}
        for average in sorted(self.averages, key=lambda one: one.record.get("memory_size", 0)):
            if "memory_size" in average.record and average.length == self.lengths[0]:
                found.setdefault(average.record["feed_forward"], []).append(average.record)
        return found

    def published_rows(self) -> list[tuple[str, list[tuple[Average | None, str, Value]]]]:
        """Return the systems of the published table and of this sweep.

        Returns:
            name of each system, and for each column the average with the measured value or None,
            the column's name, and the published value.
        """
        table = self.description.published
        if table is None:
            return []
        # Compare an attention by its first system.
        first: dict[str, System] = {}
        for system in self.systems:
            first.setdefault(system.attention, system)
        rows = []
        for name in dict.fromkeys([*table.rows, *first]):
            # Find the average for each column, at the column's length if it has one.
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


def _lowest(bucket: str) -> float:
    """Return the lowest value of a bucket; 19.5 for the last one, ``>19``."""
    return float(f"{bucket[1:]}.5" if bucket[0] == ">" else bucket.split("-")[0])


def read_report(folder: Path, description: SweepDescription) -> ReportData:
    """Return the present results in a sweep's folder.

    Raises:
        DataError: a file of the folder is damaged.
    """
    attentions = description.attentions
    rank = {name: position for position, name in enumerate(attentions)}

    # Sort by mixture, then in the order of attentions, lengths and seeds.
    def order(cell: Cell) -> tuple[object, ...]:
        name, mixture = cell.system
        return mixture, rank.get(name, len(rank)), name, cell.length, cell.model.seed

    cells = sorted(read_cells(folder, models_in(folder, description.settings)), key=order)
    return ReportData(description, cells, average_cells(cells, attentions[0]))
