"""Means of a sweep's results over seeds, with their intervals, and gains against a baseline."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from relu_nmt.applications.sweep.results import NOT_CONVERGED, PENDING, SCORES, Cell, Record, System
from relu_nmt.applications.sweep.steps import DIVERGED, DONE, FAILED, STARTED
from relu_nmt.evaluation.significance import (
    mean_interval,
    p_value,
    resampled_scores,
    resampling_interval,
)

SPEEDS = {f"{what}_relative_speed": f"{what}_tokens_per_second" for what in ("train", "decode")}
"""Speeds over those of the baseline."""
# Numbers of which a mean over seeds tells nothing.
NO_MEAN = ("seed", "mixture", "length")
SHARED = ("attention", "trained_on", "mixture", "length")
TEXTS = (*(f"{score}_signature" for score in SCORES), "feed_forward")


@dataclass
class Average:
    """A system at a document length, over all seeds.

    Args:
        system: the system.
        length: of the evaluation, in tokens.
        cells: one for each seed.
        record: means by column, intervals, gain; see :func:`average_cells`.
        resampled: by seed that converged, d-BLEU of each resample of the documents.
        gains: d-BLEU against the baseline, of each seed that converged with both.
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
    """Return an average for each system and length, in the order of the cells.

    A mean is over the seeds whose training converged; the record says how many did not. Its
    columns are those of the cells and

    * ``d_bleu_seed_interval``, ``d_bleu_document_interval``: half widths of 95% intervals;
    * ``gain``, ``gain_seed_interval``, ``gain_document_interval``, ``p_value``: d-BLEU against
      the baseline, over the seeds that converged with both, ``gain_seeds``;
    * ``train_relative_speed``, ``decode_relative_speed``: tokens per second over those of the
      baseline;
    * ``seeds``, and the numbers of seeds by status.

    Args:
        cells: all cells; those of a system and length in the order of their seeds.
        baseline: the attention that the others are compared with.
    """
    groups: dict[tuple[System, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.system, cell.length), []).append(cell)
    averages = {key: _average(*key, own) for key, own in groups.items()}
    for (system, length), average in averages.items():
        other = averages.get((System(baseline, system.mixture), length))
        if other is None:
            continue
        for column, speed in SPEEDS.items():
            if average.record.get(speed) and other.record.get(speed):
                average.record[column] = average.record[speed] / other.record[speed]
        if other is not average:
            gain, average.gains = compare(average, other)
            average.record |= gain
    return list(averages.values())


def _average(system: System, length: int, cells: list[Cell]) -> Average:
    converged = [cell for cell in cells if cell.status == DONE]
    average = Average(system, length, cells)
    record = average.record
    record |= {name: cells[0].record[name] for name in SHARED}
    record["seeds"] = ",".join(str(cell.model.seed) for cell in converged)
    for status in (DONE, NOT_CONVERGED, DIVERGED, FAILED, PENDING, STARTED):
        number = sum(cell.status == status for cell in cells)
        if number:
            record[f"seeds_{status.replace(' ', '_')}"] = number
    if not converged:
        return average
    for name, value in converged[0].record.items():
        values = [cell.record.get(name) for cell in converged]
        numbers = [v for v in values if isinstance(v, int | float)]
        if name in TEXTS and len(set(values)) == 1:
            record[name] = value
        elif name not in NO_MEAN and len(numbers) == len(values):
            record[name] = sum(numbers) / len(numbers)
    interval = mean_interval([cell.record["d_bleu"] for cell in converged])
    if interval is not None:
        record["d_bleu_seed_interval"] = interval
    found = [cell.statistics for cell in converged if cell.statistics is not None]
    if len(found) == len(converged) and len({len(one.counts) for one in found}) == 1:
        scores = resampled_scores(found)
        seeds = (cell.model.seed for cell in converged)
        average.resampled = dict(zip(seeds, scores, strict=True))
        record["d_bleu_document_interval"] = resampling_interval(scores.mean(0))
    return average


def compare(average: Average, other: Average) -> tuple[Record, list[float]]:
    """Return the columns of a gain in d-BLEU, on the seeds that both have, and each seed's gain.

    Both are empty if there are no such seeds.
    """
    seeds = sorted(average.resampled.keys() & other.resampled.keys())
    if not seeds:
        return {}, []
    sides = (average, other)
    own, base = (np.mean([side.resampled[seed] for seed in seeds], axis=0) for side in sides)
    scores = [
        {cell.model.seed: cell.record["d_bleu"] for cell in side.cells if cell.status == DONE}
        for side in sides
    ]
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
