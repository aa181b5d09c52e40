"""One update: forward and backward over its batches, then the optimiser's step; dtypes of both."""

import math
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relu_nmt.config.shared import PrecisionOptions
from relu_nmt.errors import ConfigError, TrainingError
from relu_nmt.modules.objective import LossOutput
from relu_nmt.training.batches import Batch, naming_batch
from relu_nmt.training.config import RunConfig
from relu_nmt.training.distributed import ProcessGroup, exchanging, is_sharded, own_part
from relu_nmt.training.log import Meters, add_metrics

FAIRSEQ_SCALE_WINDOW = 2**14
SHOWN_IDS = 20
# The first entries of an update's vector, before a total and a count for each metric.
HEAD = ("sample_size", "num_tokens", "num_sentences", "interrupt_votes", "time_votes")


def autocast_dtype(asked: PrecisionOptions, device: torch.device) -> torch.dtype | None:
    """Return the 16-bit dtype of the computation; None for the dtype of the weights.

    On a CPU without products of bfloat16, print a note that it is slow.

    Raises:
        ConfigError: the device cannot compute in this dtype.
    """
    if asked.fp16:
        if device.type != "cuda":
            raise ConfigError("--fp16 needs a CUDA GPU; on the CPU use --bf16 or neither")
        return torch.float16
    if not asked.bf16:
        return None
    if device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise ConfigError("this GPU has no bfloat16; use --fp16 or neither")
    if device.type == "cpu" and not has_fast_bfloat16():
        print(
            "NOTE: this processor has no products of bfloat16, so --bf16 is slower than without",
            file=sys.stderr,
        )
    return torch.bfloat16


