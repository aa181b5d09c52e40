"""examples/papers.py: the registry, its commands and pages, running and going on."""

import contextlib
import glob
import importlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from docs import write_papers
from examples import paper_registry, papers
from relu_nmt.errors import ConfigError, DataError
from tests.commands import run_forked
from tests.examples.test_flags import STUB
from tests.outputs import column

ROOT = Path(__file__).parents[2]
ENTRIES = papers.read_entries()
SCRIPTS = sorted(glob.glob("examples/*/*.sh", root_dir=ROOT))


def call_main(folder, module, lists):
    """Call the main of a module with several lists of words, and print exit codes and errors."""
    sys.path.insert(0, str(folder))
    main = importlib.import_module(module).main
    for words in lists:
        errors = io.StringIO()
        output = io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(output):
            try:
                code = main(words)
            except SystemExit as end:
                code = end.code
        print(json.dumps([words, code or 0, errors.getvalue()]))


def test_every_table_and_figure_has_an_entry():
    titles = {"reluformer": "", "reluvit": "", "polynomials": ""}
    for entry in ENTRIES.values():
        if entry.paper in titles:
            titles[entry.paper] += f"{entry.title}\n"
    for number in range(1, 7):
        assert f"Table {number}" in titles["reluformer"]
    for paper, figures in (("reluformer", 5), ("reluvit", 4), ("polynomials", 7)):
        for number in range(1, figures + 1):
            assert f"Figure {number}" in titles[paper], (paper, number)
    assert len(ENTRIES) >= 82


def test_names_are_unique_and_begin_with_the_paper():
    registered = column(paper_registry.read_papers().values(), "entries")
    assert sum(map(len, registered)) == len(ENTRIES)
    locations = [(entry.paper, entry.values["place"]) for entry in ENTRIES.values()]
    assert len(set(locations)) == len(locations)
    for entry in ENTRIES.values():
        assert entry.id.startswith(f"{entry.paper}-")


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.id)
def test_an_entry_has_commands_in_both_forms_and_a_number_or_a_reason(entry):
    assert entry.forms.keys() == set(papers.SETTINGS) or "gap" in entry.values
    for form in entry.forms.values():
        assert form.commands and form.results
        for number in (form.minutes, form.memory_gb):
            assert re.fullmatch(r"~?\d+(\.\d+)?", number)
    keys = {"measured", "measured_elsewhere", "command_only", "gap"}
    assert len(keys & entry.values.keys()) == 1
    names = {"published", "published_file", "published_note"}
    assert len(names & entry.values.keys()) == 1
    assert ("columns" in entry.values) == ("published" in entry.values)
    if table := write_papers.published_of(entry):
        assert set(map(len, table["rows"].values())) <= {len(table["columns"])}


def test_measurements_are_whole_and_shown():
    measurements = paper_registry.read_measurements()
    used = set()
    for entry in ENTRIES.values():
        for name in entry.values.get("measured", ()):
            used.add(name)
            rows = set(entry.values.get("rows", ()))
            assert rows & measurements[name]["rows"].keys() or not rows, entry.id
        rows = set(entry.values.get("rows", ()))
        for name in entry.values.get("measured", ())[:1]:
            assert rows <= measurements[name]["rows"].keys(), entry.id
    assert used == measurements.keys()
    for name, table in measurements.items():
        assert set(map(len, table["rows"].values())) <= {len(table["columns"])}, name
        assert {"seeds", "interval", "date", "machine", "revision"} <= table.keys(), name
        assert table["spread"] in papers.SPREADS, name
    for entry in ENTRIES.values():
        assert (entry.spread in papers.SPREADS) == (entry.state == papers.MEASURED), entry.id


def test_numbers_by_seed_become_means_and_differences_of_the_same_seed():
    by_seed = {"softmax": [["30", "31", "32"], ["1"]], "SimA": [["31.5", "32.5"], ["2", "3"]]}
    table = {"columns": ["top-1", "loss", "less softmax"], "rows": {"older": ["29", "", ""]}}
    table |= {"by_seed": by_seed, "baselines": {"SimA": "softmax"}}
    table = paper_registry.with_means(table)
    assert table["rows"] == {
        "softmax": ["31.0 ± 2.5", "1.0", ""],
        # The half width of two values is 12.71 of their standard error.
        "SimA": ["32.0 ± 6.4", "2.5 ± 6.4", "+1.5 ± 0.0"],
        "older": ["29", "", ""],
    }


