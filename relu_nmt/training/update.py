"""One update: forward and backward over its batches, in 16 bits too, then the optimiser's step."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relu_nmt.errors import TrainingError
from relu_nmt.modules.objective import LossOutput
from relu_nmt.training.batches import Batch
from relu_nmt.training.distributed import ProcessGroup
from relu_nmt.training.log import Meters, add_metrics
from relu_nmt.training.precision import Precision
from relu_nmt.training.preflight import telling_shape
from relu_nmt.training.sharding import exchanging, is_sharded, own_part

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


@dataclass(frozen=True)
class UpdateResult:
    """What one update did, over all its batches and processes.

    Args:
        meters: its numbers, but for the time.
        interrupted: a process received a signal.
        time_is_up: a process found that the time is up.
    """

    meters: Meters
    interrupted: bool
    time_is_up: bool


@dataclass(frozen=True)
class LaunchedUpdate:
    """An update whose numbers may still be on their way from the device.

    Args:
        plan: what was asked for.
        names: names of the metrics.
        values: float64 [1 + HEAD + 2 * metrics + batches] on the device: the gradient's norm before
            clipping; sums over all processes; each batch's own loss.
        batches: of this process.
        skipped: gradients overflowed and the optimiser made no step.
        loss_scale: for float16.
        telemetry: scalars of the first batch.
    """

    plan: UpdatePlan
    names: list[str]
    values: Tensor
    batches: list[Batch]
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
        bad = [name for name, (total, _) in metrics.items() if not math.isfinite(total)]
        if not self.skipped and (bad or not math.isfinite(gradient_norm)):
            what = f"{' and '.join(bad)} became" if bad else "the gradient is"
            raise TrainingError(
                f"update {self.plan.num_updates} (epoch {self.plan.epoch}): {what} not finite "
                f"(gradient norm {gradient_norm:g}); samples "
                f"{self._suspects(pairs[2 * len(self.names) :], process)}. Lower --lr, lengthen "
                "--warmup-updates or set --clip-norm; earlier checkpoints are unharmed"
            )
        clips = int(0 < clip_norm < gradient_norm)
        tokens, sentences = head["num_tokens"], head["num_sentences"]
        return UpdateResult(
            Meters(metrics, tokens, sentences, 1, gradient_norm, clips),
            interrupted=head["interrupt_votes"] > 0,
            time_is_up=head["time_votes"] > 0,
        )

    def _suspects(self, losses: list[float], process: ProcessGroup) -> str:
        """Return the samples of the batches whose losses are not finite, otherwise of all."""
        pairs = list(zip([batch.ids.tolist() for batch in self.batches], losses, strict=True))
        # Every process sees the same sums, so all of them come here.
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
        # Each process normalises by its own batch; what evaluation will use is the same in all.
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
            batches: this process's batches with their weights, 1 or (to keep step with the other
                processes) 0.
            plan: learning rate, seed and so on.

        Raises:
            TrainingError: float16 without any loss scale that works.
        """
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
            # A batch of weight 0 only makes the names of the metrics known.
            metrics = all_metrics(output)
            add_metrics(sums, {n: (weight * t, weight * c) for n, (t, c) in metrics.items()})
            telemetry = telemetry or output.telemetry
        self._process.average(self._statistics)
        options: dict[str, Any] = {"dtype": torch.float64, "device": self._process.device}
        parts = [torch.tensor([head[name] for name in HEAD], **options)]
        for total, count in sums.values():
            parts.append(torch.stack([total.double(), torch.tensor(count, **options)]))
        vector = self._process.sum(torch.cat(parts))
        gradient_norm = self._normalise_gradients(vector[0])
        for group in self._optimizer.param_groups:
            group["lr"] = plan.lr
        sums_of_all = torch.cat([gradient_norm.double().view(1), vector])
        finite = None if is_sharded(self._objective) else sums_of_all.isfinite().all()
        skipped = not self._precision.step(self._optimizer, finite)
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
        # Gradients are exchanged once, with the last batch.
        exchange = exchanging(self._objective, exchange=last)
        with exchange, telling_shape(batch, f"update {number}"):
            with self._precision.autocast():
                output: LossOutput = self._objective(
                    batch.to(self._process.device), telemetry=telemetry
                )
            self._precision.scaler.scale(output.loss * weight).backward()
        return output

    @torch.no_grad()
    def _normalise_gradients(self, sample_size: Tensor) -> Tensor:
        """Turn summed gradients into those of the mean loss, and clip; returns the norm before.

        The backward pass of several processes has averaged their sums, which ``world_size``
        undoes.
        """
        self._precision.scaler.unscale_(self._optimizer)
        gradients = [own_part(p.grad) for p in self._parameters if p.grad is not None]
        factor = (self._process.world_size / sample_size.clamp(min=1)).to(gradients[0].dtype)
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        if is_sharded(self._objective):
            norm = self._process.sum(norm.square()).sqrt()
        norm = norm * factor
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