def has_fast_bfloat16() -> bool:
    """Return True if the CPU multiplies bfloat16 (AVX512-BF16, AMX) faster than float32."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


class Precision:
    """The dtype of the forward and backward pass; weights always have 32 bits.

    Args:
        config: ``fp16``, ``bf16`` and the loss scale.
        device: the device that computes.
        world_size: number of processes, for the default scale window.
    """

    def __init__(self, config: RunConfig, device: torch.device, world_size: int) -> None:
        self._device_type = device.type
        self._dtype = autocast_dtype(config, device)
        self._min_scale = config.min_loss_scale
        window = config.fp16_scale_window or max(
            1, FAIRSEQ_SCALE_WINDOW // world_size // config.update_freq[0]
        )
        # Without float16 the scaler changes nothing.
        self.scaler = torch.amp.GradScaler(
            "cuda", config.fp16_init_scale, growth_interval=window, enabled=config.fp16
        )

    def autocast(self) -> AbstractContextManager:
        """Return the context of a forward pass."""
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self._device_type, self._dtype)

    def step(self, optimizer: torch.optim.Optimizer, finite: Tensor | None) -> bool:
        """Make the optimiser's step; return False if gradients overflowed and it was skipped.

        Args:
            optimizer: has the gradients.
            finite: bool scalar; False keeps a fused optimiser from changing the weights, so that
                the update can be repeated to find the cause. None: always change them.

        Raises:
            TrainingError: the loss scale fell below ``--min-loss-scale``.
        """
        if not self.scaler.is_enabled():
            if finite is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
                # Fused optimisers read it on their device, without a wait for the GPU.
                optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
            optimizer.step()
            return True
        before = self.scaler.get_scale()
        self.scaler.step(optimizer)
        self.scaler.update()
        # Find an overflow by the scale, which falls only then.
        if self.scaler.get_scale() >= before:
            return True
        if self.scaler.get_scale() < self._min_scale:
            raise TrainingError(
                f"the loss scale fell below --min-loss-scale {self._min_scale:g}: the loss or the "
                "gradient is not finite at any scale; lower --lr, set --clip-norm or use --bf16"
            )
        return False

    @property
    def loss_scale(self) -> float | None:
        """The current loss scale; None without loss scaling."""
        return self.scaler.get_scale() if self.scaler.is_enabled() else None


@dataclass(frozen=True)
class UpdatePlan:
    """The numbers of an update, and this process's votes on the end of training.

    Args:
        num_updates: number of the update, from 1.
        epoch: its epoch, from 1.
        lr: learning rate.
        seed: seed of the forward pass.
        telemetry: compute the objective's telemetry of the first batch.
        interrupt_vote: this process has received a signal.
        time_vote: this process finds that the time is up.
    """

    num_updates: int
    epoch: int
    lr: float
    seed: int
    telemetry: bool = False
    interrupt_vote: bool = False
    time_vote: bool = False


@dataclass(frozen=True)
class LaunchedUpdate:
    """An update whose numbers may still be on their way from the device.

    Args:
        plan: number, epoch and learning rate.
        names: names of the metrics.
        values: float64 [1 + HEAD + 2 * metrics + batches] on the device: the gradient's norm before
            clipping; sums over all processes; each batch's own loss.
        batches: the batches of this process.
        skipped: gradients overflowed and the optimiser made no step.
        loss_scale: the loss scale of float16.
        telemetry: scalars of the first batch.
    """

    plan: UpdatePlan
    names: list[str]
    values: Tensor
    batches: list[Batch]
    skipped: bool
    loss_scale: float | None
    telemetry: dict[str, float]

    def read(self, clip_norm: float, process: ProcessGroup) -> tuple[Meters, bool, bool]:
        """Wait for the numbers, which are sums over all batches and processes.

        Returns:
            The sums without the time; True if a process has received a signal; True if one finds
            that the time is up.

        Raises:
            TrainingError: the loss or the gradient is not finite.
        """
        # Take the vector apart.
        gradient_norm, *values = self.values.tolist()
        head = dict(zip(HEAD, values, strict=False))
        pairs = values[len(HEAD) :]
        metrics = {name: (pairs[2 * i], pairs[2 * i + 1]) for i, name in enumerate(self.names)}
        # Refuse numbers that are not finite.
        bad = [name for name, (total, _) in metrics.items() if not math.isfinite(total)]
        if not self.skipped and (bad or not math.isfinite(gradient_norm)):
            cause = f"{' and '.join(bad)} became" if bad else "the gradient is"
            raise TrainingError(
                f"update {self.plan.num_updates} (epoch {self.plan.epoch}): {cause} not finite "
                f"(gradient norm {gradient_norm:g}); samples "
                f"{self._suspects(pairs[2 * len(self.names) :], process)}. Lower --lr, lengthen "
                "--warmup-updates or set --clip-norm; earlier checkpoints are unharmed"
            )
        clips = int(0 < clip_norm < gradient_norm)
        tokens, sentences = head["num_tokens"], head["num_sentences"]
        meters = Meters(metrics, tokens, sentences, 1, gradient_norm, clips)
        return meters, head["interrupt_votes"] > 0, head["time_votes"] > 0

    def _suspects(self, losses: list[float], process: ProcessGroup) -> str:
        """Return the samples of the batches whose losses are not finite; of all if they are."""
        pairs = list(zip([batch.ids.tolist() for batch in self.batches], losses, strict=True))
        # All processes have the same sums, so all of them call this.
        suspects = process.gather([ids for ids, loss in pairs if not math.isfinite(loss)])
        if not any(suspects):
            suspects = process.gather([ids for ids, _ in pairs])
        ids = [str(number) for lists in suspects for batch in lists for number in batch]
        more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
        return ", ".join(ids[:SHOWN_IDS]) + more


class Updater:
    """Makes updates.

    Args:
        objective: the (wrapped) module that returns the loss.
        optimizer: has the parameters to train.
        precision: dtype and loss scale.
        clip_norm: largest gradient norm; 0 does not clip.
        process: this process.
    """

    def __init__(
        self,
        objective: nn.Module,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
        clip_norm: float,
        process: ProcessGroup,
    ) -> None:
        self._objective = objective
        self._optimizer = optimizer
        self._precision = precision
        self._clip_norm = clip_norm
        self._process = process
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        # BatchNorm's running statistics, which are averaged over the processes for evaluation.
        self._statistics = [
            tensor
            for module in objective.modules()
            if isinstance(module, nn.BatchNorm2d)
            for tensor in (module.running_mean, module.running_var)
            if tensor is not None
        ]

    def run(self, batches: Sequence[tuple[Batch, int]], plan: UpdatePlan) -> LaunchedUpdate:
        """Make an update; the objective is in training mode.

        Args:
            batches: this process's batches with their weights: 1, or 0 for a batch that only keeps
                this process in step with the others.
            plan: learning rate, seed and so on.
        """
        # Go forward and backward with each batch.
        torch.manual_seed(plan.seed)
        self._optimizer.zero_grad(set_to_none=True)
        head = Counter(interrupt_votes=int(plan.interrupt_vote), time_votes=int(plan.time_vote))
        sums: dict[str, tuple[Any, float]] = {}
        losses: list[Tensor] = []
        telemetry: dict[str, float] = {}
        for index, (batch, weight) in enumerate(batches):
            output = self._forward_backward(
                batch,
                weight,
                plan.num_updates,
                telemetry=plan.telemetry and index == 0,
                last=index == len(batches) - 1,
            )
            losses.append(output.loss.detach())
            head.update(
                sample_size=weight * output.sample_size,
                num_tokens=weight * batch.num_tokens,
                num_sentences=weight * batch.num_sentences,
            )
            # A batch of weight 0 only gives the names of the metrics.
            metrics = all_metrics(output)
            add_metrics(sums, {n: (weight * t, weight * c) for n, (t, c) in metrics.items()})
            telemetry = telemetry or output.telemetry
        # Sum over the processes in one vector: [head, then total and count of each metric].
        self._process.average(self._statistics)
        options: dict[str, Any] = {"dtype": torch.float64, "device": self._process.device}
        parts = [torch.tensor([head[name] for name in HEAD], **options)]
        for total, count in sums.values():
            parts.append(torch.stack([total.double(), torch.tensor(count, **options)]))
        vector = self._process.sum(torch.cat(parts))
        # Make the optimiser's step.
        gradient_norm = self._normalise_gradients(vector[0])
        for group in self._optimizer.param_groups:
            group["lr"] = plan.lr * group["lr_scale"]
        sums_of_all = torch.cat([gradient_norm.double().view(1), vector])
        # Leave the verdict on the device, so that the CPU need not wait.
        finite = None if is_sharded(self._objective) else sums_of_all.isfinite().all()
        skipped = not self._precision.step(self._optimizer, finite)
        # Return the numbers unread, so that the next update can start at once.
        return LaunchedUpdate(
            plan,
            list(sums),
            torch.cat([sums_of_all, torch.stack(losses).double()]),
            [batch for batch, _ in batches],
            skipped,
            self._precision.loss_scale,
            telemetry,
        )

    def _forward_backward(
        self, batch: Batch, weight: int, number: int, telemetry: bool, last: bool
    ) -> LossOutput:
        """Return the output of a batch, its gradients added to those of the batches before."""
        # Processes exchange gradients once, with the last batch.
        exchange = exchanging(self._objective, exchange=last)
        with exchange, naming_batch(batch, f"update {number}"):
            with self._precision.autocast():
                output: LossOutput = self._objective(
                    batch.to(self._process.device), telemetry=telemetry
                )
            # Scale for float16, and by the weight, 0 for a batch without effect.
            self._precision.scaler.scale(output.loss * weight).backward()
        return output

    @torch.no_grad()
    def _normalise_gradients(self, sample_size: Tensor) -> Tensor:
        """Divide summed gradients by the sample size and clip them; return the norm before.

        DistributedDataParallel averages over the processes; ``world_size`` undoes that.
        """
        # Undo the loss scale, so that norms are comparable.
        self._precision.scaler.unscale_(self._optimizer)
        gradients = [own_part(p.grad) for p in self._parameters if p.grad is not None]
        # Keep the factor on the device, without a wait for the GPU.
        factor = (self._process.world_size / sample_size.clamp(min=1)).to(gradients[0].dtype)
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        if is_sharded(self._objective):
            # Add the squares of all parts, since each process has only its own.
            norm = self._process.sum(norm.square()).sqrt()
        norm = norm * factor
        # Clip by the same factor, so that the gradients are multiplied once.
        if self._clip_norm > 0:
            factor = factor * (self._clip_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, factor)
        return norm


def all_metrics(output: LossOutput) -> dict[str, tuple[Tensor, float]]:
    """Return (sum, count) of the objective's metrics and the loss, by name."""
    metrics = {name: (metric.total, metric.count) for name, metric in output.metrics.items()}
    if "loss" not in metrics:
        metrics = {"loss": (output.loss.detach(), output.sample_size), **metrics}
    return metrics


def update_seed(seed: int, num_updates: int, rank: int) -> int:
    """Return the seed of an update, the same for a resumed training."""
    return int(np.random.SeedSequence((seed, num_updates, rank)).generate_state(1, np.uint64)[0])
