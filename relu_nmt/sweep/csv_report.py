"""results.csv: every number of the report, a row per model and length and one per mean."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from relu_nmt.io.safe_write import write_text
from relu_nmt.sweep.averages import Average
from relu_nmt.sweep.results import SCORES, Cell

CSV_NAME = "results.csv"
CELL_ROW, MEAN_ROW = "cell", "mean"
FIRST_COLUMNS = (
    *("row", "attention", "trained_on", "mixture", "length", "seed", "seeds", "status", "note"),
    *("d_bleu", "d_bleu_seed_interval", "d_bleu_document_interval"),
    *("gain", "gain_seed_interval", "gain_document_interval", "p_value"),
    *("s_bleu", "mismatch_rate", "group_bleu", "chrf"),
    *("updates", "train_loss", "valid_nll"),
)
LAST_COLUMNS = (
    *(f"{score}_signature" for score in SCORES),
    *("device", "threads", "relu_nmt", "torch", "python", "started"),
    *("train_command", "evaluate_command"),
)


def write_csv(folder: Path, cells: Sequence[Cell], averages: Sequence[Average]) -> None:
    """Write the records, numbers in full precision.

    Args:
        folder: of the sweep.
        cells: one row each, ``row`` is ``cell``.
        averages: one row each, ``row`` is ``mean``.
    """
    rows = [{"row": CELL_ROW, **cell.record} for cell in cells]
    rows += [{"row": MEAN_ROW, **average.record} for average in averages]
    known = {*FIRST_COLUMNS, *LAST_COLUMNS}
    others = dict.fromkeys(name for row in rows for name in row if name not in known)
    text = io.StringIO()
    columns = [*FIRST_COLUMNS, *others, *LAST_COLUMNS]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / CSV_NAME, text.getvalue())
