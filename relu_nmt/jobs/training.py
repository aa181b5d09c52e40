"""The part that all trainings share: processes, log, and the checkpoint to go on from."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from relu_nmt.attention.base import use_backend
from relu_nmt.config import flag_of, to_dict
from relu_nmt.config.classes import flat
from relu_nmt.config.shared import AUTO_TOKENS
from relu_nmt.errors import TrainingError
from relu_nmt.io.memory import peak_gpu_bytes, require_memory
from relu_nmt.jobs.comparison import compare_with, refuse_unrelated
from relu_nmt.training.batches import BatchMemoryError, TrainingData
from relu_nmt.training.config import FULLY_SHARDED, TrainerConfig
from relu_nmt.training.distributed import LOST_PEER, ProcessGroup, join_processes
from relu_nmt.training.log import TrainingLog
from relu_nmt.training.optimizers import freeze
from relu_nmt.training.save_dir import CheckpointFolder
from relu_nmt.training.trainer import Trainer

SMALLER_SHARE = 3 / 4
ModelT = TypeVar("ModelT", bound=nn.Module)


def require_training_memory(model: nn.Module, config: TrainerConfig, world_size: int) -> None:
    """Refuse a training whose weights, gradients and moments do not fit into memory."""
    num_bytes = 0
    for weight in model.parameters():
        num_bytes += weight.numel() * weight.element_size() * weight.requires_grad
    if config.ddp_backend == FULLY_SHARDED:
        num_bytes //= world_size
    # Adam keeps two moments of each gradient.
    num_copies = 3 if config.optimizer.optimizer in ("adam", "adamw") else 1
    subject = "the gradients and the optimizer of this training"
    require_memory(subject, num_copies * num_bytes, "take a smaller model, or --freeze parts of it")


@dataclass
class TrainingRun:
    """A running training: its process, its log, and the checkpoint that it begins with."""

    settings: Any  # of the training or of its latest trial, for advice in errors of memory
    process: ProcessGroup
    log: TrainingLog
    checkpoint: Path | None  # of this training, or only a source of initial weights
    goes_on: bool  # ``checkpoint`` is of this training
    started: float = field(default_factory=lambda: time.monotonic())

    def say(self, text: str) -> None:
        """Print a line in the log."""
        self.log.say(text)

    @property
    def fresh_start(self) -> str:
        """Advice on flags for a training that takes nothing from an earlier checkpoint."""
        return self.settings.trainer.fresh_start(self.goes_on)

    def new_model(self, build: Callable[[], ModelT], config: TrainerConfig) -> ModelT:
        """Return a model from ``build``, seeded, with its back end, and parts of it frozen."""
        torch.manual_seed(config.seed)
        model = build()
        use_backend(model, config.attention_backend)
        freeze(model, config.optimizer)
        if self.process.device.type == "cpu":
            require_training_memory(model, config, self.process.world_size)
        return model

    def say_size(self, model: nn.Module) -> None:
        """Print the number of a model's parameters."""
        total = sum(p.numel() for p in model.parameters())
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        self.say(f"num. shared model params: {total:,} (num. trained: {trained:,})")

    def trainer(
        self,
        objective: nn.Module,
        data: TrainingData,
        settings: Any,
        batch_size: str,
        task: Mapping[str, Any],
        config: TrainerConfig | None = None,
        initial_weights: Mapping[str, Tensor] | None = None,
    ) -> Trainer:
        """Return a trainer, whose checkpoints store the task and the complete settings.

        Print how the training begins: the settings that changed since the checkpoint, the devices,
        and the size of batches in words. ``config`` is ``settings.trainer``, completed by numbers
        of the data. A model or an optimizer that cannot go on from the checkpoint is a
        CheckpointError.
        """
        self.settings = settings
        config = config or settings.trainer
        path = self.checkpoint
        if path is not None:
            note = compare_with(path, settings, config, self.goes_on, self.fresh_start)
            if note:
                self.say(note)
        devices = f"{self.process.world_size} device(s) ({self.process.device.type})"
        self.say(f"training on {devices}; {batch_size}")
        description = {
            "model_config": to_dict(settings.model),
            "task": task,
            "args": to_dict(settings, stored_only=True),
        }
        return Trainer(
            objective, data, config, description, self.process, self.log, initial_weights
        )


@contextmanager
def training_run(settings: Any, progress: bool) -> Iterator[TrainingRun]:
    """Join the other processes and lock the folder, for a training inside the ``with`` block."""
    config: TrainerConfig = settings.trainer
    # Leave the group of processes at the end, also after an error.
    with closing(join_processes(config.cpu)) as process:
        # Let the first process alone check and lock the folder.
        folder = CheckpointFolder(config)
        note = ""
        if process.is_first:
            note = refuse_unrelated(folder, settings)
        with (
            folder.owned() if process.is_first else nullcontext(),
            closing(TrainingLog(config, quiet=not process.is_first, shown=progress)) as log,
        ):
            if note:
                log.say(note)
            if process.world_size == 1 and config.ddp_backend != TrainerConfig.ddp_backend:
                log.say("note: --ddp-backend has no effect: there is one process")
            path = restored = folder.restore_path()
            if path is None and config.finetune_from_model:
                path = Path(config.finetune_from_model)
            run = TrainingRun(settings, process, log, path, goes_on=restored is not None)
            try:
                yield run
            except BatchMemoryError as error:
                # Add advice here, where the settings are known.
                raise BatchMemoryError(f"{error}; {smaller_batches(run.settings)}") from error
            except RuntimeError as error:
                # Replace the error of the connection: the lost process reports the cause.
                if process.world_size > 1 and LOST_PEER in str(error):
                    raise TrainingError("another process failed; see its message") from error
                raise
            if (peak := peak_gpu_bytes()) is not None:
                log.say(f"peak GPU memory: {peak:,} bytes")


def smaller_batches(settings: Any) -> str:
    """Return advice to lower the limit of a batch, for an error of memory."""
    values = flat(to_dict(settings))
    name = "max_tokens" if values.get("max_tokens") else "batch_size"
    if values[name] == AUTO_TOKENS:
        return "give --max-tokens a number smaller than this batch"
    # Advise another remedy if the batch cannot shrink.
    if (smaller := int(values[name] * SMALLER_SHARE)) < 1:
        return (
            f"{flag_of(name)} is {values[name]} already; take a smaller model or input, or "
            "--checkpoint-activations"
        )
    return (
        f"try {flag_of(name)} {smaller} instead of {values[name]}, with more --update-freq for "
        "updates as large as before"
    )
