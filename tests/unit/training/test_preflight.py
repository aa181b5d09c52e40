"""What is tried before the first update changes nothing; what gives out is named."""

import errno
import os
from dataclasses import replace

import pytest
import torch
from torch import nn

from relu_nmt.attention.base import build_attention
from relu_nmt.attention.masks import Visibility
from relu_nmt.config.registry import Spec
from relu_nmt.errors import CheckpointError, OutOfMemoryError, TrainingError
from relu_nmt.training.batches import naming_batch
from relu_nmt.training.checkpoint import load_checkpoint
from relu_nmt.training.validation import leaving_no_trace
from tests.unit.training.toy import Toy, ToyModel, ToySource, json_lines


def stored(folder):
    path = folder / "checkpoint_last.safetensors"
    checkpoint = load_checkpoint(path, with_training_state=True)
    return {**checkpoint.model_tensors, **checkpoint.training_tensors}


@pytest.mark.parametrize("ema", [False, True])
def test_the_trial_changes_no_bit_and_predicts_the_memory(tmp_path, capsys, ema):
    for preflight in (True, False):
        folder = tmp_path / str(preflight)
        run = {"max_update": 9, "preflight": preflight}
        Toy(folder, run, ema={"store_ema": ema, "ema_decay": 0.9} if ema else {}).trainer().train()
    told = [x["message"] for x in json_lines(capsys.readouterr().out) if "preflight" in str(x)]
    assert len(told) == 1 and "inputs 2 x 4, targets 2 x 1" in told[0] and " GB" in told[0]
    left, right = stored(tmp_path / "True"), stored(tmp_path / "False")
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_random_numbers_buffers_and_gradients_come_back():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Dropout(0.5))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    with leaving_no_trace(model):
        model(torch.randn(3, 1, 4, 4)).sum().backward()
        assert not torch.equal(model[1].running_mean, before["1.running_mean"])
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_random_features_are_drawn_again():
    attention = build_attention(Spec("performer"), "encoder", 0, 1, 4, 0.0)
    with torch.no_grad():
        attention.directions.fill_(torch.nan)  # whatever memory holds before the first draw
    states = torch.ones(1, 1, 3, 4)
    with leaving_no_trace(nn.ModuleList([attention, nn.Linear(1, 1)])):
        attention(states, states, states, Visibility(3, 3))
    assert attention.seed_and_passes[1] == 0
    assert attention(states, states, states, Visibility(3, 3)).values.isfinite().all()


def test_a_checkpoint_that_cannot_be_written_is_found_at_once(tmp_path, monkeypatch):
    def full(*_, metadata):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("relu_nmt.training.checkpoint.save_file", full)
    source = ToySource()
    with pytest.raises(CheckpointError, match="No space left"):
        Toy(tmp_path, train=source).trainer().train()
    assert source.loaded == [(1, 0)]
    assert [path.name for path in tmp_path.iterdir()] == []


def test_an_error_of_memory_names_the_shape():
    batch = ToySource().load(1)
    told = r"update 7: .* inputs 3 x 4, targets 3 x 1"
    with pytest.raises(OutOfMemoryError, match=told), naming_batch(batch, "update 7"):
        torch.empty(1 << 50)
    with pytest.raises(RuntimeError, match="shape"), naming_batch(batch, "update 7"):
        torch.ones(2).view(3)


class Exhausting(ToySource):
    """As if a batch took more memory than there is."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def load(self, index):
        batch = super().load(index)
        return (
            replace(batch, inputs=Greedy(batch.inputs)) if (self.epoch, index) == self.at else batch
        )


class Greedy:
    def __init__(self, tensor):
        self.tensor = tensor

    def to(self, device):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize(("at", "what"), [((1, 0), "preflight"), ((1, 3), "update 4")])
def test_a_training_that_runs_out_of_memory_has_not_diverged(tmp_path, at, what):
    trainer = Toy(tmp_path, train=Exhausting(at)).trainer()
    with pytest.raises(OutOfMemoryError, match=f"{what}: out of memory"):
        trainer.train()
    assert not trainer.result.diverged


class Diverging(ToyModel):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, inputs):
        hidden = self.hidden(inputs)
        if self.how == "gradient":  # of the root of 0
            hidden = hidden + (0 * hidden).abs().sqrt()
        if self.how == "loss":
            return self.output(hidden) * torch.inf
        return self.output(hidden)


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("gradient", "the gradient of model.hidden.(weight|bias) is the first"),
        ("loss", "the output of model is the first"),
        ("weight", "the weight model.output.bias, from before, is the first"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_the_first_that_is_not_finite_is_named(tmp_path, monkeypatch, how, named, late):
    trainer = Toy(tmp_path, run={"clip_norm": 1.0, "preflight": False}).trainer()
    model = trainer.parts.model
    if how == "weight":
        monkeypatch.setattr(
            "relu_nmt.training.trainer.check_before_start",
            lambda *_: model.output.bias.data.fill_(torch.nan),
        )
    else:
        model.forward = Diverging.forward.__get__(model)
        model.how = how
    trainer._reads_late = late
    with pytest.raises(TrainingError, match=f"{named} that is not finite"):
        trainer.train()
