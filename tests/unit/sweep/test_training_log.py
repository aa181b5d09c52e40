"""Numbers from the log of a training."""

import json

import pytest

from relu_nmt.sweep.training_log import has_diverged, last_line, read_training_log


def write(path, *lines):
    text = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("\n".join(text) + "\n")
    return path


def update(number, wpb, wps, **more):
    return {"epoch": 1, "update": 0.1, "num_updates": number, "wpb": wpb, "wps": wps, **more}


def test_speed_is_that_of_all_stretches_but_the_first(tmp_path):
    path = write(
        tmp_path / "log",
        "$ relu-nmt-train",
        {"message": "no update"},
        update(10, 10.0, 10.0),
        update(20, 20.0, 100.0),
        "{broken",
        update(40, 30.0, 60.0, loss=4.5),
        {
            "epoch": 1,
            "train_loss": 5.0,
            "train_wpb": 9.0,
            "train_wps": 9.0,
            "train_num_updates": 40,
        },
        {"epoch": 1, "valid_loss": 5.0, "valid_nll_loss": 4.0, "valid_num_updates": 42},
        {"message": "done training in 61.5 seconds: the time is up (--stop-time-hours 0.01)"},
        {"message": "peak GPU memory: 1,234,567 bytes"},
    )
    found = read_training_log(path)
    # 10 updates in 2 s with 200 tokens, 20 updates in 10 s with 600 tokens.
    assert found.updates_per_second == pytest.approx(30 / 12)
    assert found.tokens_per_second == pytest.approx(800 / 12)
    assert (found.updates, found.valid_nll, found.train_loss) == (42, 4.0, 5.0)
    assert (found.seconds, found.gpu_memory) == (61.5, 1_234_567)


def test_a_resumed_training_repeats_updates(tmp_path):
    path = write(
        tmp_path / "log", update(10, 1.0, 1.0), update(20, 1.0, 2.0), update(15, 1.0, 9.0),
        update(25, 1.0, 4.0),
    )  # fmt: skip
    assert read_training_log(path).updates_per_second == pytest.approx(20 / (5 + 2.5))


def test_very_slow_updates_are_told_exactly(tmp_path):
    # The log has two decimals of updates per second: 0.0.
    lines = [update(n, 8192.0, 24.6, ups=0.0) for n in (1, 2, 3)]
    found = read_training_log(write(tmp_path / "log", *lines))
    assert found.updates_per_second == pytest.approx(24.6 / 8192)


def test_a_log_without_numbers(tmp_path):
    for path in (tmp_path / "absent", write(tmp_path / "log", "Killed")):
        found = read_training_log(path)
        assert found.updates is None
        assert found.tokens_per_second is None


def test_the_last_line_is_a_message_in_whatever_form(tmp_path):
    assert last_line(tmp_path / "absent") == ""
    assert last_line(write(tmp_path / "a", "first", {"message": "the end"}, "", " ")) == "the end"
    path = write(tmp_path / "b", "x" * 20_000, "error: update 3: loss became not finite (...)")
    assert last_line(path).startswith("error: update 3")
    assert has_diverged(path)
    assert not has_diverged(write(tmp_path / "c", "loss became not finite", "Killed"))
