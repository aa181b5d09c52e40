"""The place of a checkpoint that a command writes, and what may stand there before."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from relu_nmt.errors import CheckpointError, DataError
from relu_nmt.recipes.output_files import check_writable
from relu_nmt.training.checkpoint import read_metadata


def check_replaceable(
    path: str, inputs: Iterable[str | os.PathLike[str]], task: Mapping[str, Any] | None = None
) -> None:
    """See that ``--output`` can be written, and that nothing of another kind is lost.

    An earlier output of the same kind, weights alone, may be replaced.

    Args:
        path: the checkpoint to write.
        inputs: files that are read.
        task: the new checkpoint's; by default that of the first input.

    Raises:
        CheckpointError: the first input is missing or damaged.
        DataError: it cannot be written, is one of the inputs, or replaces something else.
    """
    inputs = list(inputs)
    check_writable("--output", path, inputs)
    if not Path(path).exists():
        return
    own = (read_metadata(inputs[0]).get("task") if task is None else task) or {}
    try:
        earlier = read_metadata(path)
    except CheckpointError as error:
        raise DataError(
            f"--output {path}: is there already; give another name ({error})"
        ) from error
    kind, other = own.get("name"), (earlier.get("task") or {}).get("name")
    if "training_state" in earlier:
        reason = "holds the state that a training goes on from"
    elif kind != other:
        reason = f"is there already, a checkpoint of {other}, not of {kind}"
    else:
        return
    raise DataError(f"--output {path}: {reason}, and would be lost; give another name")
