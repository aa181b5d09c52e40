"""Validation: the average loss on held-out batches, and scores that need more than a loss."""

from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from relu_nmt.errors import ConfigError
from relu_nmt.training.batches import BatchSource, Scorer, load_ahead
from relu_nmt.training.config import ValidationConfig
from relu_nmt.training.distributed import ProcessGroup
from relu_nmt.training.meters import add_metrics, metric_averages
from relu_nmt.training.precision import Precision
from relu_nmt.training.update import all_metrics


class Validator:
    """Computes a validation set's metrics.

    Args:
        objective: the module that returns the loss, not wrapped for several processes.
        sources: batches by name of the validation set.
        scorers: further metrics by name of the validation set.
        precision: number format.
        process: this process; the batches are shared out.
        num_workers: threads that load batches.
    """

    def __init__(
        self,
        objective: nn.Module,
        sources: Mapping[str, BatchSource],
        scorers: Mapping[str, Scorer],
        precision: Precision,
        process: ProcessGroup,
        num_workers: int,
    ) -> None:
        self._objective = objective
        self.sources = sources
        self._scorers = scorers
        self._precision = precision
        self._process = process
        self._num_workers = num_workers

    def run(
        self, subset: str, weights: AbstractContextManager, max_batches: int | None = None
    ) -> dict[str, float]:
        """Return the metrics of a validation set; losses in bits. Back to training mode afterwards.

        Args:
            subset: its name.
            weights: context in which the model has the weights to validate.
            max_batches: only so many batches, and no scorer.
        """
        source = self.sources[subset]
        count = source.begin_epoch(1)
        if max_batches is not None:
            count = min(count, max_batches)
        mine = range(self._process.rank, count, self._process.world_size)
        totals: dict[str, Tensor] = {}
        counts: dict[str, float] = {}
        self._objective.eval()
        with weights, torch.no_grad():
            pinned = self._process.device.type == "cuda"
            for batch in load_ahead(source.load, mine, self._num_workers, pinned):
                with self._precision.autocast():
                    output = self._objective(batch.to(self._process.device))
                # The totals stay on the device, so that a GPU need not wait for each batch.
                for name, (total, weight) in all_metrics(output).items():
                    totals[name] = totals.get(name, 0) + total.double()
                    counts[name] = counts.get(name, 0) + weight
            sums = {name: (float(total), counts[name]) for name, total in totals.items()}
            metrics = metric_averages(self._over_processes(sums))
            if subset in self._scorers and max_batches is None:
                metrics |= self._scorers[subset].score()
        self._objective.train()
        return metrics

    def check(self, config: ValidationConfig, weights: AbstractContextManager) -> None:
        """Validate on little data, and see that the metric of the best checkpoint exists.

        Raises:
            ConfigError: there is no such metric.
        """
        subset = next(iter(self.sources))
        names = list(self.run(subset, weights, max_batches=self._process.world_size))
        if subset in self._scorers:
            names += self._scorers[subset].metric_names
            self._objective.eval()
            self._scorers[subset].check()
            self._objective.train()
        if config.best_checkpoint_metric not in names:
            raise ConfigError(
                f"--best-checkpoint-metric {config.best_checkpoint_metric}: the validation set "
                f"'{subset}' has only {', '.join(names)}"
                + ("; bleu needs --eval-bleu" * (config.best_checkpoint_metric == "bleu"))
            )

    def _over_processes(
        self, sums: dict[str, tuple[float, float]]
    ) -> dict[str, tuple[float, float]]:
        total: dict[str, tuple[float, float]] = {}
        for one in self._process.gather(sums):
            add_metrics(total, one)
        return total
