"""Read the page and the table of a sweep's report."""

import dataclasses
from html.parser import HTMLParser

from relu_nmt.applications.sweep.report import write_report


class Tables(HTMLParser):
    """The tables of a page as rows of cell texts, with ``|`` before small print."""

    def __init__(self, text):
        super().__init__()
        self.tables = []
        self.tags = []
        self.in_cell = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.in_cell = True
        elif tag == "small":
            self.handle_data("|")

    def handle_data(self, data):
        if self.in_cell:
            self.tables[-1][-1][-1] += data

    def handle_endtag(self, tag):
        self.in_cell = self.in_cell and tag not in ("td", "th")

    def with_title(self, *titles):
        """Return the rows of the first table whose header has all the titles."""
        for header, *rows in self.tables:
            if all(title in "\n".join(header) for title in titles):
                return rows
        raise AssertionError(titles)


def page_of(folder, description):
    write_report(folder, description)
    return (folder / "report.html").read_text("utf-8")


def varied(description, **values):
    """Return the description with other settings."""
    settings = dataclasses.replace(description.settings, **values)
    return dataclasses.replace(description, settings=settings)


def fixed(value, decimals=2, signed=False):
    text = f"{float(value):+.{decimals}f}" if signed else f"{float(value):,.{decimals}f}"
    return text.replace("-", "\u2212")


def find(rows, kind, attention, length, seed=""):
    columns = {"row": kind, "attention": attention, "length": str(length), "seed": str(seed)}
    [row] = [row for row in rows if columns.items() <= row.items()]
    return row


def scores(rows, attention, length, column="d_bleu"):
    """Return the scores of the seeds that have one."""
    columns = {"row": "cell", "attention": attention, "length": str(length)}
    values = [row[column] for row in rows if columns.items() <= row.items()]
    return [fixed(score) for score in values if score]


def gains(rows, attention, length):
    """Return the gain of each seed over softmax, where both have a score."""
    gains = []
    for seed in (1, 2, 3):
        score = find(rows, "cell", attention, length, seed)["d_bleu"]
        base = find(rows, "cell", "softmax", length, seed)["d_bleu"]
        if score and base:
            gains.append(fixed(float(score) - float(base), signed=True))
    return ", ".join(gains)
