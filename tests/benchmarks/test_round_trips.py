import sys

import pytest

from relu_nmt.io.text_lines import write_lines
from tests.example_modules import example_modules
from tests.markdown import cells


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
    for row, way in zip(rows, ("moses", "sentencepiece"), strict=True):
        file, steps, count, same, *shares = cells(row)
        assert (file, steps, count, same) == ("made.fr-de.tsv", way, "100", "100 / 100")
        assert set(shares) == {"0.0%"}
