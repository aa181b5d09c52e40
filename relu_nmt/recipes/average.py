"""The mean of the weights of several checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from relu_nmt.errors import CheckpointError
from relu_nmt.recipes.output_files import check_writable, target_of
from relu_nmt.recipes.training_settings import AverageSettings as Settings
from relu_nmt.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from relu_nmt.training.checkpoint_manager import BY_EPOCHS, BY_UPDATES, numbered_checkpoints


@dataclass(frozen=True)
class AverageResult:
    """The checkpoint that was made.

    Args:
        path: where it is.
        inputs: the checkpoints averaged, the newest first where they were looked for.
    """

    path: Path
    inputs: tuple[Path, ...]


def run(settings: Settings, *, progress: bool = True) -> AverageResult:
    """Write a checkpoint with the mean weights of others.

    Args:
        settings: which checkpoints to average.
        progress: print on standard output which these are.

    Raises:
        CheckpointError: a checkpoint is missing, damaged or of another model.
        DataError: the new one cannot be written, or is one of them.
    """
    inputs = [Path(path) for path in settings.inputs]
    for count, pattern in (
        (settings.num_epoch_checkpoints, BY_EPOCHS),
        (settings.num_update_checkpoints, BY_UPDATES),
    ):
        if count is not None:
            inputs = _last_checkpoints(inputs[0], count, pattern, settings.checkpoint_upper_bound)
    check_writable("--output", settings.output)
    if progress:
        print(f"averaging {len(inputs)}: {', '.join(map(str, inputs))}")
    save_checkpoint(target_of(settings.output), average_checkpoints(inputs))
    if progress:
        print(f"written: {settings.output}")
    return AverageResult(Path(settings.output), tuple(inputs))


def average_checkpoints(paths: Sequence[Path]) -> Checkpoint:
    """Return a checkpoint for decoding with the mean weights, computed in float64.

    What is no floating-point number is taken from the first checkpoint; so are the settings and
    the task. Weights that are tied stay tied.

    Args:
        paths: one checkpoint or more; one at a time is in memory.

    Raises:
        CheckpointError: a file is missing or damaged, or of another model or task.
    """
    first = load_checkpoint(paths[0])
    sums: dict[int, Tensor] = {}  # by the identity of the first checkpoint's tensor: tied ones once
    for path in paths:
        checkpoint = first if path is paths[0] else load_checkpoint(path)
        _check_same_model(first, paths[0], checkpoint, path)
        added = set()
        for name, own in first.model_tensors.items():
            if id(own) in added or not own.is_floating_point():
                continue
            added.add(id(own))
            value = checkpoint.model_tensors[name].double()
            sums[id(own)] = sums[id(own)] + value if id(own) in sums else value
    means = {
        id(own): (sums[id(own)] / len(paths)).to(own.dtype) if id(own) in sums else own
        for own in first.model_tensors.values()
    }
    metadata = {k: v for k, v in first.metadata.items() if k != "training_state"}
    metadata["averaged"] = [path.name for path in paths]
    return Checkpoint({k: means[id(own)] for k, own in first.model_tensors.items()}, metadata)


def _check_same_model(first: Checkpoint, first_path: Path, other: Checkpoint, path: Path) -> None:
    for key, what in (("model_config", "model settings"), ("task", "dictionaries or tokenisation")):
        if first.metadata.get(key) != other.metadata.get(key):
            raise CheckpointError(
                f"{path}: other {what} than {first_path}; only checkpoints of one model on one "
                "data folder can be averaged"
            )
    own, others = (
        {name: tensor.shape for name, tensor in checkpoint.model_tensors.items()}
        for checkpoint in (first, other)
    )
    if own != others:
        different = sorted(own.items() ^ others.items())[0][0]
        raise CheckpointError(f"{path}: the weight '{different}' does not fit that of {first_path}")


def _last_checkpoints(folder: Path, count: int, pattern: str, most: int | None) -> list[Path]:
    """Return the last ``count`` checkpoints of a folder, the newest first.

    ``pattern`` is of the names of those saved by epochs, or by updates; ``most`` is the last epoch
    or update to take.
    """
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
    return found[: -count - 1 : -1]
