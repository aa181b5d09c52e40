"""The mean of the weights of several checkpoints."""

from dataclasses import dataclass
from pathlib import Path

from relu_nmt.recipes.training_settings import AverageSettings as Settings
from relu_nmt.training.averaging import average_checkpoints, last_checkpoints
from relu_nmt.training.checkpoint import save_checkpoint


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
    """
    by_updates = settings.num_update_checkpoints is not None
    count = settings.num_update_checkpoints if by_updates else settings.num_epoch_checkpoints
    inputs = [Path(path) for path in settings.inputs]
    if count is not None:
        bound = settings.checkpoint_upper_bound
        inputs = last_checkpoints(inputs[0], count, by_updates, bound)
    if progress:
        print(f"averaging {len(inputs)}: {', '.join(map(str, inputs))}")
    save_checkpoint(settings.output, average_checkpoints(inputs))
    if progress:
        print(f"written: {settings.output}")
    return AverageResult(Path(settings.output), tuple(inputs))
