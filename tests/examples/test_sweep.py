"""The sweeps in the examples: their commands exist and their flags are accepted."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import europarl_documents
import pytest

from relu_nmt.applications.sweep.settings import SweepSettings, read_published
from relu_nmt.cli import analyze, sweep
from relu_nmt.cli.command import make_parser
from relu_nmt.config import add_settings, read_settings
from relu_nmt.jobs.sweep.job import plan_steps
from tests.commands import run_steps_in_forks
from tests.integration.test_sweep import make_data
from tests.outputs import column

ROOT = Path(__file__).parents[2]
TABLES = ["table1.sh", "table2.sh", "table4.sh", "table5.sh"]
ALIGNED = "--document-attention aligned --positions sinusoidal+rotary+t5"
SWEEPS = [
    ("document_sweep", "small.sh", {"MIXTURE": "1,128"}),
    ("document_sweep", "small.sh", {"MIXTURE": ""}),
    ("document_sweep", "paper.sh", {"MIXTURE": "1,128"}),
    ("document_sweep", "paper.sh", {"MIXTURE": ""}),
    ("document_sweep", "small.sh", {"TRAIN_FLAGS": ALIGNED}),
    *[("paper_study", f"{table} small", {}) for table in TABLES],
    *[("paper_study", f"{table} paper", {}) for table in TABLES],
    ("paper_study", "table4.sh paper", {"DATASET": "wmt14", "GPUS": "0,1"}),
]
STUB = """#!{python}
import json, os, sys
print(json.dumps(sys.argv[1:]))
"""


def calls(script, folder, example="document_sweep", **settings):
    """Return the arguments with which a script calls Python, without running it."""
    name, *arguments = script.split()
    stub = folder / "python stub"
    stub.write_text(STUB.format(python=sys.executable))
    stub.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(stub), "OUT": str(folder / "out"), **settings}
    done = subprocess.run(
        ["bash", str(ROOT / "examples" / example / name), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return list(map(json.loads, done.stdout.splitlines()))


def evaluated_checkpoints(words):
    """Return the checkpoints that a call of relu-nmt-sweep would evaluate."""
    parser = make_parser("relu-nmt-sweep", "", user_modules=False)
    add_settings(parser, SweepSettings)
    options = parser.parse_args([*words[2 : words.index("--")], "--train-flags", ""])
    steps = plan_steps(read_settings(SweepSettings, options))
    evaluations = [step.commands[0] for step in steps if not step.is_training]
    return {Path(call[call.index("--path") + 1]) for call in evaluations}


@pytest.mark.parametrize(("example", "script", "settings"), SWEEPS)
def test_the_flags_of_the_sweep_are_accepted(
    example, script, settings, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(ROOT)
    settings = {"CORPUS": str(tmp_path / "corpus"), **settings}
    *_, words = calls(script, tmp_path, example, **settings)
    assert words[:2] == ["-m", "relu_nmt.cli.sweep"]
    assert sweep.main(words[2:]) == 2
    # The flags are checked before the missing data folder.
    message = capsys.readouterr().err
    assert str(tmp_path) in message and "data-bin: cannot read the data folder" in message


@pytest.mark.parametrize(
    ("example", "script"), [("document_sweep", "small.sh"), ("paper_study", "table2.sh")]
)
def test_the_users_flags_come_last(example, script, tmp_path):
    *_, words = calls(script, tmp_path, example, CORPUS="grammar", TRAIN_FLAGS=ALIGNED)
    assert words[-4:] == ALIGNED.split()


@pytest.mark.parametrize(
    ("form", "settings", "model"),
    [
        ("small", {}, "softmax-mix1+128+512-seed1/checkpoints/checkpoint_best"),
        ("small", {"MIXTURE": ""}, "softmax-L512-seed1/checkpoints/checkpoint_best"),
        ("paper", {}, "softmax-L1024-seed1/checkpoints/average"),
    ],
)
def test_published_figures_name_models_of_the_document_sweep(
    form, settings, model, tmp_path, capsys
):
    *_, trained, words = calls(f"figures4_5.sh {form}", tmp_path, "paper_study", **settings)
    assert words[1] == "relu_nmt.cli.analyze"
    checkpoints = evaluated_checkpoints(trained)
    first = tmp_path / "out/sweep/models" / f"{model}.safetensors"
    second = Path(str(first).replace("softmax", "reluformer_paper"))
    paths = words[words.index("--path") + 1 : words.index("--names")]
    assert {first, second} == set(map(Path, paths)) <= checkpoints
    assert analyze.main(words[2:]) == 2
    assert f"{first}: no such checkpoint" in capsys.readouterr().err


def test_models_of_a_length_start_from_sentence_models(tmp_path, capsys):
    words = calls("lengths.sh", tmp_path, LENGTHS="128,512", SEEDS="2,3", UPDATES="70")
    _, _, preprocessing, sentences, documents, *analyses = words
    assert preprocessing[1] == "relu_nmt.cli.preprocess"
    for call, updates in ((sentences, "800u"), (documents, "70u")):
        assert call[call.index("--budget") + 1] == updates
        assert sweep.main(call[2:]) == 2
        assert "data-bin: cannot read the data folder" in capsys.readouterr().err
    save_dir = sentences[sentences.index("--save-dir") + 1]
    assert documents[documents.index("--start-from") + 1] == save_dir

    checkpoints = set()
    for call in analyses:
        checkpoints |= set(map(Path, call[call.index("--path") + 1 : call.index("--names")]))
        assert analyze.main(call[2:]) == 2
        assert "no such checkpoint" in capsys.readouterr().err
    assert len(analyses) == 4 and len(checkpoints) == 16
    assert checkpoints == evaluated_checkpoints(documents)


@pytest.mark.parametrize("table", TABLES)
def test_published_figures_name_models_of_the_script(table, tmp_path):
    *_, words = calls(f"{table} paper", tmp_path, "paper_study", CORPUS=str(tmp_path))
    parser = make_parser("relu-nmt-sweep", "", user_modules=False)
    add_settings(parser, SweepSettings)
    settings = read_settings(SweepSettings, parser.parse_args(words[2 : words.index("--")]))
    published = read_published(str(ROOT / settings.published))
    assert set(published["rows"]) < {*settings.systems, "a control of ours"}


def test_an_unknown_form_or_data_set_is_an_error(tmp_path):
    for script, settings in (("table1.sh big", {}), ("table1.sh paper", {"DATASET": "wmt15"})):
        with pytest.raises(subprocess.CalledProcessError) as error:
            calls(script, tmp_path, "paper_study", **settings)
        assert error.value.returncode == 2
        assert error.value.stderr.splitlines()[0].split(":")[0].endswith(("big", "wmt15"))


@pytest.mark.slow
def test_a_table_from_data_to_page(tmp_path, monkeypatch):
    folder = tmp_path / "small"
    folder.mkdir()
    make_data(folder, "\n\n", document_separator="blank").rename(folder / "data-bin")
    settings = {"OUT": str(tmp_path), "BUDGET": "2u", "JOBS": "1", "PRECISION": ""}
    [words] = calls("table2.sh", tmp_path, "paper_study", **settings)
    monkeypatch.chdir(ROOT)
    run_steps_in_forks(monkeypatch)
    assert sweep.main(words[2:]) == 0
    page = (folder / "table2" / "report.html").read_text("utf-8")
    assert "<title>Table 2: ReLU attention and its scale factor</title>" in page
    card = json.loads((folder / "table2" / "card.json").read_text())
    names = ["softmax", "relu", "relu-factor", "relu-layernorm"]
    assert column(card["measured"], "attention") == names
    assert card["published"]["rows"]["softmax"] == [34.22]


def test_a_python_on_the_search_path_is_used(tmp_path):
    make = tmp_path / "make"
    make.write_text("#!/bin/sh\nexit 1\n")
    make.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    assert len(calls("small.sh", tmp_path, PATH=path, PYTHON="python stub")) == 3


def test_the_commands_of_the_guides_and_help_are_accepted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    guide = (ROOT / "docs/guide/documents.md").read_text("utf-8")
    for text in (guide, sweep.__doc__):
        lines = text.replace("\\\n", " ")
        command = re.search(r"^ *(relu-nmt-sweep data-bin.*)", lines, re.MULTILINE)[1]
        assert sweep.main(shlex.split(command)[1:]) == 2
        assert "data-bin: cannot read the data folder" in capsys.readouterr().err


@pytest.mark.parametrize("documents", ["turns", "chapters"])
def test_the_flags_for_europarl_go_together(documents, tmp_path):
    split = tmp_path / "the split"
    split.mkdir()
    (split / "train.en").touch()
    words, _ = calls("paper.sh", tmp_path, MARUF=str(split), DOCUMENTS=documents)
    assert words[0] == "data_prep/europarl_documents.py"
    arguments = europarl_documents.make_parser().parse_args(words[1:])
    europarl_documents.check_flags(arguments)
    assert arguments.testpref == str(split / "test")
    assert (arguments.trainpref is not None) == (documents == "turns")
