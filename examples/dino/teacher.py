r"""Write the teacher of a self-distillation as the checkpoint of an image classifier.

    python examples/dino/teacher.py dino/xca/checkpoint50.safetensors teacher50.safetensors

relu-nmt-vision-probe evaluates the file, and relu-nmt-vision-train --finetune-from-model starts
from it. The head is untrained.
"""

import sys
from pathlib import Path

from relu_nmt.cli.command import Command
from relu_nmt.config import READ, REQUIRED, WRITTEN, from_dict, option, settings
from relu_nmt.errors import CheckpointError
from relu_nmt.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from relu_nmt.vision.config import PreprocessingConfig
from relu_nmt.vision.loading import describe_task

TASK_NAME = "self_distillation"
PREFIX = "teacher.backbone."


@settings
class TeacherSettings:
    """The files to read and to write."""

    path: str = option(REQUIRED, "checkpoint", metavar="CKPT", positional=True, files=READ)
    output: str = option(
        REQUIRED, "file to write", metavar="OUTPUT", positional=True, files=WRITTEN
    )


def save_teacher(path: Path, output: Path) -> None:
    """Write the teacher in a checkpoint as an image classifier.

    Args:
        path: checkpoint of a self-distillation.
        output: file to write.

    Raises:
        CheckpointError: the first file cannot be read or has another kind, or the second cannot
            be written.
    """
    checkpoint = load_checkpoint(path)
    task = checkpoint.metadata.get("task", {})
    if task.get("name") != TASK_NAME:
        raise CheckpointError(f"{path}: not the checkpoint of a self-distillation")
    weights = {
        name.removeprefix(PREFIX): tensor
        for name, tensor in checkpoint.model_tensors.items()
        if name.startswith(PREFIX)
    }
    preprocessing = from_dict(PreprocessingConfig, task["preprocessing"])
    metadata = {
        "model_config": checkpoint.metadata["model_config"],
        "task": describe_task(task["classes"], preprocessing),
        "args": checkpoint.metadata.get("args", {}),
    }
    save_checkpoint(output, Checkpoint(weights, metadata))
    print(f"teacher: {output}")


def run(settings: TeacherSettings) -> None:
    """Write the teacher of a checkpoint."""
    save_teacher(Path(settings.path), Path(settings.output))


main = Command("teacher", __doc__, TeacherSettings, run, user_modules=False)

if __name__ == "__main__":
    sys.exit(main())
