"""The mean of the weights of several checkpoints."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from relu_nmt.cli.average import AverageSettings as Settings
from relu_nmt.errors import CheckpointError
from relu_nmt.io.safe_write import check_writable, target_of
from relu_nmt.recipes.convert import check_replaceable
from relu_nmt.training.checkpoint import Checkpoint, load_checkpoint, read_metadata, save_checkpoint
from relu_nmt.training.checkpoint_manager import BY_EPOCHS, BY_UPDATES, numbered_checkpoints
from relu_nmt.translation.agreement import fingerprint, require_same
from relu_nmt.translation.task import TASK_NAME, TranslationTask

ONE_MODEL = "only checkpoints of one model on one data folder can be averaged"
MOST_SHOWN = 60
"""Characters of a value that a message repeats."""


@dataclass(frozen=True)
class AverageResult:
    """The checkpoint that was made, and those that it averages."""

    path: Path
    inputs: tuple[Path, ...]


def run(settings: Settings, *, progress: bool = True) -> AverageResult:
    """Write a checkpoint with the mean weights of others.

    Raises:
        CheckpointError: a checkpoint is missing, damaged or of another model.
        DataError: the output cannot be written, is one of the inputs, or is a foreign file.
    """
    inputs = [Path(path) for path in settings.inputs]
    # Replace a folder by its last checkpoints, if a flag asks for them.
    for count, pattern in (
        (settings.num_epoch_checkpoints, BY_EPOCHS),
        (settings.num_update_checkpoints, BY_UPDATES),
    ):
        if count is not None:
            inputs = _last_checkpoints(inputs[0], count, pattern, settings.checkpoint_upper_bound)
    check_writable("--output", settings.output)
    check_replaceable(settings.output, read_metadata(inputs[0]).get("task"))
    if progress:
        print(f"averaging {len(inputs)}: {', '.join(map(str, inputs))}")
    save_checkpoint(target_of(settings.output), average_checkpoints(inputs))
    if progress:
        print(f"written: {settings.output}")
    return AverageResult(Path(settings.output), tuple(inputs))


def average_checkpoints(paths: Sequence[Path]) -> Checkpoint:
    """Return a checkpoint for decoding with the mean weights, computed in float64.

    Integer tensors come from the first checkpoint, as do settings and task. Tied weights stay tied.
    """
    first = load_checkpoint(paths[0])
    # Add up the weights, by the identity of the first checkpoint's tensor: tied ones once.
    sums: dict[int, Tensor] = {}
    for path in paths:
        checkpoint = first if path is paths[0] else load_checkpoint(path)
        _check_same_model(first, paths[0], checkpoint, path)
        added = set()
        for name, own in first.model_tensors.items():
            # Skip integers, and tied weights that are added already.
            if id(own) in added or not own.is_floating_point():
                continue
            added.add(id(own))
            value = checkpoint.model_tensors[name].double()
            sums[id(own)] = sums[id(own)] + value if id(own) in sums else value
    # Divide by the number of checkpoints.
    means = {
        id(own): (sums[id(own)] / len(paths)).to(own.dtype) if id(own) in sums else own
        for own in first.model_tensors.values()
    }
    # Leave out the training state, since the mean is for decoding only.
    metadata = {k: v for k, v in first.metadata.items() if k != "training_state"}
    metadata["averaged"] = [path.name for path in paths]
    return Checkpoint({k: means[id(own)] for k, own in first.model_tensors.items()}, metadata)


def _check_same_model(first: Checkpoint, first_path: Path, other: Checkpoint, path: Path) -> None:
    """Compare the settings, tasks and weights of two models."""
    require_same(_described(first), first_path, _described(other), path, ONE_MODEL)
    own, others = (
        {name: tensor.shape for name, tensor in checkpoint.model_tensors.items()}
        for checkpoint in (first, other)
    )
    if own != others:
        different = sorted(own.items() ^ others.items())[0][0]
        raise CheckpointError(f"{path}: the weight '{different}' does not fit that of {first_path}")


def _described(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the settings of a model and of its task in words, by name."""
    task = checkpoint.metadata.get("task") or {}
    model = {"model setting": checkpoint.metadata.get("model_config") or {}}
    if task.get("name") == TASK_NAME:
        return _leaves(model) | TranslationTask.from_state(task).describe()
    return _leaves(model) | _leaves({"task": task})


def _leaves(values: Mapping[str, Any], name: str = "") -> dict[str, str]:
    """Return nested values in words, named by the path to each."""
    found: dict[str, str] = {}
    for key, value in values.items():
        place, text = f"{name} {key}".strip(), json.dumps(value)
        if isinstance(value, Mapping):
            found |= _leaves(value, place)
        else:
            is_short = len(text) <= MOST_SHOWN
            found[place] = text if is_short else f"{len(text):,} bytes {fingerprint(text)}"
    return found


def _last_checkpoints(folder: Path, count: int, pattern: str, most: int | None) -> list[Path]:
    """Return the last ``count`` checkpoints of a folder, the newest first."""
    found = [
        path
        for number, path in numbered_checkpoints(folder, pattern)
        if most is None or number <= most
    ]
    if len(found) < count:
        kind = "updates" if pattern == BY_UPDATES else "epochs"
        bound = "" if most is None else f" up to {most}"
        raise CheckpointError(
            f"{folder}: {len(found)} checkpoints saved by {kind}{bound}, but {count} are asked for"
        )
    # Take the last ones in reverse, the newest first.
    return found[: -count - 1 : -1]
