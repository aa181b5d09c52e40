"""Validation: the average loss on held-out batches, and scores that need more than a loss."""

import torch
from torch import Tensor, nn

from relu_nmt.errors import ConfigError
from relu_nmt.training.batches import TrainingData, load_ahead
from relu_nmt.training.config import ValidationConfig
from relu_nmt.training.distributed import ProcessGroup
from relu_nmt.training.log import add_metrics, metric_averages
from relu_nmt.training.state import Components
from relu_nmt.training.update import all_metrics


class Validator:
    """Computes a validation set's metrics.

    Args:
        objective: the module that returns the loss, not wrapped for several processes.
        data: validation sets and scorers.
        parts: the weights to validate and the number format.
        process: this process; the batches are shared out.
        num_workers: threads that load batches.
    """

    def __init__(
        self,
        objective: nn.Module,
        data: TrainingData,
        parts: Components,
        process: ProcessGroup,
        num_workers: int,
    ) -> None:
        self._objective = objective
        self._data = data
        self._parts = parts
        self._process = process
        self._num_workers = num_workers

    def run(self, subset: str, max_batches: int | None = None) -> dict[str, float]:
        """Return the metrics of a validation set; losses in bits. Back to training mode afterwards.

        Args:
            subset: its name.
            max_batches: only so many batches, and no scorer.
        """
        source = self._data.valid[subset]
        count = source.begin_epoch(1)
        if max_batches is not None:
            count = min(count, max_batches)
        mine = range(self._process.rank, count, self._process.world_size)
        sums: dict[str, tuple[Tensor, float]] = {}
        self._objective.eval()
        with self._parts.average.applied(), torch.no_grad():
            pinned = self._process.device.type == "cuda"
            for batch in load_ahead(source.load, mine, self._num_workers, pinned):
                with self._parts.precision.autocast():
                    output = self._objective(batch.to(self._process.device))
                metrics = all_metrics(output)
                # The totals stay on the device, so that a GPU need not wait for each batch.
                add_metrics(
                    sums, {name: (t.double(), count) for name, (t, count) in metrics.items()}
                )
            over_processes: dict[str, tuple[float, float]] = {}
            read = {name: (float(total), count) for name, (total, count) in sums.items()}
            for one in self._process.gather(read):
                add_metrics(over_processes, one)
            averages = metric_averages(over_processes)
            if subset in self._data.scorers and max_batches is None:
                averages |= self._data.scorers[subset].score()
        self._objective.train()
        return averages

    def check(self, config: ValidationConfig) -> None:
        """Validate on little data, and see that the metric of the best checkpoint exists.

        Raises:
            ConfigError: there is no such metric.
        """
        subset = next(iter(self._data.valid))
        names = list(self.run(subset, max_batches=self._process.world_size))
        if subset in self._data.scorers:
            names += self._data.scorers[subset].metric_names
            self._objective.eval()
            self._data.scorers[subset].check()
            self._objective.train()
        if config.best_checkpoint_metric not in names:
            raise ConfigError(
                f"--best-checkpoint-metric {config.best_checkpoint_metric}: the validation set "
                f"'{subset}' has only {', '.join(names)}"
                + ("; bleu needs --eval-bleu" * (config.best_checkpoint_metric == "bleu"))
            )
