"""What a training makes of validation scores that cannot be compared, or that stay 0."""

import pytest

from relu_nmt.training.checkpoint import load_checkpoint, save_checkpoint
from tests.unit.training.toy import Toy, ToyScorer

BLEU = {"best_checkpoint_metric": "bleu"}
OLD, NEW = (f"nrefs:1|case:mixed|tok:{name}|smooth:exp|version:2.6.0" for name in ("13a", "zh"))
# Without drop-out, so that the loss falls.
QUIET = {"dropout": 0.0, "logging": {"log_format": "simple"}}


def train(folder, scores, signature=None, epochs=4, patience=-1, **more):
    return (
        Toy(
            folder,
            {"max_epoch": epochs, "patience": patience},
            **{"validation": BLEU, **QUIET, **more},
            scorers={"valid": ToyScorer(scores)},
            signatures={} if signature is None else {"bleu": signature},
        )
        .trainer()
        .train()
    )


def last(folder):
    return load_checkpoint(folder / "checkpoint_last.safetensors", with_training_state=True)


def make_earlier(folder):
    """Make the last checkpoint one of a version that stored no signature."""
    checkpoint = last(folder)
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
    assert [one["bleu_signature"] for one in results.valid["valid"]] == [NEW, NEW]
    assert last(tmp_path).metadata["training_state"]["best_signature"] == NEW


@pytest.mark.parametrize("earlier", [False, True])
def test_a_best_score_of_another_tokeniser_is_forgotten(earlier, tmp_path, capsys):
    train(tmp_path, [9.0, 0.1, 0.1], OLD, epochs=9, patience=2)
    if earlier:
        make_earlier(tmp_path)
    results = train(tmp_path, [5.0, 4.0, 3.0], NEW, epochs=9, patience=2)
    out = capsys.readouterr().out
    assert out.count("note: the best bleu so far, 9, was measured otherwise") == 1
    assert ("by an earlier version" if earlier else OLD) in out and f"scores are now ({NEW})" in out
    assert (results.best_score, results.epoch) == (5.0, 6)
    assert results.valid["valid"][3]["best_bleu"] == 5.0


@pytest.mark.parametrize("was", [None, OLD, OLD.replace("2.6.0", "2.4.3")])
def test_a_best_score_of_the_same_tokeniser_stays(was, tmp_path, capsys):
    train(tmp_path, [9.0], was or OLD, epochs=1)
    if was is None:
        make_earlier(tmp_path)
    results = train(tmp_path, [5.0], OLD, epochs=2)
    assert results.best_score == 9.0
    assert "measured otherwise" not in capsys.readouterr().out


def test_the_schedule_forgets_the_other_score_too(tmp_path):
    schedule = {"lr_scheduler": "reduce_lr_on_plateau", "lr_shrink": 0.5}
    train(tmp_path, [9.0, 5.0], OLD, epochs=2, schedule=schedule)
    assert last(tmp_path).metadata["training_state"]["schedule"]["factor"] == 0.5
    train(tmp_path, [1.0], NEW, epochs=3, schedule=schedule)
    assert last(tmp_path).metadata["training_state"]["schedule"] == {
        "factor": 0.5,
        "best": 1.0,
        "bad_epochs": 0,
    }
