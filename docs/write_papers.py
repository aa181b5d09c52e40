"""Write the pages of the papers' tables and figures, docs/lab/papers.md and docs/lab/papers/*.md.

    python docs/write_papers.py

They show the registry, examples/papers/*.yaml: change it there, not in the pages.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LAB = ROOT / "docs" / "lab"
sys.path.insert(0, str(ROOT))

from examples.paper_registry import (  # noqa: E402
    SHARED,
    read_measurements,
    read_paper,
    read_papers,
    read_yaml,
)
from examples.papers import (  # noqa: E402
    COMMAND,
    GAP,
    MEASURED,
    SPREADS,
    Entry,
    read_entries,
    tables_of,
)

NOTHING = ("", "null")
NO_BREAK = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"
WIDEST = 10  # columns that fit beside the two lists of contents at 1,300 pixels
INDEX = """# The papers' tables and figures

**Question.** Do the tables and figures of the papers come out with this toolkit?

**Answer.** Each has an entry in a registry, [examples/papers](../../examples/papers), with its
commands in two forms. The small form is for a laptop. The paper form has the data and settings of
the paper, and none has been run to the end here yet. The pages show measured numbers beside
published ones.

{table}

```
python examples/papers.py --list
python examples/papers.py --dry-run reluformer-table2
python examples/papers.py --run reluformer-table2 --setting small
```

*Measured* is the small form. An entry is a place in a paper, not an experiment: several entries
show one table of numbers. Behind the {measured} measured entries stand {tables} *tables*. *Seeds*
has three seeds or more in every row of the entry's first table. *Some seeds* has fewer, or several
in some rows only. *Interval* has one training, and an interval or standard error over its
test data, or a time, and one over turns. *Exact* is counted. *One seed* has no interval. *Command
only* has commands and no number here. A *gap* lacks something; its entry says why.

Small models of short trainings may be compared row with row, not with the published numbers. A time
or memory with "about" is an estimate, and in the paper form it is arithmetic alone.

[Study](study.md) and [results](results.md) have longer trainings for translation.

## What a number can say

One rule for every page, for agreement and for contradiction:

