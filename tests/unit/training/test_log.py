import contextlib
import io
import json
import math

import pytest

from relu_nmt.errors import ConfigError
from relu_nmt.training.config import TrainerConfig
from relu_nmt.training.log import Meters, TrainingLog, format_value, metric_averages, rounded


def meters_of(loss, count, tokens, seconds):
    return Meters({"nll_loss": (loss, count)}, tokens, 2, 1, 0.5, clips=1, seconds=seconds)


def test_losses_are_shown_in_bits_and_averaged_over_tokens():
    meters = Meters()
    meters.add(meters_of(8 * math.log(2), 2, 10, 1.0))
    meters.add(meters_of(0.0, 6, 30, 3.0))
    averages = meters.stats(2, lr=0.1, loss_scale=None, wall=5.0)
    assert list(averages) == [
        *("nll_loss", "ppl", "wps", "ups", "wpb", "bsz", "num_updates", "lr", "gnorm", "clip"),
        *("train_wall", "wall"),
    ]
    assert averages["nll_loss"] == pytest.approx(1.0)
    assert averages["ppl"] == pytest.approx(2.0)
    assert (averages["wps"], averages["ups"], averages["wpb"]) == (10.0, 0.5, 20.0)
    assert (averages["bsz"], averages["gnorm"], averages["clip"]) == (2.0, 0.5, 100.0)


def test_other_metrics_stay_as_they_are():
    assert metric_averages({"attention_entropy": (3.0, 2.0)}) == {"attention_entropy": 1.5}
    assert math.isnan(metric_averages({"loss": (0.0, 0.0)})["loss"])
    assert metric_averages({"nll_loss": (5000.0, 1.0)})["ppl"] == math.inf


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("loss", 11.16249, "11.162"),
        ("ppl", 1234.567, "1234.57"),
        ("lr", 1.25e-07, "1.25e-07"),
        ("num_updates", 1234567, "1234567"),
        ("train_wall", 12.6, "13"),
        ("wps", 2345.67, "2345.7"),
        ("gnorm", math.inf, "inf"),
    ],
)
def test_numbers_are_rounded_as_fairseq_does(name, value, text):
    assert format_value(name, value) == text
    assert rounded("num_updates", 7) == 7


STATS = {"loss": 3.14159, "ppl": 8.8249, "num_updates": 100, "lr": 1.25e-05}


def lines_of(log_format, **settings):
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        log = TrainingLog(TrainerConfig(log_format=log_format, **settings))
        log.begin_epoch(1, 0, 1102)
        log.advance()
        log.updates(1, 100, 1102, STATS)
        log.end_epoch(1, STATS)
        log.validation(1, "valid", STATS)
        log.say("a remark")
        log.close()
    return stream.getvalue().splitlines()


def test_simple_lines():
    inner, epoch, valid, remark = lines_of("simple")
    assert inner.endswith(
        "| INFO | train_inner | epoch 001:    100 / 1102 "
        "loss=3.142, ppl=8.82, num_updates=100, lr=1.25e-05"
    )
    summary = "loss 3.142 | ppl 8.82 | num_updates 100 | lr 1.25e-05"
    assert epoch.endswith(f"| INFO | train | epoch 001 | {summary}")
    assert valid.endswith(f"| INFO | valid | epoch 001 | valid on 'valid' subset | {summary}")
    assert remark.endswith("| INFO | train | a remark")


def test_json_lines():
    inner, epoch, valid, remark = map(json.loads, lines_of("json"))
    assert inner == {
        **{"epoch": 1, "update": 0.091, "loss": 3.142, "ppl": 8.82},
        **{"num_updates": 100, "lr": 1.25e-05},
    }
    assert epoch["train_loss"] == valid["valid_loss"] == 3.142
    assert remark == {"message": "a remark"}


def test_json_has_no_infinity(capsys):
    TrainingLog(TrainerConfig(log_format="json")).validation(1, "v", {"ppl": math.inf})
    assert json.loads(capsys.readouterr().out) == {"epoch": 1, "v_ppl": None}


def test_telemetry_keeps_small_numbers(capsys):
    log = TrainingLog(TrainerConfig(log_format="json"))
    log.telemetry(2, 300, {"a/b": 0.000123456, "a/c": math.nan})
    assert json.loads(capsys.readouterr().out) == {
        **{"epoch": 2, "num_updates": 300},
        "telemetry": {"a/b": 0.0001235, "a/c": None},
    }


def test_none_prints_only_remarks():
    assert len(lines_of("none")) == 1


def test_tqdm_shows_numbers_in_the_bar(capsys):
    epoch, valid, remark = lines_of("tqdm")
    assert "epoch 001 | loss 3.142" in epoch
    assert "valid on 'valid' subset" in valid
    assert "a remark" in remark
    bar = capsys.readouterr().err
    assert "epoch 001" in bar
    assert "1/1102" in bar


def test_the_log_file_gets_what_the_screen_gets(tmp_path):
    path = tmp_path / "new" / "log.txt"
    shown = lines_of("simple", log_file=str(path))
    assert path.read_text().splitlines() == shown
    lines_of("simple", log_file=str(path))
    assert len(path.read_text().splitlines()) == 2 * len(shown)
    with pytest.raises(ConfigError, match=r"--log-file .* cannot be written"):
        TrainingLog(TrainerConfig(log_file=str(tmp_path)))


def test_a_quiet_process_prints_nothing(tmp_path, capsys):
    log = TrainingLog(TrainerConfig(log_format="tqdm", log_file=str(tmp_path / "x")), quiet=True)
    log.begin_epoch(1, 0, 10)
    log.updates(1, 1, 10, STATS)
    log.validation(1, "valid", STATS)
    log.say("x")
    assert capsys.readouterr() == ("", "")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("log_format", ["json", "tqdm"])
def test_a_log_that_is_not_shown_goes_to_its_file_only(tmp_path, capsys, log_format):
    config = TrainerConfig(log_format=log_format, log_file=str(tmp_path / "x"))
    log = TrainingLog(config, shown=False)
    log.begin_epoch(1, 0, 10)
    log.validation(1, "valid", STATS)
    log.close()
    assert capsys.readouterr() == ("", "")
    assert "3.142" in (tmp_path / "x").read_text()
