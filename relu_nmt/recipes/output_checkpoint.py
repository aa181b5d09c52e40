"""The place of a checkpoint that a command writes, and what may stand there before."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relu_nmt.errors import CheckpointError, ConfigError, DataError
from relu_nmt.recipes.output_files import check_writable
from relu_nmt.training.checkpoint import SUFFIX, read_metadata
from relu_nmt.translation.task import TASK_NAME

TRANSLATION = {"name": TASK_NAME}


def output_path(text: str, task: Mapping[str, Any] | None = TRANSLATION) -> Path:
    """Return the path that ``--output`` gives; see :func:`check_replaceable`.

    Args:
        text: the value of the flag.
        task: the task of the new checkpoint.

    Raises:
        ConfigError: the name does not end like a checkpoint's.
        DataError: the file cannot be written, or would replace something else.
    """
    if not text.endswith(SUFFIX):
        raise ConfigError(f"--output {text}: give the name of a checkpoint, ending in {SUFFIX}")
    check_replaceable(text, task)
    return Path(text)


def check_replaceable(path: str, task: Mapping[str, Any] | None) -> None:
    """Check that ``--output`` can be written, and that nothing of another kind is lost.

    An earlier output of the same kind, weights alone, may be replaced.

    Args:
        path: the checkpoint to write.
        task: the task of the new checkpoint.

    Raises:
        DataError: the file cannot be written, or would replace something else.
    """
    check_writable("--output", path)
    if not Path(path).exists():
        return
    try:
        earlier = read_metadata(path)
    except CheckpointError as error:
        raise DataError(
            f"--output {path}: is there already; give another name ({error})"
        ) from error
    kind, other = (task or {}).get("name"), (earlier.get("task") or {}).get("name")
    if "training_state" in earlier:
        reason = "holds the state that a training goes on from"
    elif kind != other:
        reason = f"is there already, a checkpoint of {other}, not of {kind}"
    else:
        return
    raise DataError(f"--output {path}: {reason}, and would be lost; give another name")
