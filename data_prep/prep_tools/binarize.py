"""The last step of every corpus script: relu-nmt-preprocess."""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from prep_tools.command import PrepError, say

PROGRAM = "relu-nmt-preprocess"


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags that all corpus scripts have."""
    parser.add_argument("--out", type=Path, required=True, help="folder for the corpus")
    parser.add_argument("--workers", type=int, default=0, help="processes (default: one per core)")
    parser.add_argument(
        "--destdir", type=Path, help="data folder of relu-nmt-preprocess (OUT/data-bin)"
    )
    parser.add_argument(
        "--no-binarize",
        "--no-binarise",
        action="store_true",
        help="stop before relu-nmt-preprocess, only show its command",
    )


def _program() -> str:
    """Return the command of this Python's environment, or else of the search path.

    Raises:
        PrepError: it is not installed.
    """
    beside = Path(sys.executable).with_name(PROGRAM)
    program = str(beside) if os.access(beside, os.X_OK) else shutil.which(PROGRAM)
    if program is None:
        raise PrepError(
            f"{PROGRAM} is not installed: 'pip install -e .' in the repository, or --no-binarize"
        )
    return program


def binarize(
    arguments: argparse.Namespace,
    languages: tuple[str, str],
    steps: Sequence[object],
    tests: Sequence[Path] = (),
) -> None:
    """Run relu-nmt-preprocess with a joint dictionary, or only show the command.

    Args:
        arguments: the arguments of :func:`add_output_options`.
        languages: source and target language.
        steps: flags of the text steps. This function adds files and folders.
        tests: prefixes of several test sets.

    Raises:
        PrepError: relu-nmt-preprocess is not installed, or failed.
    """
    out: Path = arguments.out
    command = [PROGRAM, "--source-lang", languages[0], "--target-lang", languages[1]]
    command += ["--joined-dictionary", *map(str, steps)]
    for split in ("train", "valid"):
        command += [f"--{split}pref", str(out / split)]
    command += ["--testpref", ",".join(map(str, tests or [out / "test"]))]
    command += ["--destdir", str(arguments.destdir or out / "data-bin")]
    command += ["--workers", str(arguments.workers)]
    say(f"$ {shlex.join(command)}")
    if arguments.no_binarize:
        return
    code = subprocess.run([_program(), *command[1:]], check=False).returncode
    if code != 0:
        raise PrepError(f"{PROGRAM} failed (exit code {code}); its message is above")


def check_size(
    name: str, size: int, expected: int, strict: bool, unit: str = "sentence pairs"
) -> None:
    """Compare the size of a set with the known size of the recipe's set.

    Raises:
        PrepError: the size differs and ``strict`` is set.
    """
    if size == expected:
        say(f"  {name}: {size:,} {unit}, as expected")
        return
    message = f"{name}: {size:,} {unit}, expected {expected:,}"
    if strict:
        raise PrepError(f"{message}; another archive or another version of the tokenizer?")
    say(f"  NOTE: {message}")
