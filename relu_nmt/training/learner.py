"""The model of a training with all that changes it, from a checkpoint and back."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from relu_nmt.errors import CheckpointError, TrainingError, reporting
from relu_nmt.modules.objective import LossOutput
from relu_nmt.training import distributed
from relu_nmt.training.batches import Batch
from relu_nmt.training.checkpoint import (
    Checkpoint,
    load_checkpoint,
    load_weights,
    same_model_advice,
    weights_alone_advice,
    without_prefix,
)
from relu_nmt.training.config import TrainerConfig
from relu_nmt.training.distributed import ProcessGroup
from relu_nmt.training.optimizers import build_optimizer, load_optimizer, optimizer_tensors
from relu_nmt.training.precision import autocast_dtype
from relu_nmt.training.schedules import build_schedule
from relu_nmt.training.state import (
    TrainingState,
    WeightAverage,
    averaged_tensors,
    running_statistics,
)

FAIRSEQ_SCALE_WINDOW = 2**14
RAW_PREFIX = "train.model."


class Learner:
    """The module ``model`` of an objective, with its optimizer, schedule, precision and average."""

    def __init__(
        self,
        objective: nn.Module,
        config: TrainerConfig,
        process: ProcessGroup,
        wrapped: nn.Module | None = None,
    ) -> None:
        self.objective = objective
        self.wrapped = wrapped or objective
        self.model = model = objective.get_submodule("model")
        self.process = process
        self.config = config
        self.optimizer = build_optimizer(model, config.optimizer)
        self.parameters: list[nn.Parameter] = []  # those that the optimizer changes
        for group in self.optimizer.param_groups:
            self.parameters += group["params"]
        # BatchNorm's running statistics are averaged over the processes for evaluation.
        self.statistics = list(running_statistics(objective).values())
        self.schedule = build_schedule(config.schedule, config.max_update, config.maximize)
        self.dtype = autocast_dtype(config, process.device)
        # The loss scale of float16, with fairseq's window. Without it the scaler changes nothing.
        updates = FAIRSEQ_SCALE_WINDOW // process.world_size // config.update_freq[0]
        self.scaler = torch.amp.GradScaler(
            "cuda",
            config.fp16_init_scale,
            growth_interval=config.fp16_scale_window or max(1, updates),
            enabled=config.fp16,
        )
        self.average = WeightAverage(model, config.optimizer)

    def unwrap(self) -> None:
        """Drop the wrapper of the objective, which must not outlive the group of processes."""
        # The last owner of the group ends its threads. If this is the wrapper, it holds Python's
        # lock meanwhile, for which such a thread may wait for ever.
        self.wrapped = self.objective

    def autocast(self) -> torch.autocast:
        """Return the context of a forward pass. Weights always have 32 bits."""
        enabled = self.dtype is not None
        return torch.autocast(self.process.device.type, self.dtype, enabled=enabled)

    @property
    def loss_scale(self) -> float | None:
        """The current loss scale. None without loss scaling."""
        return self.scaler.get_scale() if self.scaler.is_enabled() else None

    def loss(self, batch: Batch) -> LossOutput:
        """Return the loss of a batch, in the dtype of training."""
        with self.autocast():
            return self.objective(batch.to(self.process.device))

    @torch.no_grad()
    def normalize_gradients(self, sample_size: Tensor) -> Tensor:
        """Divide summed gradients by the sample size and clip them. Return the norm before that."""
        # Undo the loss scale, so that norms are comparable.
        self.scaler.unscale_(self.optimizer)
        gradients = [distributed.local_part(p.grad) for p in self.parameters if p.grad is not None]
        # Keep the factor on the device, without a wait for the GPU. world_size in it undoes
        # DistributedDataParallel's mean over the processes.
        factor = (self.process.world_size / sample_size.clamp(min=1)).to(gradients[0].dtype)
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        if distributed.is_sharded(self.objective):
            # Add the squares of all parts, since each process has only its own.
            norm = self.process.sum(norm.square()).sqrt()
        norm = norm * factor
        # Clip by the same factor, so that the gradients are multiplied once.
        if self.config.clip_norm > 0:
            factor = factor * (self.config.clip_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, factor)
        return norm

    def step(self, finite: Tensor | None) -> bool:
        """Make the optimizer's step. Return False if gradients overflowed and the step was skipped.

        If the bool scalar ``finite`` is False, a fused optimizer does not change the weights, so
        that the update can be repeated to find the cause. None: always change the weights.
        """
        optimizer = self.optimizer
        scaler = self.scaler
        if not scaler.is_enabled():
            if finite is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
                # Fused optimizers read it on their device, without a wait for the GPU.
                optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
            optimizer.step()
            return True
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        # An overflow shows in the scale, which falls only then.
        overflowed = scaler.get_scale() < before
        smallest = self.config.min_loss_scale
        if overflowed and scaler.get_scale() < smallest:
            raise TrainingError(
                f"the loss scale fell below --min-loss-scale {smallest:g}: the loss or the "
                "gradient is not finite at any scale; lower --lr, set --clip-norm or use --bf16"
            )
        return not overflowed

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Put the model into evaluation mode inside the block."""
        self.objective.eval()
        yield
        self.objective.train()
        distributed.give_back(self.objective)

    @contextmanager
    def snapshot(
        self, state: TrainingState, description: Mapping[str, Any], with_optimizer: bool = True
    ) -> Iterator[Checkpoint]:
        """Yield a checkpoint of the live tensors. With a sharded model, all processes call this."""
        state.schedule = self.schedule.state()
        state.precision = self.scaler.state_dict()
        metadata = {**description, "training_state": dataclasses.asdict(state)}
        training = optimizer_tensors(self.model, self.optimizer) if with_optimizer else {}
        # Apply the average. The raw weights that it replaces are stored beside it.
        with self.average.applied() as raw:
            training |= {RAW_PREFIX + name: tensor for name, tensor in raw.items()}
            # Keep parameters as they are, so that tied ones stay one tensor.
            is_first = self.process.is_first
            model = distributed.whole_tensors(self.model.state_dict(keep_vars=True), is_first)
            yield Checkpoint(model, metadata, distributed.whole_tensors(training, is_first))

    def restore(
        self,
        path: Path | None,
        say: Callable[[str], None],
        initial_weights: Mapping[str, Tensor] | None = None,
    ) -> TrainingState:
        """Restore the checkpoint ``path``, or begin with initial weights. Return the state.

        The initial weights are by default those in the checkpoint of ``--finetune-from-model``.
        """
        config = self.config
        advice = same_model_advice(config.fresh_start(goes_on=path is not None))
        # A fresh start, perhaps from the weights of another model.
        if path is None:
            origin = config.finetune_from_model
            if origin:
                weights = initial_weights or load_checkpoint(origin).model_tensors
                load_weights(self.model, weights, origin, advice=advice)
                self.average.restart()
                say(f"start from the weights of {origin}")
            return TrainingState(best_metric=config.best_checkpoint_metric)
        checkpoint = load_checkpoint(path, with_training_state=True)
        if "training_state" not in checkpoint.metadata:
            raise CheckpointError(
                f"{path}: holds weights only (averaged or exported), so training cannot go on from "
                f"it; {weights_alone_advice(path)}"
            )
        # Load the model, then the raw weights if the stored model is an average.
        state = TrainingState.from_dict(checkpoint.metadata["training_state"], str(path))
        load_weights(self.model, checkpoint.model_tensors, path, advice=advice)
        self.average.restart()
        raw = without_prefix(checkpoint.training_tensors, RAW_PREFIX)
        if raw:
            load_weights(self.model, raw, path, averaged_tensors(self.model), advice)
        if not config.reset_optimizer:
            load_optimizer(self.model, self.optimizer, checkpoint.training_tensors, path)
            if state.precision:  # empty without float16
                self.scaler.load_state_dict(state.precision)
            if not config.reset_lr_scheduler:
                with reporting(f"{path}: its schedule cannot be read", CheckpointError, ValueError):
                    self.schedule.load_state(state.schedule)
        state.reset(config)
        say(f"go on from {path} (epoch {state.epoch} @ {state.num_updates} updates)")
        return state
