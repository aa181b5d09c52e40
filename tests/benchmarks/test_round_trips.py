import sys

import pytest

from relu_nmt.io.text_lines import write_lines
from tests.example_modules import example_modules


@pytest.mark.slow
def test_every_line_comes_out_and_changed_lines_are_counted(
    tmp_path, monkeypatch, capsys, quick_python
):
    monkeypatch.setattr(sys, "executable", quick_python)
    pairs = [f"a b {n} c\u2028d\tein\x85b {n} d" for n in range(50)]
    pairs += [f"l’homme: 10:30 {n}\tein »Wort« {n}" for n in range(50)]
    write_lines(table := tmp_path / "made.fr-de.tsv", pairs)
    monkeypatch.setattr(sys, "argv", ["round_trips.py", str(table), "--subword-size", "60"])
    with example_modules("../benchmarks", ["measuring", "round_trips"]) as modules:
        modules.round_trips.main()
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("| text | text steps | lines |")
    cells = [row.strip("| ").split(" | ") for row in rows]
    assert [row[:4] for row in cells] == [
        ["made.fr-de.tsv", way, "100", "100 / 100"] for way in ("moses", "sentencepiece")
    ]
    assert all(share == "0.0%" for row in cells for share in row[4:])
