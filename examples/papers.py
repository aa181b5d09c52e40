r"""Run the experiment behind a table or figure of the papers.

    python examples/papers.py --list
    python examples/papers.py --dry-run reluformer-table2
    python examples/papers.py --run reluformer-table2 --setting small

--dry-run prints the commands and runs none. After an interruption the same --run goes on: finished
commands do not run again, and most commands continue a stopped training. The result is a JSON file,
named at the end. The registry is examples/papers/*.yaml. docs/lab/papers.md shows it.
"""

import argparse
import csv
import glob
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relu_nmt.applications.environment import describe_environment
from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.config.registry import close_names
from relu_nmt.errors import ConfigError, DataError, reporting
from relu_nmt.io.safe_write import json_text, write_text

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from examples.paper_registry import read_measurements, read_papers  # noqa: E402

SETTINGS = ("small", "paper")
MEASURED = "measured"
COMMAND = "command only"
GAP = "gap"
SPREADS = ("seeds", "some seeds", "interval", "exact", "one seed")
SEEDS_OF_AN_INTERVAL = 3
VARIABLE = re.compile(r"\$\{([A-Z][A-Z0-9_]*):-([^}]*)\}")
SHOWS_ITS_COMMANDS = re.compile(r"(examples/(?:vision_study|pinnsformer)/run\.py)")
LONGEST_RESULT = 1_000_000
FAILED = 1


@dataclass(frozen=True)
class Form:
    """The commands of one setting, as the registry has them.

    Args:
        commands: lines for bash, run in the root of the repository.
        on: the machine of the time and memory.
        minutes: time of all commands. ``~`` before an estimate.
        memory_gb: memory of the processes at once. ``~`` before an estimate.
        results: files that the commands write. May have ``*``.
    """

    commands: tuple[str, ...]
    on: str
    minutes: str
    memory_gb: str
    results: tuple[str, ...]

    @property
    def cost(self) -> str:
        """The time, the memory and the machine in words."""
        time_needed = in_words(self.minutes, duration)
        return f"{time_needed}, {in_words(self.memory_gb, '{:g} GB'.format)}, {self.on}"


@dataclass(frozen=True)
class Entry:
    """A table, a figure or a claim of a paper.

    Args:
        paper: name of the paper's file in the registry.
        values: the entry's part of the file, all scalars as text.
        forms: commands by setting. None for some gaps.
    """

    paper: str
    values: Mapping[str, Any]
    forms: Mapping[str, Form]

    @property
    def id(self) -> str:
        """The name for the command line."""
        return self.values["id"]

    @property
    def title(self) -> str:
        """The place of the entry in the paper, and the quantity that it shows."""
        return f"{self.values['place']}: {self.values['shows']}"

    @property
    def state(self) -> str:
        """``measured``, ``command only`` or ``gap``."""
        if "gap" in self.values:
            return GAP
        return MEASURED if {"measured", "measured_elsewhere"} & self.values.keys() else COMMAND

    @property
    def spread(self) -> str:
        """The spread in the first measured table, one of SPREADS, or "" without a number.

        ``seeds`` has three seeds or more in every row that the entry shows. ``some seeds`` has
        fewer, or several in some rows only. ``interval`` is one training with an interval over
        test data, or a time with an interval over repeated runs. ``exact`` is a count, and ``one
        seed`` has no interval.
        """
        names = self.values.get("measured")
        if "spread" in self.values or not names:
            return self.values.get("spread", "")
        table = read_measurements()[names[0]]
        by_seed = table.get("by_seed", {})
        seeds = []
        for row in self.values.get("rows", table["rows"]):
            seeds += [len(cell) for cell in by_seed.get(row, [[]])]
        if min(seeds) >= SEEDS_OF_AN_INTERVAL:
            return "seeds"
        return "some seeds" if max(seeds) > 1 else table["spread"]


def duration(minutes: float) -> str:
    """Return minutes in words, as hours or days from 120 minutes on."""
    for unit, length in (("days", 2880.0), ("hours", 120.0)):
        if minutes >= length:
            return f"{minutes / (length / 2):,.0f} {unit}"
    return f"{minutes:g} minute" if minutes == 1 else f"{minutes:g} minutes"


def in_words(text: str, words: Any) -> str:
    """Return a number of the registry in words, with "about" for an estimate."""
    number = float(text.removeprefix("~"))
    return f"about {words(number)}" if text.startswith("~") else words(number)


