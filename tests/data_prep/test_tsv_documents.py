import gzip
import itertools

import pytest
import tsv_documents
from prep_tools.command import run_script

from tests.commands import command_line
from tests.data_prep.made_archives import corpus_pairs, counts, lines, side_of, word


def run(folder, *arguments):
    flags = ["--source-lang", "de", "--target-lang", "en", "--out", folder / "out"]
    words = command_line([flags, arguments])
    return run_script(tsv_documents.make_parser(), tsv_documents.make_corpus, words)


def table(documents, kind, extra=()):
    """Return the lines of a table of documents of 5 pairs each, English before German."""
    rows = ""
    for d, n in itertools.product(range(documents), range(5)):
        texts = [f"x{kind}{word(n)} y{word(d)}", f"q{kind}{word(n)} r{word(d)}"]
        rows += "\t".join([f"d{d}", str(n), *extra, *texts]) + "\n"
    return rows


def test_held_out_tables_become_valid_and_test_by_turns(tmp_path):
    (tmp_path / "a.tsv").write_text(table(3, "a"), "utf-8")
    with gzip.open(tmp_path / "b.tsv.gz", "wt", encoding="utf-8") as file:
        file.write(table(2, "b", extra=["speaker"]))
    (tmp_path / "held.tsv").write_text(table(3, "h"), "utf-8")
    columns = ["--source-column", "-1", "--target-column", "-2"]
    tables = ["--train", tmp_path / "a.tsv", tmp_path / "b.tsv.gz"]
    held_out = ["--held-out-tables", tmp_path / "held.tsv"]
    assert run(tmp_path, tables, held_out, columns) == 0
    assert counts(tmp_path) == {"train": (5, 25), "valid": (2, 10), "test": (1, 5)}
    assert lines(tmp_path, "train.de")[:6] == ["qaa ra", "qab ra", "qac ra", "qad ra", "qae ra", ""]
    assert lines(tmp_path, "train.en")[18] == "xba ya"  # documents of one name in two tables
    assert lines(tmp_path, "test.en") == [f"xh{word(n)} yb" for n in range(5)]


def test_lines_that_training_has_are_removed_from_held_out_tables(tmp_path):
    (tmp_path / "a.tsv").write_text(table(3, "a"), "utf-8")
    (tmp_path / "held.tsv").write_text(table(4, "h") + table(1, "a"), "utf-8")
    assert (
        run(tmp_path, "--train", tmp_path / "a.tsv", "--held-out-tables", tmp_path / "held.tsv")
        == 0
    )
    assert counts(tmp_path) == {"train": (3, 15), "valid": (2, 10), "test": (2, 10)}


def test_without_them_documents_are_drawn(tmp_path):
    (tmp_path / "a.tsv").write_text(table(40, "a"), "utf-8")
    assert run(tmp_path, "--train", tmp_path / "a.tsv", "--near-copy", "1") == 0
    assert counts(tmp_path) == {"train": (36, 180), "valid": (2, 10), "test": (2, 10)}


def test_documents_of_three_tables_that_share_names_are_all_kept(tmp_path):
    tables = []
    for kind in "abc":
        (tmp_path / kind).mkdir()
        tables.append(tmp_path / kind / "table.tsv")
        tables[-1].write_text(table(100, kind), "utf-8")
    assert run(tmp_path, "--train", tables, "--near-copy", "2") == 0
    sizes = counts(tmp_path)
    assert sizes == {"train": (270, 1350), "valid": (15, 75), "test": (15, 75)}
    rows = "".join(path.read_text("utf-8") for path in tables).splitlines()
    sources = side_of(corpus_pairs(tmp_path / "out"), 0)
    assert sorted(sources) == sorted(row.split("\t")[2] for row in rows)


def test_a_name_in_several_places_is_reported(tmp_path, capsys):
    rows = table(50, "a").splitlines(keepends=True)
    again = [row.replace("\tx", "\tz").replace("\tq", "\tv") for row in rows[:10]]
    (tmp_path / "a.tsv").write_text("\ufeff" + "".join([*rows, *again]), "utf-8")
    assert run(tmp_path, "--train", tmp_path / "a.tsv", "--near-copy", "2") == 0
    assert "NOTE: 2 names of documents stand in several places" in capsys.readouterr().out
    documents, pairs = zip(*counts(tmp_path).values(), strict=True)
    assert (sum(documents), sum(pairs)) == (52, 260)


@pytest.mark.parametrize(
    ("lines", "message"),
    [("a\tb\tc\n", "a.tsv:1: 3 columns, expected 4 or more"), ("", "nothing is left for train")],
)
def test_an_error_names_the_bad_table(lines, message, tmp_path, capsys):
    (tmp_path / "a.tsv").write_text(lines, "utf-8")
    assert run(tmp_path, "--train", tmp_path / "a.tsv") == 2
    assert message in capsys.readouterr().err


def test_a_damaged_archive_and_a_missing_file_are_errors(tmp_path, capsys):
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(table(40, "a").encode())[:-40])
    assert run(tmp_path, "--train", tmp_path / "a.tsv.gz") == 2
    assert (
        "a.tsv.gz: cannot read the text: the compressed file is cut short"
        in capsys.readouterr().err
    )
    assert run(tmp_path, "--train", tmp_path / "none.tsv") == 2
    assert "none.tsv: cannot read the text: No such file" in capsys.readouterr().err


def test_column_0_is_refused(tmp_path, capsys):
    (tmp_path / "a.tsv").write_text(table(40, "a"), "utf-8")
    assert run(tmp_path, "--train", tmp_path / "a.tsv", "--source-column", "0") == 2
    assert "count from 1" in capsys.readouterr().err
