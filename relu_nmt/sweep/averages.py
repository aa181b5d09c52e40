"""Means over seeds with their confidence intervals, and gains against the first attention."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from relu_nmt.evaluation.significance import (
    mean_interval,
    p_value,
    resampled_scores,
    resampling_interval,
)
from relu_nmt.sweep.results import NOT_CONVERGED, PENDING, SCORES, Cell, Record, System
from relu_nmt.sweep.steps import DIVERGED, DONE, FAILED, STARTED

# Numbers of which a mean over seeds tells nothing.
NO_MEAN = ("seed", "mixture", "length")
SHARED = ("attention", "trained_on", "mixture", "length")
TEXTS = tuple(f"{score}_signature" for score in SCORES)


@dataclass
class Average:
    """A system at a document length, over all seeds.

    Args:
        system: the system.
        length: of the evaluation, in tokens.
        cells: one for each seed.
        record: means by column, intervals, gain; see :func:`average_cells`.
        resampled: by seed that converged, d-BLEU of each resample of the documents.
    """

    system: System
    length: int
    cells: list[Cell]
    record: Record = field(default_factory=dict)
    resampled: dict[int, np.ndarray] = field(default_factory=dict)


def average_cells(cells: Sequence[Cell], attentions: Sequence[str]) -> list[Average]:
    """Return an average for each system and length.

    A mean is over the seeds whose training converged; the record says how many did not. Its
    columns are those of the cells and

    * ``d_bleu_seed_interval``, ``d_bleu_document_interval``: half widths of 95% intervals;
    * ``gain``, ``gain_seed_interval``, ``gain_document_interval``, ``p_value``: d-BLEU against
      the first attention, over the seeds that converged with both, ``gain_seeds``;
    * ``seeds``, and the numbers of seeds by status.

    Args:
        cells: all cells.
        attentions: in the order of the report, the baseline first.
    """
    groups: dict[tuple[System, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((System.of(cell.model), cell.length), []).append(cell)
    rank = {name: number for number, name in enumerate(attentions)}

    def order(key: tuple[System, int]) -> tuple[object, ...]:
        system, length = key
        return system.mixture, rank.get(system.attention, len(rank)), system.attention, length

    averages = [
        _average(system, length, groups[system, length])
        for system, length in sorted(groups, key=order)
    ]
    for average in averages:
        _add_gain(average, averages, attentions)
    return averages


def _average(system: System, length: int, cells: list[Cell]) -> Average:
    cells = sorted(cells, key=lambda cell: cell.model.seed)
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


def _add_gain(average: Average, averages: Sequence[Average], attentions: Sequence[str]) -> None:
    """Compare with the first attention, trained in the same way, on the seeds that both have."""
    record, wanted = average.record, System(attentions[0], average.system.mixture)
    for other in averages:
        if (other.system, other.length) != (wanted, average.length) or other is average:
            continue
        seeds = sorted(average.resampled.keys() & other.resampled.keys())
        if not seeds:
            continue
        own, base = (
            np.mean([side.resampled[seed] for seed in seeds], axis=0) for side in (average, other)
        )
        gains = [_score(average, seed) - _score(other, seed) for seed in seeds]
        gain = sum(gains) / len(gains)
        record["gain"] = gain
        interval = mean_interval(gains)
        if interval is not None:
            record["gain_seed_interval"] = interval
        record["gain_document_interval"] = resampling_interval(own - base)
        record["p_value"] = p_value(own, base, gain)
        record["gain_seeds"] = ",".join(map(str, seeds))


def _score(average: Average, seed: int) -> float:
    """Return the d-BLEU of a seed."""
    [found] = [cell.record["d_bleu"] for cell in average.cells if cell.model.seed == seed]
    return found
