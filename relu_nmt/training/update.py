"""One update of the weights, and the cause of numbers that are not finite."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from relu_nmt.errors import TrainingError, some_of
from relu_nmt.modules.objective import LossOutput
from relu_nmt.training.batches import Batch, naming_batch
from relu_nmt.training.distributed import ProcessGroup, exchanging, is_sharded
from relu_nmt.training.log import Meters, add_metrics
from relu_nmt.training.state import Components

SHOWN_IDS = 20


class Votes(NamedTuple):
    """The votes of a process in an update, or the joint vote of all processes."""

    has_signal: float  # above 0: a signal has come to a process
    share_of_time: float  # used share of ``--stop-time-hours``, the mean over the processes


NO_VOTES = Votes(0, 0)


@dataclass
class Update:
    """An update. After :meth:`run` its numbers may still be on the device, and not yet computed."""

    num_updates: int  # number of the update, from 1
    epoch: int
    lr: float
    seed: int  # of the forward pass
    batches: Sequence[Batch] = ()  # of this process
    names: Sequence[str] = ()  # of the metrics
    # Float64 [6 + 2 * metrics + batches] on the device: the gradient's norm before clipping, sums
    # over all processes (counts, votes, metrics), and the loss of each batch.
    values: Tensor = field(default_factory=lambda: torch.empty(0))
    skipped: bool = False  # gradients overflowed and the optimizer made no step
    loss_scale: float | None = None
    telemetry: dict[str, float] = field(default_factory=dict)

    def run(
        self,
        parts: Components,
        batches: Sequence[tuple[Batch, int]],
        votes: Votes = NO_VOTES,
        wants_telemetry: bool = False,
    ) -> None:
        """Make an update of the objective, which is in training mode.

        The weight of a batch is 1, or 0 if it only keeps this process in step with other ones.
        ``wants_telemetry``: compute the telemetry of the first batch.
        """
        torch.manual_seed(self.seed)
        parts.optimizer.zero_grad(set_to_none=True)
        options: dict[str, Any] = {"dtype": torch.float64, "device": parts.process.device}
        counts = [0.0, 0.0, 0.0]  # of samples, tokens and sentences
        sums: dict[str, tuple[Any, float]] = {}
        losses: list[Tensor] = []
        for number, (batch, weight) in enumerate(batches, 1):
            telemetry = wants_telemetry and number == 1
            # Processes exchange gradients once, with the last batch.
            exchange = exchanging(parts.wrapped, exchange=number == len(batches))
            with exchange, naming_batch(batch, f"update {self.num_updates}"):
                with parts.autocast():
                    on_device = batch.to(parts.process.device)
                    output: LossOutput = parts.wrapped(on_device, telemetry=telemetry)
                # Scale for float16, and by the weight, 0 for a batch without effect.
                parts.scaler.scale(output.loss * weight).backward()
            losses.append(output.loss.detach())
            sizes = (output.sample_size, batch.num_tokens, batch.num_sentences)
            for index, size in enumerate(sizes):
                counts[index] += weight * size
            # A batch of weight 0 only gives the names of the metrics.
            metrics = all_metrics(output)
            add_metrics(sums, {n: (weight * t, weight * c) for n, (t, c) in metrics.items()})
            self.telemetry = self.telemetry or output.telemetry
        # Sum over the processes in one vector: [counts, votes, total and count of each metric].
        parts.process.average(parts.statistics)
        numbers = [torch.tensor([*counts, *votes], **options)]
        for total, count in sums.values():
            numbers.append(torch.stack([total.double(), torch.tensor(count, **options)]))
        vector = parts.process.sum(torch.cat(numbers))
        gradient_norm = parts.normalize_gradients(vector[0])
        for group in parts.optimizer.param_groups:
            group["lr"] = self.lr * group["lr_scale"]
        sums_of_all = torch.cat([gradient_norm.double().view(1), vector])
        # Keep the result of the test on the device, so that the CPU need not wait.
        finite = None if is_sharded(parts.objective) else sums_of_all.isfinite().all()
        self.skipped = not parts.step(finite)
        # Keep the numbers unread, so that the next update can start at once.
        self.values = torch.cat([sums_of_all, torch.stack(losses).double()])
        self.names = list(sums)
        self.batches = [batch for batch, _ in batches]
        self.loss_scale = parts.loss_scale

    def read(self, parts: Components) -> tuple[Meters, Votes]:
        """Wait for the sums over all processes. Return them and the joint vote."""
        gradient_norm, _, tokens, sentences, signals, times, *pairs = self.values.tolist()
        metrics: dict[str, tuple[float, float]] = {}
        bad: list[str] = []  # metrics that are not finite
        for index, name in enumerate(self.names):
            total, count = pairs[2 * index : 2 * index + 2]
            metrics[name] = (total, count)
            if not math.isfinite(total):
                bad.append(name)
        if not self.skipped and (bad or not math.isfinite(gradient_norm)):
            cause = "the gradient is"
            if bad:
                cause = f"{' and '.join(bad)} became"
            samples = _suspects(parts.process, self.batches, pairs[2 * len(self.names) :])
            raise TrainingError(
                f"update {self.num_updates} (epoch {self.epoch}): {cause} not finite "
                f"(gradient norm {gradient_norm:g}); samples {samples}. Lower --lr, lengthen "
                "--warmup-updates or set --clip-norm; earlier checkpoints are unharmed"
            )
        clips = int(0 < parts.config.clip_norm < gradient_norm)
        meters = Meters(metrics, tokens, sentences, 1, gradient_norm, clips)
        return meters, Votes(signals, times / parts.process.world_size)


def _suspects(process: ProcessGroup, batches: Sequence[Batch], losses: list[float]) -> str:
    """Return the samples of batches whose losses are not finite, or of all if all are finite."""
    ids_by_batch = [batch.ids.tolist() for batch in batches]
    bad = []
    for ids_of_batch, loss in zip(ids_by_batch, losses, strict=True):
        if not math.isfinite(loss):
            bad.append(ids_of_batch)
    # All processes have the same sums, so all of them call this.
    suspects = process.gather(bad)
    if not any(suspects):
        suspects = process.gather(ids_by_batch)
    ids: list[str] = []
    for batches_of_process in suspects:
        for numbers in batches_of_process:
            ids += map(str, numbers)
    return some_of(ids, SHOWN_IDS)


def all_metrics(output: LossOutput) -> Mapping[str, tuple[Tensor, float]]:
    """Return (sum, count) of the objective's metrics and the loss, by name."""
    if "loss" in output.metrics:
        return output.metrics
    return {"loss": (output.loss.detach(), float(output.sample_size)), **output.metrics}


