"""The log of a training, and the curves that are read from it and from results."""

import contextlib
import errno
import io
import itertools
import json
import math
import threading

import pytest

from relu_nmt.errors import ConfigError, DataError
from relu_nmt.jobs.analyze.curves import curve_rows, read_curves
from relu_nmt.jobs.analyze.plots import course_panels
from relu_nmt.training.config import TrainerConfig
from relu_nmt.training.log import Meters, TrainingLog, format_value, metric_averages, rounded
from relu_nmt.training.save_dir import TrainingResult, entry


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
        log.begin_epoch(1, 99, 1102)
        log.advance()
        log.updates(1, STATS)
        log.end_epoch(1, STATS)
        log.validation(1, "valid", STATS)
        log.say("a remark")
        log.close()
    return stream.getvalue().splitlines()


def test_simple_lines_have_the_form_of_fairseq():
    inner, epoch, valid, remark = lines_of("simple")
    assert inner.endswith(
        "| INFO | train_inner | epoch 001:    100 / 1102 "
        "loss=3.142, ppl=8.82, num_updates=100, lr=1.25e-05"
    )
    summary = "loss 3.142 | ppl 8.82 | num_updates 100 | lr 1.25e-05"
    assert epoch.endswith(f"| INFO | train | epoch 001 | {summary}")
    assert valid.endswith(f"| INFO | valid | epoch 001 | valid on 'valid' subset | {summary}")
    assert remark.endswith("| INFO | train | a remark")


def test_json_lines_have_the_values_of_the_log():
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
    assert "100/1102" in bar


def test_the_log_file_gets_what_the_screen_gets(tmp_path):
    path = tmp_path / "new" / "log.txt"
    lines = lines_of("simple", log_file=str(path))
    assert path.read_text().splitlines() == lines
    lines_of("simple", log_file=str(path))
    assert len(path.read_text().splitlines()) == 2 * len(lines)
    with pytest.raises(ConfigError, match=r"--log-file .* cannot be written"):
        TrainingLog(TrainerConfig(log_file=str(tmp_path)))


def test_a_quiet_process_prints_nothing(tmp_path, capsys):
    log = TrainingLog(TrainerConfig(log_format="tqdm", log_file=str(tmp_path / "x")), quiet=True)
    log.begin_epoch(1, 0, 10)
    log.updates(1, STATS)
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


TELEMETRY = {
    "attention/encoder.0.0/entropy": 1.0,
    "attention/encoder.1.1/entropy": 2.0,
    "attention/decoder.0.n4-7/entropy": 9.0,
    "attention/cross.0.0/sum": math.inf,
}


def stats(updates, loss):
    return {"loss": loss, "nll_loss": loss - 1, "attention_norm": 0.5, "num_updates": updates}


def written_log(folder, form):
    """Return the file of a log: updates, a validation, an epoch, and updates done again."""
    path = folder / "train.log"
    log = TrainingLog(TrainerConfig(log_format=form, log_file=str(path)), shown=False)
    log.say("epoch 001 is here")
    log.begin_epoch(1, 50, 100)
    log.updates(1, stats(50, 6.0))
    log.telemetry(1, 50, TELEMETRY)
    log.begin_epoch(1, 100, 100)
    log.updates(1, stats(100, 99.0))
    log.updates(1, stats(100, 5.0))
    log.validation(1, "valid", {**stats(100, 5.5), "bleu": 12.5})
    log.end_epoch(1, stats(100, 5.2))
    log.close()
    return path


@pytest.mark.parametrize("mark", ["\x85", "\u2028", "\x7f"])
def test_a_line_of_a_log_ends_in_a_line_feed(tmp_path, mark):
    path = tmp_path / "train.log"
    path.write_text(f'{{"num_updates": 50, "loss": 6.0, "run": "a{mark}b"}}\n', "utf-8")
    assert read_curves(path)["train", "loss"] == {50: 6.0}


@pytest.mark.parametrize("form", ["json", "simple"])
def test_curves_are_read_from_a_log_of_either_format(tmp_path, form):
    curves = read_curves(written_log(tmp_path, form))
    assert curves["train", "loss"] == {50: 6.0, 100: 5.0}
    assert curves["train", "attention_norm"] == {50: 0.5, 100: 0.5}
    assert curves["valid", "nll_loss"] == {100: 4.5}
    assert curves["valid", "bleu"] == {100: 12.5}
    telemetry = {key[1]: values for key, values in curves.items() if key[0] == "telemetry"}
    assert telemetry == ({"encoder entropy": {50: 1.5}} if form == "json" else {})
    assert not {"epoch", "update", "num_updates"} & {metric for _, metric in curves}
    rows = list(curve_rows("own", curves))
    assert rows[0] == {
        **{"training": "own", "split": "train", "metric": "loss"},
        **{"num_updates": 50, "value": 6.0},
    }


