import io
import time

from relu_nmt.io import progress
from relu_nmt.io.progress import hidden_progress, progress_bar
from tests.unit.io.test_workers import wait_for


def test_plain_lines_without_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    with progress_bar("count de", 4_000_000) as advance:
        advance(1_000_000)
        advance(3_000_000)
    output = capsys.readouterr()
    assert output.out == ""
    lines = output.err.splitlines()
    assert [line.split(" MB")[0] for line in lines] == [
        "count de: 25% of 4.0",
        "count de: 100% of 4.0",
        "count de: 100% of 4.0",
    ]


def test_a_single_thing_has_no_plural(capsys):
    for total, unit in ((1, "batches"), (1, "files"), (2, "batches")):
        with progress_bar("read", total, unit):
            pass
    lines = [line.partition(",")[0] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["read: 0% of 1 batch", "read: 0% of 1 file", "read: 0% of 2 batches"]


def test_a_bar_on_a_terminal_reaches_100_percent(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress_bar("count de", 4_000_000) as advance:
        advance(4_000_000)
    assert "count de: 100%|" in capsys.readouterr().err


def test_long_waiting_prints_a_line(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_UNTIL_WAITING", 0.02)
    output = io.StringIO()
    monkeypatch.setattr("sys.stderr", output)
    with progress_bar("one line", 1, "lines", shows_waiting=True, only_if_slow=True):
        wait_for(lambda: output.getvalue().count("\n") > 2)
    lines = output.getvalue().splitlines()
    assert len(lines) > 2 and all(line.startswith("one line: 0% of 1 line, ") for line in lines)


def test_quick_work_may_print_nothing(capsys):
    with progress_bar("one line", 1, "lines", only_if_slow=True) as advance:
        advance(1)
    assert capsys.readouterr().err == ""


def test_hidden_progress_prints_no_waiting(capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_UNTIL_WAITING", 0.02)
    with hidden_progress(), progress_bar("one line", 1, "lines", shows_waiting=True):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_a_log_prints_the_lines_that_are_its_own(capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    lines = []
    with progress_bar("preflight", 2, "steps", only_if_slow=True, say=lines.append) as advance:
        advance(1)
    assert [line.split(",")[0] for line in lines][:1] == ["preflight: 50% of 2 steps"]
    assert capsys.readouterr().err == ""