@pytest.mark.parametrize(
    ("rows", "spread"),
    [(["three"], "seeds"), (["three", "one"], "some seeds"), (["one"], "interval")],
)
def test_an_entry_has_seeds_only_with_three_in_every_row(rows, spread, monkeypatch):
    by_seed = {"three": [["1", "2", "3"]], "one": [["1"]]}
    table = {"rows": by_seed, "by_seed": by_seed, "spread": "interval"}
    monkeypatch.setattr(papers, "read_measurements", lambda: {"made": table})
    assert papers.Entry("made", {"measured": ["made"], "rows": rows}, {}).spread == spread


def test_a_table_that_several_entries_show_is_counted_once():
    tables = (["first"], ["first", "second"], [])
    entries = [papers.Entry("made", {"measured": names}, {}) for names in tables]
    assert papers.tables_of(entries) == {"first", "second"}


def test_the_pages_are_those_of_the_registry():
    again = "run python docs/write_papers.py"
    pages = write_papers.pages()
    for path, text in pages.items():
        assert path.read_text("utf-8") == text, again
    assert set((ROOT / "docs/lab/papers").iterdir()) == pages.keys() - {ROOT / "docs/lab/papers.md"}
    navigation = (ROOT / "docs/site/mkdocs.yml").read_text("utf-8")
    for path in pages:
        assert f"- {path.relative_to(ROOT / 'docs').as_posix()}\n" in navigation


