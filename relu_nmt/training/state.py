"""The state of a running training, to a checkpoint and back."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from relu_nmt.config.stored import checked
from relu_nmt.errors import IN_BRACKETS, CheckpointError, TrainingError, reporting
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
from relu_nmt.training.config import OptimizerConfig, TrainerConfig
from relu_nmt.training.distributed import ProcessGroup
from relu_nmt.training.log import Meters
from relu_nmt.training.optimizers import build_optimizer
from relu_nmt.training.precision import autocast_dtype
from relu_nmt.training.schedules import build_schedule

FAIRSEQ_SCALE_WINDOW = 2**14
OPTIMIZER_PREFIX = "optimizer."
RAW_PREFIX = "train.model."


@dataclass
class TrainingState:
    """The position and counts of a training: all that an exact resume needs besides tensors."""

    epoch: int = 1
    batch_offset: int = 0  # batches of this epoch that are done, over all processes
    num_batches: int = 0  # batches of this epoch. 0 before it is planned
    num_updates: int = 0
    seconds: float = 0.0  # time of running, over all resumes
    best_metric: str | None = None
    best_score: float | None = None
    best_subset: str | None = None  # validation set of the best score. None in earlier checkpoints
    best_signature: str | None = None  # None for losses, and in earlier checkpoints
    bad_validations: int = 0  # validations since a better score, for early stopping
    schedule: dict[str, Any] = field(default_factory=dict)
    precision: dict[str, float] = field(default_factory=dict)  # state of the loss scale
    inner: Meters = field(default_factory=Meters)  # meters since the last log line
    epoch_meters: Meters = field(default_factory=Meters)
    # A signal came with the last update, so that validation and saving that were due are missing.
    interrupted: bool = False

    def begin_epoch(self, num_batches: int) -> bool:
        """Set the number of batches. Return True, and scale the offset, if it changed midway."""
        changed = self.batch_offset > 0 and self.num_batches not in (0, num_batches)
        if changed:
            self.batch_offset = round(self.batch_offset * num_batches / self.num_batches)
        self.num_batches = num_batches
        return changed

    def begin_next_epoch(self) -> None:
        """Move to the beginning of the next epoch, which is not planned yet."""
        self.epoch += 1
        self.epoch_meters = Meters()
        self.batch_offset = self.num_batches = 0

    def add_score(self, score: float, maximize: bool) -> bool:
        """Count a validation score. Return True if it is at least as good as the best so far."""
        best = self.best_score
        sign = 1 if maximize else -1
        better = not math.isnan(score) and (best is None or sign * score > sign * best)
        self.bad_validations += 1
        if better:
            self.best_score = score
            self.bad_validations = 0
        return better or score == best

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], origin: str) -> "TrainingState":
        """Return the state that ``dataclasses.asdict`` described. Errors name ``origin``."""
        stored = dict(values)
        advice = f"it was written by another version of relu_nmt; {weights_alone_advice(origin)}"
        text = f"{origin}: its training state cannot be read"
        wrong = (KeyError, TypeError, ValueError)
        with reporting(text, CheckpointError, wrong, IN_BRACKETS, advice):
            # Checkpoints of earlier versions hold the best score a second time, together with the
            # count.
            patience = stored.pop("patience", None)
            if patience:
                stored["bad_validations"] = patience["bad_validations"]
            # All versions have both meters. A state without them is damaged.
            return checked(cls, {name: stored[name] for name in ("inner", "epoch_meters")} | stored)


class WeightAverage:
    """The average a <- decay * a + (1 - decay) * w of a model's weights. Empty without EMA.

    At averaging number t the decay is at most (1 + t) / (10 + t), so that the average of a short
    training forgets the random start. With ``--ema-start-update``, fairseq's way to do so, the
    decay is always ``--ema-decay``. The statistics of BatchNorm are averaged with the parameters.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        self._config = config
        self._parameters = averaged_tensors(model) if config.store_ema else {}
        self._averages = {name: p.detach().clone() for name, p in self._parameters.items()}

    @torch.no_grad()
    def update(self, num_updates: int) -> None:
        """Add the weights after update ``num_updates`` (from 1) to the average."""
        config = self._config
        if not self._averages or num_updates % config.ema_update_freq:
            return
        decay = config.ema_decay
        if num_updates < config.ema_start_update:
            decay = 0.0
        elif config.ema_start_update == 0:
            count = num_updates // config.ema_update_freq
            decay = min(decay, (1 + count) / (10 + count))
        averages = [distributed.local_part(tensor) for tensor in self._averages.values()]
        weights = [distributed.local_part(tensor) for tensor in self._parameters.values()]
        torch._foreach_lerp_(averages, weights, weight=1 - decay)

    @contextmanager
    def applied(self) -> Iterator[dict[str, Tensor]]:
        """Put the average into the model inside the block. Yield the raw weights."""
        self._swap()
        try:
            yield self._averages
        finally:
            self._swap()

    @torch.no_grad()
    def restart(self) -> None:
        """Make the average equal to the model's present weights."""
        for name, parameter in self._parameters.items():
            self._averages[name].copy_(parameter)

    @torch.no_grad()
    def _swap(self) -> None:
        """Exchange weights and averages in place, since sharding reads this memory."""
        for name, parameter in self._parameters.items():
            weights = distributed.local_part(parameter)
            average = distributed.local_part(self._averages[name])
            copy = weights.clone()
            weights.copy_(average)
            average.copy_(copy)


