"""16-bit formats and loss scaling, and updates. The scaling itself is tried on the CPU."""

import pytest
import torch
from torch import nn

from relu_nmt.errors import ConfigError, TrainingError
from relu_nmt.modules.objective import LossOutput
from relu_nmt.training.config import TrainerConfig
from relu_nmt.training.distributed import ProcessGroup
from relu_nmt.training.learner import Learner
from relu_nmt.training.update import UpdatePlan, make_update, read_update
from tests.unit.training.toy import Toy, ToyBatch

CPU = torch.device("cpu")


class Overflowing(nn.Module):
    """Its gradient overflows where the scaled loss is above ``limit``."""

    def __init__(self, limit):
        super().__init__()
        self.model = nn.Linear(3, 1, bias=False)
        nn.init.ones_(self.model.weight)
        self.limit = limit

    def forward(self, batch, telemetry=False):
        loss = self.model.weight.sum() * 2
        loss.register_hook(lambda g: torch.where(g > self.limit, torch.inf, g))
        return LossOutput(loss, 2)


def learner_of(objective, scale=None, min_scale=1e-4):
    """Return the learner of a training. A scale is tried on the CPU."""
    config = TrainerConfig()
    object.__setattr__(config, "min_loss_scale", min_scale)  # which needs --fp16, and so a GPU
    learner = Learner(objective, config, ProcessGroup(0, 1, CPU))
    if scale is not None:
        learner.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
    return learner


def plan(number):
    return UpdatePlan(number, 1, lr=0.1, seed=1)


def batch():
    return ToyBatch(torch.arange(2), torch.zeros(2, 4), torch.zeros(2, 1))


def test_an_overflow_leaves_the_update_out_and_lowers_the_scale():
    objective = Overflowing(limit=100.0)
    learner = learner_of(objective, 256.0)
    skipped = []
    for number in range(1, 7):
        before = objective.model.weight.detach().clone()
        update = make_update(learner, plan(number), [(batch(), 1)])
        skipped.append(update.skipped)
        assert torch.equal(before, objective.model.weight) == update.skipped
    # 256 and 128 overflow. Two good updates at 64 double it, and 128 overflows again.
    assert skipped == [True, True, False, False, True, False]
    assert learner.loss_scale == 64.0


def test_the_scale_does_not_change_the_gradient():
    norms = []
    for scale in (None, 64.0):
        learner = learner_of(Overflowing(limit=1e9), scale)
        update = make_update(learner, plan(1), [(batch(), 1), (batch(), 1)])
        norms.append(read_update(learner, update)[0].gradient_norms)
    assert norms == pytest.approx([3**0.5, 3**0.5])


def test_without_any_scale_that_works_training_stops():
    learner = learner_of(Overflowing(limit=-1.0), 4.0, min_scale=1.0)
    with pytest.raises(TrainingError, match="--min-loss-scale 1: the loss or the gradient"):
        for number in range(1, 9):
            make_update(learner, plan(number), [(batch(), 1)])


def test_the_scale_is_restored():
    learner = learner_of(Overflowing(1e9), 64.0)
    other = learner_of(Overflowing(1e9), 2.0)
    other.scaler.load_state_dict(learner.scaler.state_dict())
    assert other.loss_scale == 64.0
    plain = learner_of(Overflowing(1e9))
    plain.scaler.load_state_dict(learner.scaler.state_dict())
    assert plain.scaler.state_dict() == {}
    assert plain.loss_scale is None


def of_settings(config):
    return Learner(Overflowing(1e9), config, ProcessGroup(0, 1, CPU))


def test_number_formats_are_checked_and_used():
    with pytest.raises(ConfigError, match="--fp16 needs a CUDA GPU"):
        of_settings(TrainerConfig(fp16=True))
    linear = nn.Linear(2, 2)
    with of_settings(TrainerConfig(bf16=True)).autocast():
        assert linear(torch.ones(1, 2)).dtype == torch.bfloat16
    with of_settings(TrainerConfig()).autocast():
        assert linear(torch.ones(1, 2)).dtype == torch.float32


@pytest.mark.parametrize("fast", [True, False])
def test_slow_bfloat16_gives_a_note(fast, monkeypatch, capsys):
    monkeypatch.setattr("relu_nmt.training.precision.has_fast_bfloat16", lambda: fast)
    for config in (TrainerConfig(), TrainerConfig(bf16=True)):
        of_settings(config)
    note = "NOTE: this processor has no products of bfloat16, so --bf16 is slower than without\n"
    assert capsys.readouterr().err == ("" if fast else note)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("format_", ["fp16", "bf16", "fp32"])
def test_training_on_a_gpu_lowers_the_loss(tmp_path, monkeypatch, format_):
    gpu = ProcessGroup(0, 1, torch.device("cuda:0"))
    monkeypatch.setattr("tests.unit.training.toy.ProcessGroup", lambda *_: gpu)
    run = {"max_epoch": 20, **({} if format_ == "fp32" else {format_: True})}
    first = Toy(tmp_path, {**run, "max_epoch": 1}, dropout=0.0).trainer()
    first.train()
    trainer = Toy(tmp_path, run, dropout=0.0, optimizer={"store_ema": True}).trainer()
    results = trainer.train()
    assert results.epoch == 20
    assert results.memory["gpu_bytes"] > 0
    assert next(trainer.learner.model.parameters()).is_cuda
    assert trainer.state.best_score < first.state.best_score
