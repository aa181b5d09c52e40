"""The mean of the weights of several checkpoints."""

from collections.abc import Callable, Sequence
from pathlib import Path

from relu_nmt.errors import CheckpointError
from relu_nmt.training.checkpoint import Checkpoint, load_checkpoint
from relu_nmt.training.save_dir import BY_UPDATES, numbered_checkpoints


def average_checkpoints(
    paths: Sequence[Path], check: Callable[[Checkpoint, Path, Checkpoint, Path], None]
) -> Checkpoint:
    """Return a checkpoint for decoding with the mean weights, computed in float64.

    Integer tensors come from the first checkpoint, as do settings and task. Tied weights stay tied.
    ``check`` refuses a checkpoint of another model than the first one's.

    Raises:
        CheckpointError: a checkpoint is missing, damaged or of another model.
    """
    first = load_checkpoint(paths[0])
    tensors = first.model_tensors
    # Add up the weights by the first name of each tensor: tied weights once.
    names = {id(x): name for name, x in reversed(tensors.items()) if x.is_floating_point()}
    sums = {name: tensors[name].double() for name in names.values()}
    for path in paths[1:]:
        other = load_checkpoint(path)
        check(first, paths[0], other, path)
        _require_same_weights(first, paths[0], other, path)
        for name in sums:
            sums[name] = sums[name] + other.model_tensors[name].double()
    means = {name: (total / len(paths)).to(tensors[name].dtype) for name, total in sums.items()}
    # Leave out the training state, since the mean is for decoding only.
    metadata = dict(first.metadata)
    metadata.pop("training_state", None)
    metadata["averaged"] = [path.name for path in paths]
    averaged = {name: means.get(names.get(id(x), ""), x) for name, x in tensors.items()}
    return Checkpoint(averaged, metadata)


def _require_same_weights(
    first: Checkpoint, first_path: Path, other: Checkpoint, path: Path
) -> None:
    """Compare the names and shapes of the weights of two models."""
    first_shapes = {name: tensor.shape for name, tensor in first.model_tensors.items()}
    shapes = {name: tensor.shape for name, tensor in other.model_tensors.items()}
    if first_shapes != shapes:
        different = sorted(first_shapes.items() ^ shapes.items())[0][0]
        raise CheckpointError(f"{path}: the weight '{different}' does not fit that of {first_path}")


def last_checkpoints(folder: Path, count: int, pattern: str, last: int | None) -> list[Path]:
    """Return ``count`` checkpoints of a folder up to the number ``last``, the newest first."""
    paths = []
    for number, path in numbered_checkpoints(folder, pattern):
        if last is None or number <= last:
            paths.append(path)
    if len(paths) < count:
        kind = "updates" if pattern == BY_UPDATES else "epochs"
        bound = "" if last is None else f" up to {last}"
        raise CheckpointError(
            f"{folder}: {len(paths)} checkpoints saved by {kind}{bound}, but {count} are asked for"
        )
    # Take the last ones in reverse, the newest first.
    return paths[: -count - 1 : -1]
