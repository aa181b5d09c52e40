"""A report that several tests read."""

import pytest

from tests.outputs import csv_rows
from tests.unit.applications.sweep.made_results import make_sweep
from tests.unit.applications.sweep.report_pages import page_of


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """The page and the rows of the CSV of a sweep in which some models failed."""
    folder = tmp_path_factory.mktemp("made")
    description = make_sweep(folder)
    page = page_of(folder, description)
    rows = csv_rows(folder / "results.csv")
    return page, rows


@pytest.fixture
def no_pictures(monkeypatch):
    """Leave out the drawing, which takes most of the time of a report."""
    monkeypatch.setattr("relu_nmt.drawing.panels.draw_svg", lambda *_: "<svg/>")
