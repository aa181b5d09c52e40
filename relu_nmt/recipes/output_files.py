"""Checks before a recipe writes the file that a flag names, and the writing itself."""

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relu_nmt.errors import CheckpointError, ConfigError, DataError
from relu_nmt.io.safe_write import remove_abandoned, write_text

TRANSLATION = {"name": "translation"}
"""The task of translation models, see :data:`relu_nmt.translation.task.TASK_NAME`."""


def check_writable(flag: str, path: str | None) -> None:
    """Check that a file can be written before hours are spent, and make its folder.

    Temporary files that killed processes left are removed.

    Raises:
        DataError: it cannot be written.
    """
    if path is None:
        return
    file, target = Path(path), target_of(path)
    # A file is renamed into its place, which would replace a device. An open file such as
    # /dev/stdout may lead to a plain file, so that its folder decides.
    is_device = file.is_symlink() and file.absolute().parent.resolve() == Path("/dev")
    if is_device or (file.exists() and not file.is_file() and not file.is_dir()):
        raise DataError(f"{flag} {path}: is no plain file; give the name of a file")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(target.parent, rf"{re.escape(target.name)}\.\d+-[0-9a-f]{{8}}\.tmp")
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise DataError(f"{flag} {path}: cannot write it: {error.strerror}") from error
    if file.is_dir():
        raise DataError(f"{flag} {path}: is a folder; give the name of a file")


def target_of(path: str | os.PathLike[str]) -> Path:
    """Return the file to write: of a link, the file to which it leads."""
    return Path(os.path.realpath(path) if os.path.islink(path) else path)


def write_file(flag: str, path: str, text: str) -> None:
    """Write a file atomically.

    Raises:
        DataError: it cannot be written.
    """
    try:
        write_text(target_of(path), text)
    except OSError as error:
        raise DataError(f"{flag} {path}: cannot write it: {error.strerror}") from error


def output_path(text: str, task: Mapping[str, Any] | None = TRANSLATION) -> Path:
    """Return the checkpoint path that ``--output`` gives; see :func:`check_replaceable`.

    Raises:
        ConfigError: the name does not end like a checkpoint's.
        DataError: the file cannot be written, or would replace something else.
    """
    from relu_nmt.training.checkpoint import SUFFIX

    if not text.endswith(SUFFIX):
        raise ConfigError(f"--output {text}: give the name of a checkpoint, ending in {SUFFIX}")
    check_replaceable(text, task)
    return Path(text)


def check_replaceable(path: str, task: Mapping[str, Any] | None) -> None:
    """Check that ``--output`` can be written and replaces at most weights of the same task.

    Raises:
        DataError: the file cannot be written, or would replace something else.
    """
    # Recipes that write only text start faster without PyTorch.
    from relu_nmt.training.checkpoint import read_metadata

    check_writable("--output", path)
    if not Path(path).exists():
        return
    try:
        earlier = read_metadata(path)
    except CheckpointError as error:
        raise DataError(
            f"--output {path}: is there already; give another name ({error})"
        ) from error
    # Weights of the same task may be replaced, but no state of a training.
    kind, other = (task or {}).get("name"), (earlier.get("task") or {}).get("name")
    if "training_state" in earlier:
        reason = "holds the state that a training goes on from"
    elif kind != other:
        reason = f"is there already, a checkpoint of {other}, not of {kind}"
    else:
        return
    raise DataError(f"--output {path}: {reason}, and would be lost; give another name")