- **Several seeds.** A difference is claimed if the 95 % interval (Student's t) of the differences
  of trainings with the same seed is without zero. Otherwise the seeds do not tell, whatever the
  means. Two seeds have no interval; their numbers stand one by one.
- **One seed.** The text says what this training had. That is neither agreement nor contradiction.
  An interval over test data is that of this one model: other seeds of trainings as short as these
  differ by several points more.
- **A time** is claimed if its interval over turns is without 1, for this machine alone.

## Run again by somebody else

{again}

## What contradicts the papers

Short trainings of small models cannot refute a paper, and one seed decides nothing. These are all
points where a number here has another direction than the published one, each with what stands
behind it. What is not in the list has the published direction, is not told by its seeds, or is
not measured.

{contradictions}
"""


@dataclass
class Page:
    """A page while it is written.

    Args:
        paper: the paper's part of the registry.
        entries: its entries.
        measurements: measured tables of all papers by name.
        shown: heading under which each measurement stands first.
    """

    paper: Mapping[str, Any]
    entries: Sequence[Entry]
    measurements: Mapping[str, Mapping[str, Any]]
    shown: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """Return the page."""
        arxiv = self.paper["arxiv"]
        head = [
            f"# {self.paper['short'][0].upper()}{self.paper['short'][1:]}: tables and figures",
            "<!-- written by docs/write_papers.py from examples/papers -->",
            f"*{self.paper['title']}*, [arXiv {arxiv}](https://arxiv.org/abs/{arxiv}). "
            "[All papers](../papers.md).",
            self.paper["intro"].strip(),
            self.contents(),
        ]
        return "\n\n".join([*head, *(self.section(entry) for entry in self.entries)]) + "\n"

    def contents(self) -> str:
        """Return the table of the entries with their states and costs."""
        rows = []
        for entry in self.entries:
            location = entry.values["place"]
            small = entry.forms.get("small")
            cost = small.cost if small else ""
            link = f"[{location}](#{anchor(location)})"
            rows.append([link, f"`{entry.id}`", entry.values["shows"], state_of(entry), cost])
        return markdown(["", "name", "content", "state", "small form"], rows)

    def section(self, entry: Entry) -> str:
        """Return the part of an entry: numbers, remarks, gaps, and commands."""
        values = entry.values
        parts = [
            f"## {values['place']}",
            f"{sentence(values['shows'])} `{entry.id}`, {state_of(entry)}.",
        ]
        published = published_of(entry)
        names = values.get("measured", ())
        # Put published numbers beside those of the first measured table.
        for number, name in enumerate(names):
            parts += self.measured(entry, name, published if number == 0 else None)
        if published and not names:
            parts.append(joined({}, published, values.get("names", {})))
        if "published_note" in values:
            parts.append(f"*Published*: {values['published_note']}")
        if "notes" in values:
            parts.append(values["notes"].strip())
        for name, label in (
            ("measured_elsewhere", "*Measured*"),
            ("command_only", "*Not measured*"),
            ("gap", "*Gap*"),
            ("gaps", "*Gaps*"),
            ("see", "*See also*"),
        ):
            if name in values:
                parts.append(f"{label}: {values[name].rstrip('.')}.")
        for setting, form in entry.forms.items():
            command = f"python examples/papers.py --run {entry.id} --setting {setting}"
            parts.append(f"`{command}`: {form.cost}.")
        return "\n\n".join(parts)

    def measured(
        self, entry: Entry, name: str, published: Mapping[str, Any] | None
    ) -> Iterator[str]:
        """Yield a measured table with its facts; of one that is shown above, a link."""
        table, heading = self.measurements[name], entry.values["place"]
        rows, before = entry.values.get("rows"), self.shown.get(name)
        if before and not rows and "measured_columns" not in entry.values:
            yield f"Measured: the table of [{before}](#{anchor(before)})."
            if published:
                yield joined({}, published, table.get("names", {}))
            return
        # Take the rows and columns of this entry, all by default.
        chosen = entry.values.get("measured_columns", table["columns"])
        columns = [column for column in chosen if column in table["columns"]]
        columns_kept = [table["columns"].index(column) for column in columns]
        rows_kept = {
            key: [row[i] for i in columns_kept]
            for key, row in table["rows"].items()
            if not rows or key in rows
        }
        labels = {**table.get("names", {}), **entry.values.get("names", {})}
        yield joined({**table, "columns": columns, "rows": rows_kept}, published, labels)
        self.shown.setdefault(name, heading)
        if before:
            yield f"The runs are those of [{before}](#{anchor(before)})."
            return
        interval = "" if table["interval"] == "none" else f" {sentence(table['interval'])}"
        yield (
            f"Measured ({uncapitalized(table['title'])}): {table['seeds']}.{interval} "
            f"{table['date']}, {table['machine']}, revision {table['revision']}."
        )
        if "notes" in table:
            yield table["notes"].strip()


def state_of(entry: Entry) -> str:
    """Return the state of an entry, and the spread of its numbers if it has any."""
    return f"{entry.state}, {entry.spread}" if entry.spread else entry.state


def published_of(entry: Entry) -> dict[str, Any] | None:
    """Return the columns and rows that a paper prints; None if it prints none."""
    if "published_file" in entry.values:
        table = read_yaml(ROOT / entry.values["published_file"])
        return {"columns": list(table["columns"].values()), "rows": table["rows"]}
    if "published" in entry.values:
        return {"columns": entry.values["columns"], "rows": entry.values["published"]}
    return None


def joined(
    measurement: Mapping[str, Any], published: Mapping[str, Any] | None, names: Mapping[str, str]
) -> str:
    """Return a table of measured columns, and of published ones in italics; two if it is wide."""
    columns, rows = list(measurement.get("columns", ())), measurement.get("rows", {})
    theirs = published["rows"] if published else {}
    heads = [measurement.get("rows_are", ""), *columns]
    if published:
        heads += [f"*published: {column}*" for column in published["columns"]]
    cells = []
    for key in dict.fromkeys((*rows, *theirs)):
        row = [names.get(key, key), *rows.get(key, [""] * len(columns))]
        if published:
            row += theirs.get(key, [""] * len(published["columns"]))
        # A mean and its interval stay in one line.
        cells.append(["" if cell in NOTHING else cell.replace(" ± ", NO_BREAK) for cell in row])
    # Leave out published columns without a number.
    filled = [i for i in range(len(heads)) if i <= len(columns) or any(row[i] for row in cells)]
    if columns and len(filled) > WIDEST:
        # Put the published columns of a wide table below it.
        parts = [filled[: len(columns) + 1], [0, *filled[len(columns) + 1 :]]]
    else:
        parts = [filled]
    tables = []
    for part in parts:
        lines = [[row[i] for i in part] for row in cells if any(row[i] for i in part[1:])]
        tables.append(markdown([heads[i] for i in part], lines))
    return "\n\n".join(tables)


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def anchor(heading: str) -> str:
    """Return the name of a heading in links."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def sentence(text: str) -> str:
    """Return a text that ends with a full stop, and begins with a capital if with a plain word."""
    first = text.split()[0]
    plain = first.replace("-", "").isalpha() and first.islower()
    return f"{text[0].upper() if plain else text[0]}{text[1:].rstrip('.')}."


def uncapitalized(text: str) -> str:
    """Return a text that begins with a small letter, but for names such as SimA and CIFAR-10."""
    first = text.split()[0]
    return f"{text[0].lower()}{text[1:]}" if first[1:] == first[1:].lower() else text


def counts_of(entries: Sequence[Entry]) -> list[str]:
    """Return how many entries there are, measured ones, tables behind them, and of each kind."""
    states = Counter(entry.state for entry in entries)
    spreads = Counter(entry.spread for entry in entries)
    counts = [len(entries), states[MEASURED], len(tables_of(entries))]
    counts += [spreads[kind] for kind in SPREADS]
    counts += [states[COMMAND], states[GAP]]
    return list(map(str, counts))


def pages() -> dict[Path, str]:
    """Return the text of each page by its file."""
    papers, entries, measurements = read_papers(), read_entries(), read_measurements()
    texts = {}
    rows = []
    contradictions = []
    for name, paper in papers.items():
        paper_entries = [entry for entry in entries.values() if entry.paper == name]
        texts[LAB / "papers" / f"{name}.md"] = Page(paper, paper_entries, measurements).text()
        link = f"[{paper['short']}](papers/{name}.md)"
        rows.append([link, f"*{paper['title']}*", *counts_of(paper_entries)])
        contradictions += [f"- {link}, {text}" for text in paper["contradictions"]]
    total = counts_of(list(entries.values()))
    rows.append(["all", "tables of several papers are counted once", *total])
    repeated = read_paper(SHARED)["again"]
    columns = ("id", "number", "page", "again")
    lines = [[f"`{run['id']}`", *(run[name] for name in columns[1:])] for run in repeated["runs"]]
    again = markdown(["`--run`", "number", "on the page", "again"], lines)
    heads = ["", "paper", "entries", MEASURED, "tables", *SPREADS, COMMAND, GAP]
    texts[LAB / "papers.md"] = INDEX.format(
        table=markdown(heads, rows),
        measured=total[1],
        tables=total[2],
        again=f"{repeated['intro'].strip()}\n\n{again}",
        contradictions="\n".join(contradictions),
    )
    return texts


def main() -> None:
    """Write the pages."""
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
