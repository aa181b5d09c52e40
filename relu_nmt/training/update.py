"""One update: forward and backward over its batches, then the optimiser's step."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from relu_nmt.errors import TrainingError
from relu_nmt.objective import LossOutput
from relu_nmt.optim.optimizers import set_learning_rate
from relu_nmt.training.batches import Batch
from relu_nmt.training.distributed import ProcessGroup
from relu_nmt.training.precision import Precision

SHOWN_IDS = 20
# What the vector of an update begins with, before a total and a count for each metric.
HEAD = ("sample_size", "num_tokens", "num_sentences", "interrupt_votes", "time_votes")


@dataclass(frozen=True)
class UpdatePlan:
    """What an update is made of.

    Args:
        num_updates: number of the update, from 1.
        epoch: its epoch, from 1.
        lr: learning rate.
        seed: for the random numbers of the forward pass.
        telemetry: ask the objective for telemetry on the first batch.
        interrupt_vote: this process has received a signal; the votes of all come back.
        time_vote: this process finds that the time is up.
    """

    num_updates: int
    epoch: int
    lr: float
    seed: int
    telemetry: bool = False
    interrupt_vote: bool = False
    time_vote: bool = False


@dataclass
class _Sums:
    """Sums over the batches of this process; tensors stay on the device."""

    sample_size: int = 0
    num_tokens: int = 0
    num_sentences: int = 0
    totals: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)

    def add(self, output: LossOutput, batch: Batch, weight: int) -> None:
        """Take in a batch; one of weight 0 only makes the names of the metrics known."""
        self.sample_size += weight * output.sample_size
        self.num_tokens += weight * batch.num_tokens
        self.num_sentences += weight * batch.num_sentences
        for name, metric in all_metrics(output).items():
            total, count = metric
            self.totals[name] = self.totals.get(name, 0) + weight * total
            self.counts[name] = self.counts.get(name, 0) + weight * count


@dataclass(frozen=True)
class UpdateResult:
    """What one update did, over all its batches and processes.

    Args:
        plan: what it was made of.
        metrics: (sum, count) by name; losses in nats.
        num_tokens: tokens without padding.
        num_sentences: sentences (images).
        gradient_norm: before clipping, of the mean loss per token.
        clipped: whether the gradient was clipped.
        loss_scale: for float16.
        telemetry: scalars for TensorBoard.
        interrupted: a process received a signal.
        time_is_up: a process found that the time is up.
    """

    plan: UpdatePlan
    metrics: dict[str, tuple[float, float]]
    num_tokens: float
    num_sentences: float
    gradient_norm: float
    clipped: bool
    loss_scale: float | None = None
    telemetry: dict[str, float] = field(default_factory=dict)
    interrupted: bool = False
    time_is_up: bool = False


@dataclass(frozen=True)
class LaunchedUpdate:
    """An update whose numbers may still be on their way from the device.

    Args:
        plan: what was asked for.
        names: names of the metrics.
        values: float64 [1 + HEAD + 2 * metrics + batches] on the device: the gradient's norm before
            clipping; sums over all processes; each batch's own loss.
        ids: sample ids of each batch of this process.
        skipped: gradients overflowed and the optimiser made no step.
        loss_scale: for float16.
        telemetry: scalars of the first batch.
    """

    plan: UpdatePlan
    names: list[str]
    values: Tensor
    ids: list[Tensor]
    skipped: bool
    loss_scale: float | None
    telemetry: dict[str, float]

    def read(self, clip_norm: float, process: ProcessGroup) -> UpdateResult:
        """Wait for the numbers and return them.

        Raises:
            TrainingError: the loss or the gradient is not finite.
        """
        gradient_norm, *values = self.values.tolist()
        head = dict(zip(HEAD, values, strict=False))
        pairs = values[len(HEAD) :]
        metrics = {name: (pairs[2 * i], pairs[2 * i + 1]) for i, name in enumerate(self.names)}
        if not self.skipped:
            self._check_finite(gradient_norm, metrics, pairs[2 * len(self.names) :], process)
        return UpdateResult(
            self.plan,
            metrics,
            head["num_tokens"],
            head["num_sentences"],
            gradient_norm,
            clipped=0 < clip_norm < gradient_norm,
            loss_scale=self.loss_scale,
            telemetry=self.telemetry,
            interrupted=head["interrupt_votes"] > 0,
            time_is_up=head["time_votes"] > 0,
        )

    def _check_finite(
        self,
        gradient_norm: float,
        metrics: dict[str, tuple[float, float]],
        losses: list[float],
        process: ProcessGroup,
    ) -> None:
        bad = [name for name, (total, _) in metrics.items() if not math.isfinite(total)]
        if math.isfinite(gradient_norm) and not bad:
            return
        # Every process sees the same sums, so all of them come here.
        suspects = process.gather(self._ids_of(losses, only_bad=True))
        if not any(suspects):
            suspects = process.gather(self._ids_of(losses, only_bad=False))
        what = f"{' and '.join(bad)} became" if bad else "the gradient is"
        ids = [str(number) for of_process in suspects for number in of_process]
        shown = ", ".join(ids[:SHOWN_IDS])
        more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
        raise TrainingError(
            f"update {self.plan.num_updates} (epoch {self.plan.epoch}): {what} not finite "
            f"(gradient norm {gradient_norm:g}); samples {shown}{more}. Lower --lr, lengthen "
            "--warmup-updates or set --clip-norm; earlier checkpoints are unharmed"
        )

    def _ids_of(self, losses: list[float], only_bad: bool) -> list[int]:
        batches = [
            ids.tolist()
            for ids, loss in zip(self.ids, losses, strict=True)
            if not (only_bad and math.isfinite(loss))
        ]
        return [number for batch in batches for number in batch]


class Updater:
    """Makes updates.

    Args:
        objective: the (wrapped) module that returns the loss.
        optimizer: holds the parameters to train.
        precision: number format.
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

    def run(self, batches: Sequence[tuple[Batch, int]], plan: UpdatePlan) -> LaunchedUpdate:
        """Make an update; the objective is in training mode.

        Args:
            batches: this process's batches with their weights, 1 or (to keep step with the other
                processes) 0.
            plan: learning rate, seed and so on.

        Raises:
            TrainingError: float16 without any loss scale that works.
        """
        torch.manual_seed(plan.seed)
        self._optimizer.zero_grad(set_to_none=True)
        sums, losses = _Sums(), []
        telemetry: dict[str, float] = {}
        for index, (batch, weight) in enumerate(batches):
            output = self._forward_backward(
                batch,
                weight,
                telemetry=plan.telemetry and index == 0,
                last=index == len(batches) - 1,
            )
            losses.append(output.loss.detach())
            sums.add(output, batch, weight)
            telemetry = telemetry or output.telemetry
        names = list(sums.totals)
        vector = self._process.sum(self._vector(sums, plan))
        gradient_norm = self._normalise_gradients(vector[0])
        set_learning_rate(self._optimizer, plan.lr)
        skipped = not self._precision.step(self._optimizer)
        return LaunchedUpdate(
            plan,
            names,
            torch.cat([gradient_norm.double().view(1), vector, torch.stack(losses).double()]),
            [batch.ids for batch, _ in batches],
            skipped,
            self._precision.loss_scale,
            telemetry,
        )

    def _forward_backward(
        self, batch: Batch, weight: int, telemetry: bool, last: bool
    ) -> LossOutput:
        # Gradients are exchanged once, with the last batch.
        objective = self._objective
        exchange: AbstractContextManager[None] = nullcontext()
        if isinstance(objective, DistributedDataParallel) and not last:
            exchange = objective.no_sync()
        with exchange:
            with self._precision.autocast():
                output: LossOutput = self._objective(
                    batch.to(self._process.device), telemetry=telemetry
                )
            self._precision.backward(output.loss * weight)
        return output

    def _vector(self, sums: _Sums, plan: UpdatePlan) -> Tensor:
        head = [
            sums.sample_size,
            sums.num_tokens,
            sums.num_sentences,
            plan.interrupt_vote,
            plan.time_vote,
        ]
        device = self._process.device
        parts = [torch.tensor(head, dtype=torch.float64, device=device)]
        for name, total in sums.totals.items():
            count = torch.tensor(sums.counts[name], dtype=torch.float64, device=device)
            parts.append(torch.stack([total.double(), count]))
        return torch.cat(parts)

    @torch.no_grad()
    def _normalise_gradients(self, sample_size: Tensor) -> Tensor:
        """Turn summed gradients into those of the mean loss, and clip; returns the norm before.

        The backward pass of several processes has averaged their sums, which ``world_size``
        undoes.
        """
        self._precision.unscale(self._optimizer)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        factor = (self._process.world_size / sample_size.clamp(min=1)).to(gradients[0].dtype)
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))) * factor
        if self._clip_norm > 0:
            factor = factor * (self._clip_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, factor)
        return norm


def all_metrics(output: LossOutput) -> dict[str, tuple[Tensor, float]]:
    """Return (sum, count) of the objective's metrics, the loss among them."""
    metrics = {name: (metric.total, metric.count) for name, metric in output.metrics.items()}
    if "loss" not in metrics:
        metrics = {"loss": (output.loss.detach(), output.sample_size), **metrics}
    return metrics


def update_seed(seed: int, num_updates: int, rank: int) -> int:
    """Return the seed of an update's random numbers.

    It depends on nothing that happened before, so a resumed training draws the same ones.
    """
    return int(np.random.SeedSequence((seed, num_updates, rank)).generate_state(1, np.uint64)[0])