def test_the_results_of_a_training(tmp_path):
    result = TrainingResult(tmp_path)
    speed = {"wps": 9.0, "ups": 1.0, "train_wall": 2.0}
    for updates, loss in ((10, 7.0), (20, 6.0), (30, math.nan)):
        result.train.append(entry(1, {**stats(updates, loss), **speed}))
    result.valid["dev"] = [entry(1, {"loss": 6.5, "num_updates": 20})]
    result.write()
    curves = read_curves(tmp_path / "results.json")
    assert curves["train", "loss"] == {10: 7.0, 20: 6.0}
    assert curves["dev", "loss"] == {20: 6.5}


def test_the_telemetry_of_a_log_gives_means_over_slots_and_the_growth_of_outputs(tmp_path):
    lines = ["$ relu-nmt-train ...", '{"epoch": 1, "num_updates": 9, "loss": 3}', '{"telemetry": {']
    for updates, scale in ((100, 1.0), (200, 3.0)):
        scalars = {f"attention/encoder.0.{head}/query_norm": scale + head for head in range(2)}
        scalars |= {"attention/encoder.0.0/output_square": None, "attention/cross.0.0/key_norm": 2}
        for layer, name in itertools.product(range(2), ("1", "2-3", "4-7")):
            mean = sum(map(int, name.split("-"))) / len(name.split("-"))
            tag = f"attention/decoder.{layer}.n{name}"
            scalars[f"{tag}/output_square"] = 5 * mean ** (scale - 1)
        lines.append(json.dumps({"epoch": 1, "num_updates": updates, "telemetry": scalars}))
    path = tmp_path / "train.log"
    path.write_text("\n".join([*lines, '{"epoch": 1, "telemetry": {"att']))
    curves = read_curves(path)
    assert curves["telemetry", "encoder query_norm"] == {100: 1.5, 200: 3.5}
    assert curves["telemetry", "cross key_norm"] == {100: 2.0, 200: 2.0}
    growth = curves["telemetry", "decoder output_growth"]
    assert growth == pytest.approx({100: 0.0, 200: 2.0})
    [_, panels] = course_panels({"own": {**curves, ("train", "loss"): {1: 3.0, 2: 2.0}}})
    assert set(panels) >= {("telemetry", "decoder output_growth"), ("telemetry", "cross key_norm")}


def test_panels_have_the_curves_of_two_points_or_more(tmp_path):
    curves = read_curves(written_log(tmp_path, "json"))
    [losses] = course_panels({"own": curves})  # a single point gives no curve
    assert ("valid", "bleu") not in losses and ("train", "loss") in losses
    for points in curves.values():
        points[200] = 1.0
    losses, telemetry = course_panels({"own": curves})
    assert ("valid", "nll_loss") in losses and ("train", "attention_norm") in losses
    assert ("valid", "bleu") in losses and ("train", "gnorm") not in losses
    assert list(telemetry) == [("telemetry", "encoder entropy")]
    assert course_panels({}) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"epoch 1 loss 3\n", b"{}", b'{"train": []}', b"[1]", b'{"train": 1}\n{"epoch": 1}'],
)
def test_a_file_without_a_course_is_an_error_unless_it_may_be_empty(tmp_path, content):
    path = tmp_path / "some.log"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"some.log: no course of a training in it"):
        read_curves(path)
    assert not read_curves(path, may_be_empty=True)


@pytest.mark.parametrize(
    "content",
    [
        {"train": [1, None, {"num_updates": "3", "loss": 1}], "valid": {"v": 3}},
        {"train": [{"num_updates": 3, "loss": "x"}], "valid": []},
    ],
)
def test_damaged_results_are_an_error(tmp_path, content):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="no course of a training"):
        read_curves(path)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match=r"none.log: cannot read .*: No such file"):
        read_curves(tmp_path / "none.log")
    (tmp_path / "bin.log").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DataError, match=r"bin.log: cannot read .*: it is no text"):
        read_curves(tmp_path / "bin.log")


def test_a_full_disk_under_tensorboard_is_one_note_without_a_trace(tmp_path, capsys, monkeypatch):
    writer = pytest.importorskip("tensorboard.summary.writer.record_writer").RecordWriter
    hook = threading.excepthook

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    log = TrainingLog(TrainerConfig(tensorboard_logdir=str(tmp_path), log_format="none"))
    log.updates(1, {"num_updates": 1, "loss": 2.5})
    monkeypatch.setattr(writer, "write", full)
    monkeypatch.setattr(writer, "flush", full)
    for number in (2, 3):
        log.updates(1, {"num_updates": number, "loss": 2.5})
    log.close()
    note = "NOTE: TensorBoard's files cannot be written (No space left on device); "
    assert capsys.readouterr().err == f"{note}training goes on without\n"
    assert threading.excepthook is hook