def recorded(commands, folder):
    """Return the calls of Python and of the commands, without running them."""
    names = ["preprocess", "train", "generate", "average"]
    names += ["vision-train", "vision-evaluate", "vision-probe"]
    for name in ("python", "torchrun", "tail", "tee", *(f"relu-nmt-{name}" for name in names)):
        (folder / name).write_text(STUB)
        (folder / name).chmod(0o755)
    for size in ("small", "paper"):  # of trainings, for loops over their checkpoints
        checkpoints = folder / f"vision-study/sizes-{size}/one/checkpoints"
        checkpoints.mkdir(parents=True)
        (checkpoints / "checkpoint_last.safetensors").touch()
    for part in ("examples", "data_prep", "relu_nmt"):
        (folder / part).symlink_to(ROOT / part)
    settings = {"RECORD": str(folder / "record"), "PYTHON": "python", "TEXT": str(folder)}
    settings["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    for command in commands:
        # The scripts go to the repository's root. The other commands stay in the folder.
        environment = {**os.environ, **settings}
        if ".sh" in command:
            environment["OUT"] = str(folder / "out")
            environment["CORPUS"] = "grammar" if "paper" not in command.split() else str(folder)
        subprocess.run(
            ["bash", "-eo", "pipefail", "-c", command], cwd=folder, env=environment, check=True
        )
    words = (folder / "record").read_text().split("\0")
    for is_end, call in itertools.groupby(words, lambda word: word == "\n"):
        if not is_end and any(call_words := [*call]):
            yield call_words


def program_of(call):
    """Return the folder and module of a call, and its flags. None if it is not ours to check."""
    name, *words = call
    if name == "torchrun":
        first = (i for i, word in enumerate(words) if word == "-m" or word.endswith(".py"))
        words = words[next(first) :]
    if words[:1] == ["-m"]:
        name = words[1].replace("relu_nmt.cli.", "relu-nmt-")
        words = words[2:]
    if name.startswith("relu-nmt-"):
        return ".", f"relu_nmt.cli.{name.removeprefix('relu-nmt-').replace('-', '_')}", words
    if words and words[0].startswith("examples/"):
        script = Path(words[0])
        return script.parent.as_posix(), script.stem, words[1:]
    return None


def test_the_flags_of_every_command_are_accepted(tmp_path, monkeypatch):
    monkeypatch.setenv("SEEDS", "1")  # flags are the same for every seed
    commands = set()
    for entry in ENTRIES.values():
        for form in entry.forms.values():
            commands.update(form.commands)
    calls = {}
    for call in recorded(sorted(map(papers.expanded, commands)), tmp_path):
        if (program := program_of(call)) is None:
            continue
        folder, module, words = program
        if module in ("table", "join_documents"):  # their arguments are files
            continue
        # Print the settings, or end where the data folder is missing.
        first = words.index("--") if "--" in words else len(words)
        if not module.endswith(("sweep", "generate", "analyze")):
            words = [*words[:first], "--dump-config", *words[first:]]
        calls.setdefault((folder, module), []).append(words)
    assert len(calls) >= 12
    for (folder, module), lists in calls.items():
        work = partial(call_main, ROOT / folder, module, lists)
        done = run_forked(work, cwd=tmp_path)
        results = list(map(json.loads, done.stdout.splitlines()))
        assert len(results) == len(lists), (module, done.stderr)
        for words, code, errors in results:
            missing = re.search(r"(cannot read|no such |not found)", errors)
            assert code == 0 or missing, (module, words, errors)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_dry_run_of_a_script_writes_nothing(script, tmp_path):
    names = ("OUT", "DATA", "CORPUS", "RUN", "IMAGES")
    environment = {**os.environ, **{name: str(tmp_path / name) for name in names}}
    if "sweep" in script or "paper_study" in script:
        environment["CORPUS"] = "grammar"
    # Only the shell's own programs are there, so that anything else would fail.
    environment |= {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", str(ROOT / script), "--dry-run"],
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert "train" in done.stdout or "sweep" in done.stdout
    assert not done.stderr
    assert not list(tmp_path.iterdir())


def test_an_unknown_flag_of_a_script_is_an_error():
    words = ["bash", str(ROOT / "examples/document_sweep/small.sh"), "--dryrun"]
    done = subprocess.run(words, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 2
    assert done.stderr == "small.sh: error: --dryrun: unknown; there are --help and --dry-run\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--run", "sima-one-haed"), "did you mean sima-one-head"),
        (("--dry-run", "simaa"), "did you mean sima"),
        (("--list", "nothing-like-it"), "--list shows all"),
        (("--run", "sima-one-head", "--setting", "papr"), "choose from 'small', 'paper'"),
        ((), "--list --dry-run --run is required"),
    ],
)
def test_errors_are_one_line(words, message, capsys):
    assert papers.main(words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


def test_the_list_has_every_entry_with_its_state(capsys):
    assert papers.main(["--list"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(ENTRIES)
    assert last.startswith(f"{len(ENTRIES)} tables, figures and claims: ")


def test_a_dry_run_prints_the_commands_of_a_script_too(capsys, monkeypatch):
    monkeypatch.setenv("GPUS", "0,1")
    assert papers.main(["--dry-run", "reluformer-table2", "--setting", "paper"]) == 0
    output = capsys.readouterr().out
    assert "\nGPUS=0,1 examples/paper_study/table2.sh paper\n" in output
    assert "#     python -m relu_nmt.cli.sweep" in output
    assert "paper-results/reluformer-table2-paper.json" in output


def entry_of(*commands, results=()):
    form = papers.Form(commands, "one core", "~1", "~1", results)
    values = {"id": "made-table1", "place": "Table 1", "shows": "something"}
    return papers.Entry("made", values, {"small": form})


def test_a_run_goes_on_where_it_stopped_and_writes_its_result(tmp_path, capsys):
    count = tmp_path / "count"
    gate = tmp_path / "gate"
    table = tmp_path / "one.csv"
    entry = entry_of(
        f"echo x >> {count}",
        f"[ -e {gate} ] && printf 'a,b\\n1,2\\n' > {table}",
        results=(str(table), str(tmp_path / "*.json")),
    )
    path = tmp_path / "out" / "made-table1-small.json"
    assert papers.run_entry(entry, "small", tmp_path / "out") == 1
    assert "[2/2] exit code 1" in capsys.readouterr().out
    gate.touch()
    (tmp_path / "two.json").write_text('{"c": 3}')
    assert papers.run_entry(entry, "small", tmp_path / "out") == 0
    output = capsys.readouterr().out
    assert "[1/2] done before: echo x" in output and output.endswith(f"result: {path}\n")
    assert count.read_text() == "x\n"
    record = json.loads(path.read_text("utf-8"))
    assert record["results"] == {
        str(table): [{"a": "1", "b": "2"}],
        str(tmp_path / "two.json"): {"c": 3},
    }
    assert len(record["commands"]) == 2


def test_a_run_without_its_results_fails(tmp_path, capsys):
    entry = entry_of("true", results=(str(tmp_path / "nothing.csv"),))
    assert papers.run_entry(entry, "small", tmp_path) == 1
    assert f"{tmp_path / 'nothing.csv'}: not written" in capsys.readouterr().out


def test_a_damaged_result_and_a_gap_are_errors(tmp_path):
    (tmp_path / "made-table1-small.json").write_text("[]")
    with pytest.raises(DataError, match="damaged; remove it"):
        papers.run_entry(entry_of("true"), "small", tmp_path)
    values = {"id": "made-gap", "place": "Table 2", "shows": "something", "gap": "no data"}
    with pytest.raises(ConfigError, match="a gap without a command: no data"):
        papers.dry_run(papers.Entry("made", values, {}), "small", tmp_path)
