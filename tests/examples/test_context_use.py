"""examples/context_use: accepted commands, and a table with the numbers of the sweeps."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import grammar_corpus

from relu_nmt.cli import sweep

EXAMPLE = Path(__file__).parents[2] / "examples" / "context_use"
STUB = "#!{python}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n"


def test_the_flags_of_the_script_are_accepted(tmp_path, capsys):
    stub = tmp_path / "python stub"
    stub.write_text(STUB.format(python=sys.executable))
    stub.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(stub), "OUT": str(tmp_path / "out")}
    done = subprocess.run(
        ["bash", str(EXAMPLE / "run.sh")], env=environment, capture_output=True, check=True
    )
    calls = list(map(json.loads, done.stdout.splitlines()))
    corpus, *steps, table = calls
    arguments = grammar_corpus.make_parser().parse_args(corpus[1:])
    contrasts = arguments.out / "test.contrasts.jsonl"
    contrasts.parent.mkdir(parents=True)
    contrasts.touch()
    sweeps = [words[2:] for words in steps if words[1] == "relu_nmt.cli.sweep"]
    assert len(sweeps) == 2
    for words, direction in zip(sweeps, ("en-de", "de-en"), strict=True):
        assert words[words.index("--contrastive") + 1] == str(contrasts)
        assert sweep.main(words) == 2
        # The flags are checked before the missing data folder.
        assert f"{direction}/data-bin: cannot read the data folder" in capsys.readouterr().err
    assert table[0] == "examples/context_use/table.py"


def test_the_table_has_the_numbers_of_the_sweeps(tmp_path):
    folder = tmp_path / "de-en" / "sweep"
    folder.mkdir(parents=True)
    shared = {"row": "mean", "attention": "softmax", "seeds": "1,2", "updates": "800.0"}
    for category, context, alone in (("all", "75.0", "50.0"), ("person pronoun", "80.0", "40.0")):
        shared |= {f"accuracy_context[{category}]": context, f"accuracy_alone[{category}]": alone}
        shared |= {f"chance[{category}]": "50.0", f"contrasts[{category}]": "20.0"}
    first = {**shared, "length": "1", "d_bleu": "70.5"}
    rows = [first, {**shared, "length": "512", "d_bleu": "80.25"}]
    rows += [{**first, "row": "cell"}, {**first, "attention": "failed", "d_bleu": ""}]
    with open(folder / "results.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    command = [sys.executable, str(EXAMPLE / "table.py"), str(folder / "results.csv")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    [record] = json.loads((tmp_path / "context-use.json").read_text("utf-8"))
    assert (record["direction"], record["model"]) == ("de-en", "softmax")
    assert record["d_bleu"] == {"1": 70.5, "512": 80.25}
    assert record["contrasts"]["person pronoun"]["accuracy_alone"] == 40.0
    title, line, _ = done.stdout.splitlines()
    assert len(title) == len(line)
    expected = "de-en softmax 75.0 (50.0) - 80.0 (40.0) - 70.50 80.25"
    assert line.split() == expected.split()


def test_a_file_of_another_kind_is_an_error(tmp_path):
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "other.bin").write_bytes(b"\xff\xfe\x00")
    for name in ("other.csv", "other.bin", "nothing.csv"):
        done = subprocess.run(
            [sys.executable, str(EXAMPLE / "table.py"), name],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(EXAMPLE.parents[1])},
            capture_output=True,
            encoding="utf-8",
        )
        assert done.returncode == 2
        [line] = done.stderr.splitlines()
        assert line.startswith(f"table: error: {name}: ")
