"""A small regression problem with the trainer's interfaces, for tests."""

import argparse
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from relu_nmt.config import add_settings, read_settings
from relu_nmt.modules.objective import LossOutput
from relu_nmt.training.batches import TrainingData
from relu_nmt.training.config import OptimizerConfig, TrainerConfig
from relu_nmt.training.distributed import ProcessGroup
from relu_nmt.training.schedules import ScheduleConfig
from relu_nmt.training.trainer import Trainer


def parsed(settings_class, words):
    """Return settings as a command reads them from its words."""
    parser = argparse.ArgumentParser()
    add_settings(parser, settings_class)
    return read_settings(settings_class, parser.parse_args(words))


@dataclass(frozen=True)
class ToyBatch:
    ids: Tensor
    inputs: Tensor
    targets: Tensor

    @property
    def num_tokens(self) -> int:
        return 2 * len(self.ids)

    @property
    def num_sentences(self) -> int:
        return len(self.ids)

    def to(self, device):
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))


class ToySource:
    """Batches of unequal sizes. Batch ``i`` of epoch ``e`` always holds the same samples."""

    def __init__(self, count=7, poisoned=()):
        self.count = count
        self.poisoned = set(poisoned)
        self.epoch = 0
        self.loaded = []

    def begin_epoch(self, epoch):
        self.epoch = epoch
        return self.count

    def largest(self):
        return 0

    def load(self, index):
        self.loaded.append((self.epoch, index))
        generator = torch.Generator().manual_seed(1000 * self.epoch + index)
        size = 2 + index % 3
        ids = torch.arange(size) + 100 * index
        inputs = torch.randn(size, 4, generator=generator)
        targets = inputs.mean(1, keepdim=True)
        if index in self.poisoned:
            inputs[0, 0] = float("nan")
        return ToyBatch(ids, inputs, targets)


class ToyModel(nn.Module):
    def __init__(self, dropout=0.2):
        super().__init__()
        torch.manual_seed(0)
        self.hidden = nn.Linear(4, 8)
        self.output = nn.Linear(8, 1)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs):
        if self.training:
            self.calls += 1
        return self.output(self.dropout(self.hidden(inputs).tanh()))


class ToyObjective(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.telemetry_calls = 0

    def forward(self, batch, telemetry=False):
        self.telemetry_calls += telemetry
        squares = (self.model(batch.inputs) - batch.targets).square()
        # One sample may hold several units, as sentences hold tokens.
        loss = squares.sum() * 2
        size = 2 * len(batch.ids)
        scalars = {"toy/output": squares.mean().item()} if telemetry else {}
        return LossOutput(
            loss,
            size,
            {"nll_loss": (loss.detach(), size), "bias": (self.model.output.bias.detach().sum(), 1)},
            scalars,
        )


class ToyScorer:
    def __init__(self, scores=(1.0, 3.0, 2.0), signature=""):
        self.signatures = {"bleu": signature}
        self.scores = list(scores)
        self.checked = 0

    def check(self, largest):
        self.checked += 1

    def score(self):
        return {"bleu": self.scores.pop(0)}


@dataclass
class Toy:
    """Settings of a toy training. ``trainer`` builds it anew each time."""

    folder: Path
    run: dict = field(default_factory=dict)
    checkpoint: dict = field(default_factory=dict)
    validation: dict = field(default_factory=dict)
    logging: dict = field(default_factory=dict)
    schedule: dict = field(default_factory=dict)
    optimizer: dict = field(default_factory=dict)
    distributed: dict = field(default_factory=dict)
    dropout: float = 0.2
    train: ToySource = field(default_factory=ToySource)
    valid: dict = field(default_factory=lambda: {"valid": ToySource(2)})
    scorer: ToyScorer | None = None

    def trainer(self, objective=None) -> Trainer:
        settings = {"save_dir": str(self.folder), "num_workers": 0, "log_format": "json"}
        settings |= {"log_interval": 2, **self.run, **self.distributed, **self.checkpoint}
        config = TrainerConfig(
            optimizer=OptimizerConfig(weight_decay=0.01, **self.optimizer),
            schedule=ScheduleConfig(**{"lr": (0.05,), "warmup_updates": 3, **self.schedule}),
            **{**settings, **self.validation, **self.logging},
        )
        return Trainer(
            objective or ToyObjective(ToyModel(self.dropout)),
            TrainingData(self.train, self.valid, self.scorer),
            config,
            {"model_config": {"width": 8}, "args": {"lr": 0.05}},
            ProcessGroup(0, 1, torch.device("cpu")),
        )


def without(record, names):
    """Return a record without these fields."""
    return {name: value for name, value in record.items() if name not in names}


def json_lines(text):
    return list(map(json.loads, text.splitlines()))
