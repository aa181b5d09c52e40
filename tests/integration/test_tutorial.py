"""The tutorial as its readers type it: every block in order, in one shell, with few updates."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.commands import with_commands
from tests.markdown import code_blocks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guide/tutorial.md").read_text("utf-8")
SHORT = {
    "--documents 800": "--documents 200",
    "--subword-size 1000": "--subword-size 500",
    "--max-tokens 2048": "--max-tokens 512",
    "--warmup-updates 200": "--warmup-updates 30",
    "--max-update 1000": "--max-update 90",
}
pytestmark = pytest.mark.slow


def masked(line):
    """Replace what differs from training to training: numbers, and the sign of a difference."""
    return re.sub(r"((?<= )[+-])?\d+(\.\d+)?", "N", line.strip())


def is_printed(text, lines):
    """Return whether a line of the page is there, with other numbers. ``...`` is any text."""
    pattern = re.compile(re.escape(masked(text)).replace(r"\.\.\.", ".*"))
    return any(pattern.fullmatch(masked(line)) for line in lines)


def test_the_tutorial_runs_and_prints_what_it_says(tmp_path, quick_python):
    # The test's own environment is what the first block makes.
    install, *blocks = code_blocks(PAGE, "sh", "python", "output")
    assert "pip install -c constraints.txt -e ." in install.text
    script = "set -e\n"
    expected = {}
    for number, (language, file, text) in enumerate(blocks):
        if language == "output":
            expected[number - 1] = text.splitlines()
        elif language == "python":
            command = f"cat > {file}" if file else "python -"
            script += f"echo '@{number}'\n{command} <<'END'\n{text}END\n"
        else:
            script += f"echo '@{number}'\n{text}"
    for long, short in SHORT.items():
        assert long in script
        script = script.replace(long, short)
    (tmp_path / "data_prep").symlink_to(ROOT / "data_prep")
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=with_commands(tmp_path / "bin", quick_python),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    _, *parts = re.split(r"^@(\d+)\n", done.stdout, flags=re.MULTILINE)
    printed = dict(zip(map(int, parts[::2]), parts[1::2], strict=True))
    for number, lines in expected.items():
        for line in lines:
            # Translations, which have no number, are not yet what they will be.
            if re.search(r"\d", line):
                assert is_printed(line, printed[number].splitlines()), (line, printed[number])
    for name in ("map.svg", "relu.json", "report.html"):
        assert (tmp_path / "tutorial" / name).stat().st_size > 1000