def first_not_finite(parts: Components, batches: Sequence[Batch]) -> str | None:
    """Return the first weight, output or gradient of an update that is not finite, or None."""
    objective = parts.objective
    for name, parameter in objective.named_parameters():
        if not _is_finite(parameter):
            return f"the weight {name}, from before, is the first"
    names: dict[nn.Module, str] = {module: name for name, module in objective.named_modules()}
    order: list[str] = []  # modules in the order of their forward passes
    bad: list[str] = []  # modules with bad outputs, in this order

    def look(module: nn.Module, _inputs: Any, output: Any) -> None:
        order.append(names[module])
        if not _is_finite(output):
            bad.append(names[module])

    # Watch the outputs of all modules but the objective, which comes first.
    hooks = [module.register_forward_hook(look) for module in [*names][1:]]
    objective.zero_grad(set_to_none=True)
    try:
        for batch in batches:
            bad.clear()
            loss = parts.loss(batch).loss
            # Name the module that finished first with a bad output.
            if not _is_finite(loss):
                return f"the output of {bad[0]} is the first" if bad else "the loss is the first"
            loss.backward()
            broken = []
            for name, parameter in objective.named_parameters():
                if parameter.grad is not None and not _is_finite(parameter.grad):
                    broken.append(name)
            if broken:  # the backward pass begins with the last module
                # Name the broken parameter whose module came last in the forward pass.
                last_pass = {name: index for index, name in enumerate(order)}
                first = max(broken, key=lambda name: last_pass.get(name.rpartition(".")[0], -1))
                return f"the gradient of {first} is the first"
    finally:
        for hook in hooks:
            hook.remove()
        objective.zero_grad(set_to_none=True)
    return None


def _is_finite(output: Any) -> bool:
    """Return False if a floating-point tensor in the output of a module is not finite."""
    if isinstance(output, Tensor):
        return not output.is_floating_point() or bool(output.isfinite().all())
    if isinstance(output, Mapping):
        output = list(output.values())
    elif hasattr(output, "__dataclass_fields__"):
        output = list(vars(output).values())
    return not isinstance(output, list | tuple) or all(map(_is_finite, output))
