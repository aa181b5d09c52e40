"""Every script that can be run answers --help, and does nothing else."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.commands import SCRIPT_FOLDERS

ROOT = Path(__file__).parents[2]
IS_MAIN = re.compile(r'^if __name__ == "__main__":', re.MULTILINE)
CACHES = (".git", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache")


def files():
    """Return the files of the folders, by their names in the repository."""
    by_name = {}
    for folder in SCRIPT_FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                by_name[path.relative_to(ROOT).as_posix()] = path
    return dict(sorted(by_name.items()))


def is_script(path):
    """Say whether a file can be run. A .bash file is only sourced."""
    return path.suffix == ".sh" or (
        path.suffix == ".py" and IS_MAIN.search(path.read_text("utf-8")) is not None
    )


SCRIPTS = [name for name, path in files().items() if is_script(path)]


def snapshot():
    """Return everything that a script could have changed in the repository."""
    states = {}
    for name, path in files().items():
        states[name] = (path.stat().st_size, path.stat().st_mtime_ns)
    return set(os.listdir(ROOT)) - set(CACHES), states


def test_scripts_of_every_kind_are_found():
    assert {"examples/document_sweep/small.sh", "examples/context_use/table.py"} < {*SCRIPTS}
    assert {"data_prep/own_text.py", "examples/demo/run.py", "benchmarks/gpu.sh"} < {*SCRIPTS}
    assert {name for name, path in files().items() if os.access(path, os.X_OK)} <= {*SCRIPTS}


def test_scripts_of_the_shell_can_be_run_as_they_are():
    """Readers type their paths. One that others source ends in .bash."""
    for name in SCRIPTS:
        if name.endswith(".sh"):
            assert files()[name].stat().st_mode & 0o111 == 0o111, name


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_all_that_a_script_does(script, tmp_path, quick_python):
    names = ("HOME", "TMPDIR", "XDG_CACHE_HOME")
    environment = {**os.environ, **dict.fromkeys(names, str(tmp_path))}
    environment |= {"PATH": f"/nowhere{os.pathsep}{os.defpath}", "PYTHON": "nowhere"}
    before = snapshot()
    done = subprocess.run(
        [quick_python if script.endswith(".py") else "bash", str(ROOT / script), "--help"],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: " in done.stdout and len(done.stdout.split("\n")) > 2
    assert not list(tmp_path.iterdir())
    assert snapshot() == before
