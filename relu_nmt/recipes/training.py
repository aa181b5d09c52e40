"""What every training has in common, whatever it trains: a recipe adds its data, model and loss."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from relu_nmt.attention.backends.choice import set_attention_backend
from relu_nmt.config import to_dict
from relu_nmt.peak_memory import peak_gpu_bytes
from relu_nmt.recipes.training_settings import TrainingSettings
from relu_nmt.training.batches import TrainingData
from relu_nmt.training.checkpoint_manager import BEST, LAST, CheckpointFolder
from relu_nmt.training.config import TrainerConfig
from relu_nmt.training.distributed import ProcessGroup, join_processes
from relu_nmt.training.log import TrainingLog
from relu_nmt.training.results import TrainingResults
from relu_nmt.training.trainer import Trainer

SIGNAL_EXIT_CODE = 128
"""What a signal adds to, as in a shell."""

ModelT = TypeVar("ModelT", bound=nn.Module)


@dataclass(frozen=True)
class TrainingParts:
    """What a recipe makes for the trainer.

    Args:
        model: its weights are trained and stored.
        objective: the module around it that gives the loss.
        data: batches to train on and to validate with.
        trainer: settings of the trainer.
        task: what a checkpoint tells about the data, as JSON can hold it.
        batch_size: how large the batches are, in words.
    """

    model: nn.Module
    objective: nn.Module
    data: TrainingData
    trainer: TrainerConfig
    task: Mapping[str, Any]
    batch_size: str


class Training(ABC):
    """One training: a recipe's subclass makes the parts, all else is here.

    Args:
        settings: all settings of the recipe.
        process: this process among those that train together.
        say: prints a line of the log.
    """

    def __init__(
        self, settings: TrainingSettings, process: ProcessGroup, say: Callable[[str], None]
    ) -> None:
        self.settings = settings
        self.process = process
        self.say = say

    @abstractmethod
    def parts(self) -> TrainingParts:
        """Return the parts of a new training; what is in them is printed.

        Raises:
            ReluNmtError: the data, or the checkpoint to go on from, do not fit the settings.
        """

    def new_model(self, build: Callable[[], ModelT], name: str) -> ModelT:
        """Return a new model with seeded weights and the back end; its size is printed.

        Args:
            build: makes it.
            name: what it is called in the log.
        """
        torch.manual_seed(self.settings.trainer.run.seed)
        model = build()
        set_attention_backend(model, self.settings.backend.attention_backend)
        self.say(f"model: {name}")
        total = sum(p.numel() for p in model.parameters())
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        self.say(f"num. shared model params: {total:,} (num. trained: {trained:,})")
        return model

    def checkpoint_to_continue(self) -> Path | None:
        """Return the checkpoint that training will start from, ``None`` for a fresh start."""
        config = self.settings.trainer
        path = CheckpointFolder(config.checkpoint, config.validation).restore_path()
        finetuned = config.checkpoint.finetune_from_model
        return path or (Path(finetuned) if finetuned else None)

    def trainer(self, log: TrainingLog) -> Trainer:
        """Return the trainer, ready to begin."""
        parts, process = self.parts(), self.process
        description = {
            "model_config": to_dict(self.settings.model),
            "task": parts.task,
            "args": to_dict(self.settings, stored_only=True),
        }
        trainer = Trainer(
            parts.model,
            parts.objective,
            parts.data,
            parts.trainer,
            description,
            process,
            log,
        )
        self.say(
            f"training on {process.world_size} device(s) ({process.device.type}); "
            f"{parts.batch_size}"
        )
        return trainer


@dataclass(frozen=True)
class TrainingResult:
    """What came of a training.

    Args:
        course: losses, metrics, speeds, memory and how it ended, over all resumes; the same is
            in ``results.json`` beside the checkpoints.
        save_dir: folder of the checkpoints; ``None`` if none are written.
    """

    course: TrainingResults
    save_dir: Path | None

    @property
    def best_score(self) -> float | None:
        """The best value of ``best_checkpoint_metric``; ``None`` if nothing was validated."""
        return None if self.course.best is None else self.course.best["value"]

    @property
    def best_checkpoint(self) -> Path | None:
        """The checkpoint with the best score, if there is one."""
        return self._checkpoint(BEST)

    @property
    def last_checkpoint(self) -> Path | None:
        """The newest checkpoint, from which the same settings go on, if there is one."""
        return self._checkpoint(LAST)

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0, or what a shell has for the signal that ended it."""
        return 0 if self.course.signal is None else SIGNAL_EXIT_CODE + self.course.signal

    def _checkpoint(self, name: str) -> Path | None:
        path = None if self.save_dir is None else self.save_dir / name
        return path if path is not None and path.is_file() else None


def run_training(
    training_class: type[Training], settings: TrainingSettings, progress: bool
) -> TrainingResult:
    """Join the other processes, make a training, run it or go on with it.

    Args:
        training_class: the recipe's.
        settings: all its settings.
        progress: print the log on standard output.

    Raises:
        ReluNmtError: settings, data or checkpoints that do not fit, or a loss that is not finite.
    """
    config = settings.trainer
    process = join_processes(config.run.cpu)
    try:
        log = TrainingLog(config.logging, quiet=not process.is_first, shown=progress)
        course = training_class(settings, process, log.say).trainer(log).train()
        if (peak := peak_gpu_bytes()) is not None:
            log.say(f"peak GPU memory: {peak:,} bytes")
    finally:
        process.close()
    folder = None if config.checkpoint.no_save else Path(config.checkpoint.save_dir)
    return TrainingResult(course, folder)
