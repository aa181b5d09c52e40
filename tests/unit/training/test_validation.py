"""Validation, and trials before the first update."""

import errno
import os
from dataclasses import replace

import pytest
import torch

from relu_nmt.errors import CheckpointError, OutOfMemoryError, TrainingError
from relu_nmt.training.batches import naming_batch
from relu_nmt.training.checkpoint import save_checkpoint
from tests.outputs import containing, last_checkpoint, tensors, values
from tests.unit.training.toy import Toy, ToyModel, ToyScorer, ToySource, json_lines

BLEU = {"best_checkpoint_metric": "bleu"}
OLD = "nrefs:1|case:mixed|tok:13a|smooth:exp|version:2.6.0"
NEW = OLD.replace("13a", "zh")
# Without drop-out, so that the loss falls.
QUIET = {"dropout": 0.0, "logging": {"log_format": "simple"}}


def train(folder, scores, signature="", epochs=4, patience=-1, **options):
    return (
        Toy(
            folder,
            {"max_epoch": epochs, "patience": patience},
            **{"validation": BLEU, **QUIET, **options},
            scorer=ToyScorer(scores, signature),
        )
        .trainer()
        .train()
    )


def make_earlier(folder):
    """Make the last checkpoint one of a version that stored no signature."""
    checkpoint = last_checkpoint(folder)
    del checkpoint.metadata["training_state"]["best_signature"]
    save_checkpoint(folder / "checkpoint_last.safetensors", checkpoint)


def test_a_score_that_stays_0_while_the_loss_falls_gets_one_warning(tmp_path, capsys):
    train(tmp_path, [0.0, 0.004, 0.0, 0.0])
    out = capsys.readouterr().out
    assert out.count("WARNING: bleu stays 0 while the loss falls from") == 1
    assert "--sacrebleu-tokenizer char" in out and "--patience" not in out


@pytest.mark.parametrize("scores", [[0.0, 1.0, 0.0, 0.0], [0.0]])
def test_other_scores_get_no_warning(scores, tmp_path, capsys):
    train(tmp_path, scores, epochs=len(scores))
    assert "WARNING" not in capsys.readouterr().out


def test_a_loss_that_does_not_fall_gets_no_warning(tmp_path, capsys):
    train(tmp_path, [0.0] * 3, epochs=3, schedule={"lr": (0.0,)})
    assert "WARNING" not in capsys.readouterr().out


def test_patience_says_that_it_counts_zeros(tmp_path, capsys):
    results = train(tmp_path, [0.0] * 9, epochs=9, patience=2)
    assert results.epoch == 3
    assert "(--patience); bleu stayed 0 while the loss fell" in results.ended
    assert "--patience counts such scores" in capsys.readouterr().out


def test_patience_with_other_scores_gives_the_plain_reason(tmp_path):
    results = train(tmp_path, [1.0] * 9, epochs=9, patience=2)
    assert results.ended == "no better bleu in 2 validations (--patience)"


def test_signatures_stand_in_the_results_and_in_the_checkpoint(tmp_path):
    results = train(tmp_path, [1.0, 2.0], NEW, epochs=2)
    assert values(results.valid["valid"], "bleu_signature") == [NEW, NEW]
    assert last_checkpoint(tmp_path).metadata["training_state"]["best_signature"] == NEW


@pytest.mark.parametrize("earlier", [False, True])
def test_a_best_score_of_another_tokenizer_is_forgotten(earlier, tmp_path, capsys):
    train(tmp_path, [9.0, 0.1, 0.1], OLD, epochs=9, patience=2)
    if earlier:
        make_earlier(tmp_path)
    results = train(tmp_path, [5.0, 4.0, 3.0], NEW, epochs=9, patience=2)
    out = capsys.readouterr().out
    assert out.count("note: the best bleu so far, 9, was measured otherwise") == 1
    assert ("by an earlier version" if earlier else OLD) in out and f"scores are now ({NEW})" in out
    assert (results.best_score, results.epoch) == (5.0, 6)
    assert results.valid["valid"][3]["best_bleu"] == 5.0