def averaged_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that an average covers: parameters and the statistics of BatchNorm."""
    return dict(model.named_parameters()) | running_statistics(model)


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """Return the running means and variances of BatchNorm by name, where it tracks them."""
    statistics: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d) and module.track_running_stats:
            statistics[f"{name}.running_mean"] = module.get_buffer("running_mean")
            statistics[f"{name}.running_var"] = module.get_buffer("running_var")
    return statistics


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
            tensors = without_prefix(checkpoint.training_tensors, OPTIMIZER_PREFIX)
            _load_optimizer(self.model, self.optimizer, tensors, path)
            if state.precision:  # empty without float16
                self.scaler.load_state_dict(state.precision)
            if not config.reset_lr_scheduler:
                with reporting(f"{path}: its schedule cannot be read", CheckpointError, ValueError):
                    self.schedule.load_state(state.schedule)
        _reset(state, config)
        say(f"go on from {path} (epoch {state.epoch} @ {state.num_updates} updates)")
        return state


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's tensors as ``optimizer.PARAMETER.KEY``."""
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    tensors: dict[str, Tensor] = {}
    for parameter, values in optimizer.state.items():
        for key, value in values.items():
            tensors[f"{OPTIMIZER_PREFIX}{names[parameter]}.{key}"] = torch.as_tensor(value)
    return tensors


def _reset(state: TrainingState, config: TrainerConfig) -> None:
    if config.reset_optimizer:
        state.num_updates = 0
    if config.reset_dataloader:
        state.epoch = 1
        state.batch_offset = state.num_batches = 0
    if config.reset_meters:
        state.inner = Meters()
        state.epoch_meters = Meters()
        state.seconds = 0.0
    is_other = state.best_metric != config.best_checkpoint_metric
    if config.reset_meters or config.reset_optimizer or is_other:
        state.best_metric = config.best_checkpoint_metric
        state.best_score = None
        state.bad_validations = 0


def _load_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], path: Path
) -> None:
    """Restore the optimizer's tensors, without frozen parts. New parts begin without state."""
    # Group the tensors by parameter, and keep the tensors of trained ones.
    stored: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        owner, key = name.rsplit(".", 1)
        stored.setdefault(owner, {})[key] = tensor
    parameters = dict(model.named_parameters())
    index_of: dict[nn.Parameter, int] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            index_of[parameter] = len(index_of)
    trained = {}
    for name in stored:
        if name in parameters and parameters[name] in index_of:
            trained[name] = parameters[name]
    # Adafactor has other tensors for vectors than for matrices.
    keys: dict[bool, set[str]] = {}
    for name, parameter in trained.items():
        keys.setdefault(parameter.dim() > 1, set()).update(stored[name])
    # Compare names and shapes. A parameter without a gradient in any update has no state.
    fits = bool(stored) and stored.keys() <= parameters.keys()
    for name, parameter in trained.items():
        fits = fits and stored[name].keys() == keys[parameter.dim() > 1]
        for tensor in stored[name].values():
            fits = fits and _fits(tensor.shape, parameter.shape)
    if not fits:
        raise CheckpointError(
            f"{path}: the checkpoint holds no optimizer state for this model; add "
            f"--reset-optimizer, or {weights_alone_advice(path)}"
        )
    # Number the parameters as PyTorch does, cutting tensors to this process's part.
    state: dict[int, dict[str, Tensor]] = {}
    for name, parameter in trained.items():
        values = state[index_of[parameter]] = {}
        for key, tensor in stored[name].items():
            values[key] = distributed.part_like(tensor, parameter)
    # load_state_dict copies the tensors to the parameters' devices.
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _fits(state: Sequence[int], weight: Sequence[int]) -> bool:
    """Return True for a scalar, and for the weight's shape with some dimensions averaged."""
    if not state:
        return True
    pairs = zip(state, weight, strict=False)
    return len(state) == len(weight) and all(size in (1, full) for size, full in pairs)
