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
from relu_nmt.training.learner import Learner
from relu_nmt.training.log import Meters, add_metrics

SHOWN_IDS = 20
FIRST = "is the first that is not finite"


class StopCauses(NamedTuple):
    """Causes to stop the training after an update, in one process or over all processes."""

    num_signals: float
    share_of_time: float  # used share of ``--stop-time-hours``, the mean over the processes


NO_CAUSES = StopCauses(0, 0)


@dataclass
class UpdateSums:
    """Sums over the batches of an update, first in one process, then over all processes."""

    causes: StopCauses
    samples: float = 0.0
    tokens: float = 0.0
    sentences: float = 0.0
    metrics: dict[str, tuple[Any, float]] = field(default_factory=dict)

    def add(self, batch: Batch, weight: int, output: LossOutput) -> None:
        """Add a batch. One of weight 0 only gives the names of the metrics."""
        self.samples += weight * output.sample_size
        self.tokens += weight * batch.num_tokens
        self.sentences += weight * batch.num_sentences
        add_metrics(self.metrics, output.metrics, weight)

    def pack(self, device: torch.device) -> Tensor:
        """Return the sums as one vector that begins with the samples, float64."""
        options: dict[str, Any] = {"dtype": torch.float64, "device": device}
        scalars = [self.samples, self.tokens, self.sentences, *self.causes]
        numbers = [torch.tensor(scalars, **options)]
        for total, count in self.metrics.values():
            numbers.append(torch.stack([total.double(), torch.tensor(count, **options)]))
        return torch.cat(numbers)

    @classmethod
    def unpack(cls, values: list[float], names: Sequence[str]) -> "UpdateSums":
        """Return packed sums, whose metrics have these names."""
        samples, tokens, sentences, signals, share, *metrics = values
        pairs = zip(metrics[::2], metrics[1::2], strict=True)
        sums = dict(zip(names, pairs, strict=True))
        return cls(StopCauses(signals, share), samples, tokens, sentences, sums)


class UpdatePlan(NamedTuple):
    """The values that an update is made with."""

    num_updates: int  # number of the update, from 1
    epoch: int
    lr: float
    seed: int  # of the forward pass


@dataclass(frozen=True)
class PendingUpdate:
    """An update that was made. Its numbers may still be on the device, and not yet computed."""

    plan: UpdatePlan
    batches: Sequence[Batch]  # of this process
    losses: Sequence[Tensor]  # of these batches, scalars
    gradient_norm: Tensor  # before clipping, a scalar
    sums: Tensor  # over all processes, as :meth:`UpdateSums.pack` returns them
    metric_names: Sequence[str]
    skipped: bool  # gradients overflowed and the optimizer made no step
    loss_scale: float | None
    telemetry: Mapping[str, float]


def make_update(
    learner: Learner,
    plan: UpdatePlan,
    batches: Sequence[tuple[Batch, int]],
    causes: StopCauses = NO_CAUSES,
    wants_telemetry: bool = False,
) -> PendingUpdate:
    """Make an update of the objective, which is in training mode.

    The weight of a batch is 1, or 0 if it only keeps this process in step with other ones.
    ``wants_telemetry``: compute the telemetry of the first batch.
    """
    torch.manual_seed(plan.seed)
    learner.optimizer.zero_grad(set_to_none=True)
    sums = UpdateSums(causes)
    losses: list[Tensor] = []
    telemetry: Mapping[str, float] = {}
    for number, (batch, weight) in enumerate(batches, 1):
        # Processes exchange gradients once, with the last batch.
        exchange = exchanging(learner.wrapped, exchange=number == len(batches))
        with exchange, naming_batch(batch, f"update {plan.num_updates}"):
            with learner.autocast():
                on_device = batch.to(learner.process.device)
                is_shown = wants_telemetry and number == 1
                output: LossOutput = learner.wrapped(on_device, telemetry=is_shown)
            # Scale for float16, and by the weight, 0 for a batch without effect.
            learner.scaler.scale(output.loss * weight).backward()
        sums.add(batch, weight, output)
        losses.append(output.loss.detach())
        telemetry = telemetry or output.telemetry
    # Add up the processes, and make the step.
    learner.process.average(learner.statistics)
    sums_of_all = learner.process.sum(sums.pack(learner.process.device))
    gradient_norm = learner.normalize_gradients(sample_size=sums_of_all[0])
    for group in learner.optimizer.param_groups:
        group["lr"] = plan.lr * group["lr_scale"]
    finite = None
    if not is_sharded(learner.objective):
        # Keep the result of the test on the device, so that the CPU need not wait.
        finite = gradient_norm.isfinite() & sums_of_all.isfinite().all()
    skipped = not learner.step(finite)
    # Leave the numbers unread, so that the next update can start at once.
    return PendingUpdate(
        plan,
        [batch for batch, _ in batches],
        losses,
        gradient_norm,
        sums_of_all,
        list(sums.metrics),
        skipped=skipped,
        loss_scale=learner.loss_scale,
        telemetry=telemetry,
    )


def read_update(learner: Learner, update: PendingUpdate) -> tuple[Meters, StopCauses]:
    """Wait for the sums over all processes. Return them as meters and causes to stop."""
    plan = update.plan
    sums = UpdateSums.unpack(update.sums.tolist(), update.metric_names)
    norm = float(update.gradient_norm)
    bad = [name for name, (total, _) in sums.metrics.items() if not math.isfinite(total)]
    if not update.skipped and (bad or not math.isfinite(norm)):
        cause = "the gradient is"
        if bad:
            cause = f"{' and '.join(bad)} became"
        raise TrainingError(
            f"update {plan.num_updates} (epoch {plan.epoch}): {cause} not finite (gradient norm "
            f"{norm:g}); samples {_suspects(learner.process, update)}. Lower --lr, lengthen "
            "--warmup-updates or set --clip-norm; earlier checkpoints are unharmed"
        )
    clips = int(0 < learner.config.clip_norm < norm)
    meters = Meters(sums.metrics, sums.tokens, sums.sentences, 1, norm, clips)
    share = sums.causes.share_of_time / learner.process.world_size
    return meters, sums.causes._replace(share_of_time=share)


def _suspects(process: ProcessGroup, update: PendingUpdate) -> str:
    """Return the samples of batches whose losses are not finite, or of all if all are finite."""
    ids_by_batch = [batch.ids.tolist() for batch in update.batches]
    bad = []
    for ids_of_batch, loss in zip(ids_by_batch, update.losses, strict=True):
        if not loss.isfinite():
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


def describe_first_not_finite(learner: Learner, batches: Sequence[Batch]) -> str | None:
    """Describe the first weight, output or gradient of an update that is not finite, if any is."""
    objective = learner.objective
    for name, parameter in objective.named_parameters():
        if not _is_finite(parameter):
            return f"the weight {name}, from before, {FIRST}"
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
            loss = learner.loss(batch).loss
            # Name the module that finished first with a bad output.
            if not _is_finite(loss):
                return f"the output of {bad[0]} {FIRST}" if bad else f"the loss {FIRST}"
            loss.backward()
            broken = []
            for name, parameter in objective.named_parameters():
                if parameter.grad is not None and not _is_finite(parameter.grad):
                    broken.append(name)
            if broken:  # the backward pass begins with the last module
                # Name the broken parameter whose module came last in the forward pass.
                last_pass = {name: index for index, name in enumerate(order)}
                first = max(broken, key=lambda name: last_pass.get(name.rpartition(".")[0], -1))
                return f"the gradient of {first} {FIRST}"
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