def test_a_plateau_of_another_metric_is_forgotten(tmp_path):
    plateau = {"schedule": {"lr_scheduler": "reduce_lr_on_plateau"}}
    train(tmp_path, [90.0], epochs=1, **plateau)
    other = {"best_checkpoint_metric": "bias", "maximize_best_checkpoint_metric": True}
    train(tmp_path, [1.0], epochs=2, validation=other, **plateau)
    assert last_checkpoint(tmp_path).metadata["training_state"]["schedule"]["best"] < 90


@pytest.mark.parametrize("was", [None, OLD, OLD.replace("2.6.0", "2.4.3")])
def test_a_best_score_of_the_same_tokenizer_stays(was, tmp_path, capsys):
    train(tmp_path, [9.0], was or OLD, epochs=1)
    if was is None:
        make_earlier(tmp_path)
    assert train(tmp_path, [5.0], OLD, epochs=2).best_score == 9.0
    assert "measured otherwise" not in capsys.readouterr().out


def test_the_best_score_of_another_validation_set_is_forgotten(tmp_path, capsys):
    sets = {"valid": ToySource(2), "test": ToySource(3)}
    train(tmp_path, [9.0, 8.0], OLD, epochs=2, patience=3, valid=sets)
    sets = dict(reversed(sets.items()))
    results = train(tmp_path, [5.0, 4.0], OLD, epochs=4, patience=3, valid=sets)
    note = "note: the best bleu so far, 9, is of the validation set valid, no longer the first"
    assert capsys.readouterr().out.count(note) == 1
    assert results.best == {"metric": "bleu", "value": 5.0, "num_updates": 21}
    assert results.valid["test"][2]["best_bleu"] == 5.0
    assert last_checkpoint(tmp_path).metadata["training_state"]["bad_validations"] == 1
    # Without a change, and with a further set behind the first one, nothing is forgotten.
    sets["valid1"] = ToySource(1)
    assert train(tmp_path, [4.5], OLD, epochs=5, patience=3, valid=sets).best_score == 5.0
    assert "no longer the first" not in capsys.readouterr().out


def test_the_schedule_forgets_the_other_score_too(tmp_path):
    schedule = {"lr_scheduler": "reduce_lr_on_plateau", "lr_shrink": 0.5}
    train(tmp_path, [9.0, 5.0], OLD, epochs=2, schedule=schedule)
    assert last_checkpoint(tmp_path).metadata["training_state"]["schedule"]["factor"] == 0.5
    train(tmp_path, [1.0], NEW, epochs=3, schedule=schedule)
    assert last_checkpoint(tmp_path).metadata["training_state"]["schedule"] == {
        "factor": 0.5,
        "best": 1.0,
        "bad_epochs": 0,
    }


@pytest.mark.parametrize("ema", [False, True])
def test_the_trial_changes_no_bit_and_predicts_the_memory(tmp_path, capsys, ema):
    for preflight in (True, False):
        folder = tmp_path / str(preflight)
        run = {"max_update": 9, "preflight": preflight}
        Toy(
            folder, run, optimizer={"store_ema": ema, "ema_decay": 0.9} if ema else {}
        ).trainer().train()
    notes = values(json_lines(capsys.readouterr().out), "message")
    notes = containing(notes, "preflight")
    assert len(notes) == 1 and "inputs 2 x 4, targets 2 x 1" in notes[0] and " GB" in notes[0]
    left = tensors(tmp_path / "True")
    torch.testing.assert_close(left, tensors(tmp_path / "False"), rtol=0, atol=0)


def test_a_checkpoint_that_cannot_be_written_is_found_at_once(tmp_path, monkeypatch):
    def full(*_, metadata):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("relu_nmt.training.checkpoint.save_file", full)
    source = ToySource()
    with pytest.raises(CheckpointError, match="No space left"):
        Toy(tmp_path, train=source).trainer().train()
    assert source.loaded == [(1, 0)]
    assert not os.listdir(tmp_path)


def test_an_error_of_memory_names_the_shape():
    batch = ToySource().load(1)
    message = r"update 7: .* inputs 3 x 4, targets 3 x 1"
    with pytest.raises(OutOfMemoryError, match=message), naming_batch(batch, "update 7"):
        torch.empty(1 << 50)
    with pytest.raises(RuntimeError, match="shape"), naming_batch(batch, "update 7"):
        torch.ones(2).view(3)


class Exhausting(ToySource):
    """Fail as if a batch took more memory than there is."""

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
    model = trainer.learner.model
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
