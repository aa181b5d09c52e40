"""The common part of all training recipes, which add data, model and loss."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from relu_nmt.attention.kernels import set_attention_backend
from relu_nmt.config import to_dict
from relu_nmt.config.classes import flat
from relu_nmt.config.fields import flag_of
from relu_nmt.errors import OutOfMemoryError, TrainingError
from relu_nmt.modules.config import AttentionBackendConfig
from relu_nmt.recipes.continuing import change_note, refuse_other_model, refuse_unrelated
from relu_nmt.training.batches import TrainingData
from relu_nmt.training.checkpoint import read_metadata
from relu_nmt.training.checkpoint_manager import CheckpointFolder
from relu_nmt.training.config import TrainerConfig
from relu_nmt.training.distributed import LOST_PEER, ProcessGroup, join_processes
from relu_nmt.training.log import TrainingLog
from relu_nmt.training.results import TrainingResult, peak_gpu_bytes
from relu_nmt.training.state import StartWeights, weights_of
from relu_nmt.training.trainer import Trainer

SMALLER_SHARE = 3 / 4

ModelT = TypeVar("ModelT", bound=nn.Module)


class TrainingSettings(Protocol):
    """The fields that the settings of every training have."""

    @property
    def data(self) -> str:
        """The path of the data."""

    @property
    def model(self) -> Any:
        """The shape of the model."""

    @property
    def backend(self) -> AttentionBackendConfig:
        """The back end of attention, which is not stored."""

    @property
    def trainer(self) -> TrainerConfig:
        """Updates, optimiser, validation, checkpoints and log."""


class Training(ABC):
    """One training; the subclass of a recipe makes its parts.

    Args:
        settings: all settings of the recipe.
        process: this process among those that train together.
        log: the log of the training.
    """

    def __init__(self, settings: TrainingSettings, process: ProcessGroup, log: TrainingLog) -> None:
        self.settings = settings
        self.process = process
        self.log = log
        self.say = log.say

    @abstractmethod
    def trainer(self) -> Trainer:
        """Make the parts of the training, print their sizes, and return :meth:`trainer_of` them.

        Raises:
            ReluNmtError: the data, or the checkpoint to go on from, do not fit the settings.
        """

    def new_model(self, build: Callable[[], ModelT]) -> ModelT:
        """Return a model from ``build``, with seeded weights and the chosen back end."""
        torch.manual_seed(self.settings.trainer.run.seed)
        model = build()
        set_attention_backend(model, self.settings.backend.attention_backend)
        return model

    def say_size(self, model: nn.Module) -> None:
        """Print the number of a model's parameters."""
        total = sum(p.numel() for p in model.parameters())
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        self.say(f"num. shared model params: {total:,} (num. trained: {trained:,})")

    @property
    def goes_on(self) -> bool:
        """True if a checkpoint of this training exists, and not only weights to start from."""
        return self._restore_path() is not None

    def checkpoint_to_continue(self) -> Path | None:
        """Return the checkpoint that training starts from, ``None`` for a fresh start."""
        finetuned = self.settings.trainer.checkpoint.finetune_from_model
        return self._restore_path() or (Path(finetuned) if finetuned else None)

    def _restore_path(self) -> Path | None:
        config = self.settings.trainer
        return CheckpointFolder(config.checkpoint).restore_path()

    def trainer_of(
        self,
        objective: nn.Module,
        data: TrainingData,
        task: Mapping[str, Any],
        batch_size: str,
        config: TrainerConfig,
        start: StartWeights = weights_of,
    ) -> Trainer:
        """Return the trainer of these parts.

        Args:
            objective: the loss; its module ``model`` is trained and stored.
            data: batches for training and validation.
            task: metadata of the data for checkpoints, as JSON can hold it.
            batch_size: size of the batches, in words.
            config: settings of the trainer.
            start: returns the initial weights from the checkpoint of another model.
        """
        # Describe model, data and settings for the metadata of checkpoints.
        description = {
            "model_config": to_dict(self.settings.model),
            "task": task,
            "args": to_dict(self.settings, stored_only=True),
        }
        self._compare_settings()
        trainer = Trainer(objective, data, config, description, self.process, self.log, start)
        devices = f"{self.process.world_size} device(s) ({self.process.device.type})"
        self.say(f"training on {devices}; {batch_size}")
        return trainer

    def _compare_settings(self) -> None:
        """Print a note on settings that differ from those of the checkpoint to start from.

        Raises:
            CheckpointError: training would go on with another model.
        """
        path = self.checkpoint_to_continue()
        if path is None:
            return
        stored = read_metadata(path)
        # Require the same model only if the training goes on.
        if self.goes_on:
            refuse_other_model(path, stored.get("model_config") or {}, self.settings.model)
        if note := change_note(stored.get("args") or {}, self.settings, self.goes_on):
            self.say(note)


def smaller_batches(settings: TrainingSettings) -> str:
    """Return advice to lower the limit of a batch, for an error of memory."""
    values = flat(to_dict(settings))
    name = "max_tokens" if values.get("max_tokens") else "batch_size"
    smaller = int(values[name] * SMALLER_SHARE)
    # Advise another remedy if the batch cannot shrink.
    if smaller < 1:
        return (
            f"{flag_of(name)} is {values[name]} already; take a smaller model or input, or "
            "--checkpoint-activations"
        )
    return (
        f"try {flag_of(name)} {smaller} instead of {values[name]}, with more --update-freq for "
        "updates as large as before"
    )


def run_training(
    training_class: type[Training], settings: TrainingSettings, progress: bool
) -> TrainingResult:
    """Join the other processes, make a training, and run it or go on with it.

    Args:
        training_class: the class of the recipe.
        settings: all its settings.
        progress: print the log on standard output.

    Raises:
        ReluNmtError: settings, data or checkpoints that do not fit, a loss that is not finite, or
            a batch that does not fit into memory.
    """
    config = settings.trainer
    process = join_processes(config.run.cpu)
    try:
        # Let the first process alone check and lock the folder.
        folder = CheckpointFolder(config.checkpoint)
        note = refuse_unrelated(folder, settings) if process.is_first else ""
        with folder.owned() if process.is_first else nullcontext():
            log = TrainingLog(config.logging, quiet=not process.is_first, shown=progress)
            if note:
                log.say(note)
            try:
                result = training_class(settings, process, log).trainer().train()
            except OutOfMemoryError as error:
                # Add advice here, where the settings are known.
                raise OutOfMemoryError(f"{error}; {smaller_batches(settings)}") from error
            except RuntimeError as error:
                # Replace the error of the connection: the lost process reports the cause.
                if process.world_size > 1 and LOST_PEER in str(error):
                    raise TrainingError("another process has ended; it tells why") from error
                raise
            if (peak := peak_gpu_bytes()) is not None:
                log.say(f"peak GPU memory: {peak:,} bytes")
    finally:
        # Leave the group of processes, also after an error.
        process.close()
    return result
