"""Writes results.csv and report.html, a page that needs nothing but itself."""

import time
from collections.abc import Iterator
from pathlib import Path

from relu_nmt.errors import DataError
from relu_nmt.io.safe_write import write_text
from relu_nmt.sweep.averages import average_cells, unfinished
from relu_nmt.sweep.cost_sections import attention_section, lengths_section, speed_section
from relu_nmt.sweep.csv_report import write_csv
from relu_nmt.sweep.detail_sections import commands_section, machine_section, models_section
from relu_nmt.sweep.document_counts import reference_documents
from relu_nmt.sweep.folder import MODELS, SweepDescription, merged, models_in
from relu_nmt.sweep.page_parts import Markup, escape, facts, joined, paragraph
from relu_nmt.sweep.page_style import STYLE
from relu_nmt.sweep.report_data import WORDS, ReportData
from relu_nmt.sweep.results import CellReader
from relu_nmt.sweep.score_sections import bleu_section, bucket_section, other_scores_section

REPORT_NAME = "report.html"
SECTIONS = (
    bleu_section,
    other_scores_section,
    attention_section,
    lengths_section,
    bucket_section,
    speed_section,
    models_section,
    commands_section,
    machine_section,
)


class Reporter:
    """Writes the report of a folder again and again, as results come.

    Args:
        folder: of the sweep.
        description: what it is about.

    Raises:
        DataError: the references of the data folder are damaged.
    """

    def __init__(self, folder: Path, description: SweepDescription) -> None:
        self._folder = folder
        self._description = description
        self._references = reference_documents(
            description.data, description.gen_subset, description.languages
        )

    def read(self) -> ReportData:
        """Return the results that are there now.

        Raises:
            DataError: a file of the folder is damaged.
        """
        everything = merged(dict(self._description.planned), models_in(self._folder))
        cells = CellReader(self._references, self._folder / MODELS).read(everything)
        attentions = self._description.attentions
        rank = {name: position for position, name in enumerate(attentions)}
        cells.sort(
            key=lambda cell: (
                cell.training.is_mixture,
                rank.get(cell.training.attention, len(rank)),
                cell.training.attention,
                cell.length,
                cell.training.seed,
            )
        )
        return ReportData(self._description, cells, average_cells(cells, attentions))

    def write(self) -> Path:
        """Write both files; return the page's path.

        Raises:
            DataError: a file is damaged, or cannot be written.
        """
        data = self.read()
        path = self._folder / REPORT_NAME
        try:
            write_csv(self._folder, data.cells, data.averages)
            write_text(path, render(data))
        except OSError as error:
            raise DataError(f"{path}: cannot be written: {error.strerror}") from error
        return path


def render(data: ReportData) -> str:
    """Return the page."""
    title = f"Document lengths: {', '.join(dict.fromkeys(s.attention for s in data.systems))}"
    content = "\n".join([*_opening(data, title), *(p for part in SECTIONS for p in part(data))])
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{content}\n</main>\n</body>\n</html>\n"
    )


def _opening(data: ReportData, title: str) -> Iterator[Markup]:
    description = data.description
    yield joined(Markup("<h1>"), title, Markup("</h1>"))
    counts = unfinished(data.cells)
    words = [f"{number} {WORDS.get(status, status)}" for status, number in counts.items()]
    yield paragraph(
        f"{len(data.cells)} evaluations of {len({c.training for c in data.cells})} models: "
        f"{', '.join(words) or 'none yet'}.",
        "lead",
    )
    documents = next((c.record["documents"] for c in data.cells if "documents" in c.record), None)
    split = description.gen_subset + (f", {documents:,} documents" if documents else "")
    mixtures = dict.fromkeys(c.training.trained_on for c in data.cells if c.training.is_mixture)
    seeds = sorted({cell.training.seed for cell in data.cells})
    yield facts(
        [
            ("data", description.data),
            ("evaluated on", split),
            ("starts from", description.start),
            ("training", f"{description.budget} per model"),
            ("length mixture", "; ".join(mixtures)),
            ("checkpoint", description.checkpoint),
            ("seeds", ", ".join(map(str, seeds))),
            ("report of", time.strftime("%d %B %Y, %H:%M")),
        ]
    )
