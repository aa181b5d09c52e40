"""The scripts of examples/document_sweep call what there is, with flags that are taken."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import europarl_documents
import pytest

from relu_nmt.cli import sweep

SCRIPTS = Path(__file__).parents[2] / "examples" / "document_sweep"
STUB = """#!{python}
import json, os, sys
print(json.dumps(sys.argv[1:]))
"""


def calls(script, folder, **settings):
    """Return the arguments with which a script calls Python; nothing is run."""
    stub = folder / "python stub"
    stub.write_text(STUB.format(python=sys.executable))
    stub.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(stub), "OUT": str(folder / "out"), **settings}
    done = subprocess.run(
        ["bash", str(SCRIPTS / script)], env=environment, capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("script", ["small.sh", "paper.sh"])
@pytest.mark.parametrize("mixture", ["1,128", ""])
def test_the_flags_of_the_sweep_are_taken(script, mixture, tmp_path, capsys):
    *_, words = calls(script, tmp_path, MIXTURE=mixture)
    assert words[:2] == ["-m", "relu_nmt.cli.sweep"]
    assert sweep.main(words[2:]) == 2
    # All flags are checked before the data folder, which is not there.
    assert str(tmp_path / "out" / "data-bin") in capsys.readouterr().err


def test_a_python_of_the_search_path_is_not_installed_anew(tmp_path):
    make = tmp_path / "make"
    make.write_text("#!/bin/sh\nexit 1\n")
    make.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    assert len(calls("small.sh", tmp_path, PATH=path, PYTHON="python stub")) == 3


def test_the_commands_of_readme_and_help_are_taken(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    texts = ((SCRIPTS.parents[1] / "README.md").read_text("utf-8"), sweep.DESCRIPTION)
    for text in texts:
        command = next(
            part
            for part in text.replace("\\\n", " ").splitlines()
            if part.strip().startswith("relu-nmt-sweep data-bin")
        )
        assert sweep.main(shlex.split(command)[1:]) == 2
        assert "data-bin: cannot read the data folder" in capsys.readouterr().err


@pytest.mark.parametrize("documents", ["turns", "chapters"])
def test_europarl_is_made_with_flags_that_go_together(documents, tmp_path):
    split = tmp_path / "the split"
    split.mkdir()
    (split / "train.en").touch()
    words, _ = calls("paper.sh", tmp_path, MARUF=str(split), DOCUMENTS=documents)
    assert words[0] == "data_prep/europarl_documents.py"
    arguments = europarl_documents.make_parser().parse_args(words[1:])
    europarl_documents.check_flags(arguments)
    assert arguments.testpref == str(split / "test")
    assert (arguments.trainpref is not None) == (documents == "turns")