def read_entries() -> dict[str, Entry]:
    """Return all entries by id, in the order of the files."""
    entries = {}
    for paper, content in read_papers().items():
        for values in content["entries"]:
            forms = {}
            for setting, form in content["runs"].get(values.get("run"), {}).items():
                forms[setting] = Form(
                    commands=tuple(form["commands"]),
                    on=form["on"],
                    minutes=form["minutes"],
                    memory_gb=form["memory_gb"],
                    results=tuple(form["results"]),
                )
            entries[values["id"]] = Entry(paper, values, forms)
    return entries


def tables_of(entries: Iterable[Entry]) -> set[str]:
    """Return the names of the measured tables behind entries. Several entries may show one."""
    tables = set()
    for entry in entries:
        tables.update(entry.values.get("measured", ()))
    return tables


def expanded(text: str) -> str:
    """Return a line with the values of its settings, ``${NAME:-default}``, as bash has them."""
    return VARIABLE.sub(lambda match: os.environ.get(match[1]) or match[2], text)


def list_entries(entries: Mapping[str, Entry]) -> None:
    """Print a line for each entry, and how many there are of each state."""
    for entry in entries.values():
        small = entry.forms.get("small")
        cost = in_words(small.minutes, duration) if small else "-"
        print(f"{entry.id:32} {entry.state:12} {entry.spread:10} {cost:18} {entry.title}")
    states = Counter(entry.state for entry in entries.values())
    spreads = Counter(entry.spread for entry in entries.values())
    kinds = ", ".join(f"{spreads[kind]} {kind}" for kind in SPREADS)
    tables = len(tables_of(entries.values()))
    counts = [f"{states[MEASURED]} {MEASURED}, by {tables} tables of numbers ({kinds})"]
    counts += [f"{states[state]} {state}" for state in (COMMAND, GAP)]
    print(f"{len(entries)} tables, figures and claims: {', '.join(counts)}")


def dry_run(entry: Entry, setting: str, out: Path) -> None:
    """Print the commands of an entry, and behind each script the commands that it would run."""
    form = form_of(entry, setting)
    print(f"# {entry.id}, {setting}: {entry.title}\n# {form.cost}")
    variables = set()
    for command in form.commands:
        variables.update(VARIABLE.findall(command))
    for name, default in sorted(variables):
        print(f"# {name}={os.environ.get(name) or default} may be set")
    for command in map(expanded, form.commands):
        print(command, flush=True)
        # Scripts print their own commands if DRY_RUN is set, studies and equations by a flag.
        dry_command = SHOWS_ITS_COMMANDS.sub(r"\1 --dry-run", command)
        if ".sh" in command or dry_command != command:
            dry_process = subprocess.run(
                ["bash", "-c", dry_command],
                cwd=ROOT,
                env={**_paths(), "DRY_RUN": "1"},
                stdout=subprocess.PIPE,
                encoding="utf-8",
                check=False,
            )
            for line in dry_process.stdout.splitlines():
                print(f"#     {line}")
    print(
        f"# result: {result_path(entry, setting, out)}, of {' '.join(map(expanded, form.results))}"
    )


def form_of(entry: Entry, setting: str) -> Form:
    """Return the commands of a setting.

    Raises:
        ConfigError: the entry is a gap without commands.
    """
    if setting not in entry.forms:
        raise ConfigError(f"{entry.id}: a gap without a command: {entry.values.get('gap')}")
    return entry.forms[setting]


def result_path(entry: Entry, setting: str, out: Path) -> Path:
    """Return the file of a result."""
    return out / f"{entry.id}-{setting}.json"


def run_entry(entry: Entry, setting: str, out: Path) -> int:
    """Run the commands that are not done yet and write the result. Return the exit code.

    Raises:
        DataError: the file of an earlier run is damaged, or the result cannot be written.
    """
    form = form_of(entry, setting)
    path = result_path(entry, setting, out)
    commands = [expanded(command) for command in form.commands]
    done = _done_before(path, commands)
    print(f"{entry.id}, {setting}: {entry.title}\n{form.cost}", flush=True)
    for number, command in enumerate(commands, 1):
        progress = f"[{number}/{len(commands)}]"
        if command in done:
            print(f"{progress} done before: {command}", flush=True)
            continue
        print(f"{progress} {command}", flush=True)
        started = time.monotonic()
        code = subprocess.run(["bash", "-eo", "pipefail", "-c", command], cwd=ROOT, env=_paths())
        seconds = round(time.monotonic() - started, 1)
        if code.returncode:
            print(f"{progress} exit code {code.returncode}; the same command goes on")
            return FAILED
        done[command] = seconds
        _write(path, entry, setting, done, {})
    results = {}
    missing = []
    for pattern in form.results:
        files = _files(pattern)
        if not files:
            missing.append(pattern)
        for file in files:
            results[file] = _content(file)
    _write(path, entry, setting, done, results)
    for pattern in missing:
        print(f"{expanded(pattern)}: not written")
    print(f"result: {path}", flush=True)
    return FAILED if missing else 0


