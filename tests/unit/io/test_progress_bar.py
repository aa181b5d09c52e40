from relu_nmt.io import progress_bar as progress


def test_plain_lines_without_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    with progress.progress_bar("count de", 4_000_000) as advance:
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


def test_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress.progress_bar("count de", 4_000_000) as advance:
        advance(4_000_000)
    assert "count de: 100%|" in capsys.readouterr().err