def _paths() -> dict[str, str]:
    """Return the environment of the commands: this Python and its commands come first."""
    folder = os.path.dirname(sys.executable)
    python_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    paths = os.pathsep.join((folder, os.environ.get("PATH", "")))
    return {**os.environ, "PATH": paths, "PYTHONPATH": python_path}


def _done_before(path: Path, commands: Sequence[str]) -> dict[str, float]:
    """Return the seconds of the commands that an earlier run has finished."""
    if not path.exists():
        return {}
    try:
        before = json.loads(path.read_text("utf-8"))["commands"]
        return {command: before[command] for command in commands if command in before}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: damaged; remove it") from error


def _files(pattern: str) -> list[str]:
    """Return the files of a pattern, relative to the repository."""
    return sorted(glob.glob(expanded(pattern), root_dir=ROOT))


def _content(file: str) -> Any:
    """Return the rows of a table, the value of a JSON file, or a short text. None for a page."""
    path = ROOT / file
    if path.suffix == ".csv":
        with open(path, encoding="utf-8", newline="") as rows:
            return list(csv.DictReader(rows))
    if path.suffix == ".json":
        return json.loads(path.read_text("utf-8"))
    short = path.suffix in (".md", ".txt") and path.stat().st_size < LONGEST_RESULT
    return path.read_text("utf-8") if short else None


def _write(
    path: Path, entry: Entry, setting: str, done: Mapping[str, float], results: Mapping[str, Any]
) -> None:
    """Write the commands with their seconds, the machine, and the results by file."""
    values = {
        "id": entry.id,
        "title": entry.title,
        "setting": setting,
        "date": time.strftime("%Y-%m-%d"),
        "environment": describe_environment(),
        "commands": dict(done),
        "results": dict(results),
    }
    with reporting(f"{path}: cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json_text(values))


def chosen(names: Sequence[str]) -> dict[str, Entry]:
    """Return the named entries by id, or all if no name is given. A paper stands for its entries.

    Raises:
        ConfigError: a name is unknown.
    """
    entries = read_entries()
    papers = {entry.paper for entry in entries.values()}
    for name in names:
        if name not in entries and name not in papers:
            hint = close_names(name, [*entries, *papers]) or "--list shows all"
            raise ConfigError(f"{name}: no table or figure of the papers; {hint}")
    if not names:
        return entries
    return {i: e for i, e in entries.items() if i in names or e.paper in names}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Return its exit code."""
    parser = make_parser("papers", __doc__)
    actions = parser.add_mutually_exclusive_group(required=True)
    names = "name of an entry, or of a paper for all of its entries"
    actions.add_argument("--list", nargs="*", metavar="ID", help="show all entries, or some")
    actions.add_argument("--dry-run", nargs="+", metavar="ID", help=f"print commands; {names}")
    actions.add_argument("--run", nargs="+", metavar="ID", help=f"run commands; {names}")
    parser.add_argument(
        "--setting",
        default="small",
        choices=SETTINGS,
        help="small, for CPUs; paper, the data and settings of the paper (default: small)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("paper-results"),
        metavar="DIR",
        help="folder of the results (default: paper-results)",
    )

    def body(arguments: argparse.Namespace) -> int:
        if arguments.list is not None:
            list_entries(chosen(arguments.list))
            return 0
        entries = chosen(arguments.dry_run or arguments.run)
        if arguments.dry_run:
            for entry in entries.values():
                dry_run(entry, arguments.setting, arguments.out)
            return 0
        return max(run_entry(e, arguments.setting, arguments.out) for e in entries.values())

    return run_command(parser, body, argv)


if __name__ == "__main__":
    sys.exit(main())
