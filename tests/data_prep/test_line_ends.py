"""The toolkit reads the same lines that the corpus scripts write."""

from pathlib import Path
from tempfile import TemporaryDirectory

import own_text
import pytest
import tsv_documents
import wmt14_en_de
from hypothesis import given
from hypothesis import strategies as st
from prep_tools import cleaning
from prep_tools import documents as docs
from prep_tools.command import run_script
from prep_tools.man_pages import read_man

from relu_nmt.io.text_lines import read_lines
from tests.data_prep.made_archives import corpus_pairs, counts, side_of, word

LANGUAGES = ("de", "en")
WITHIN_LINES = ["\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
TEXT = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\n")),
    st.text(st.sampled_from(["a", "\ufeff", *WITHIN_LINES]), max_size=4),
)
PAIRS = st.lists(st.tuples(TEXT, TEXT))


@given(PAIRS)
def test_written_documents_are_read_back(pairs):
    with TemporaryDirectory() as folder:
        document = docs.Document("x", tuple(pairs))
        paths = docs.write_documents([document], Path(folder) / "train", LANGUAGES, "none")
        assert list(cleaning.read_pairs(*paths)) == pairs
        for side, path in enumerate(paths):
            assert read_lines(path) == side_of(pairs, side)


@given(PAIRS)
def test_pairs_written_one_by_one_are_read_back(pairs):
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / language for language in LANGUAGES]
        assert wmt14_en_de.write_pairs(paths, pairs) == len(pairs)
        assert list(cleaning.read_pairs(*paths)) == pairs


def test_a_line_feed_within_a_sentence_ends_no_line(tmp_path):
    document = docs.Document("x", (("a\nb", "c\r\nd"), ("e", "f")))
    paths = docs.write_documents([document], tmp_path / "train", LANGUAGES, "tag")
    assert list(map(read_lines, paths)) == [["<d>", "a b", "e"], ["<d>", "c\r d", "f"]]


def made_pairs(mark):
    """300 pairs. The mark is inside source line 10 and target line 200."""
    pairs = [[f"q{n} r{n} s{n}", f"x{n} y{n}"] for n in map(word, range(300))]
    pairs[9][0] = pairs[9][0].replace(" ", f" {mark} ")
    pairs[199][1] = pairs[199][1].replace(" ", f" {mark} ")
    return pairs


def written_pairs(folder):
    """Return all pairs of a corpus, and their number in its report."""
    _, numbers = zip(*counts(folder).values(), strict=True)
    return sorted(map(list, corpus_pairs(folder / "out"))), sum(numbers)


@pytest.mark.parametrize("mark", WITHIN_LINES)
def test_own_text_may_contain_other_line_marks(tmp_path, mark):
    pairs = made_pairs(mark)
    for side, (language, end) in enumerate(zip(LANGUAGES, ("\n", "\r\n"), strict=True)):
        text = end.join([*side_of(pairs, side), ""])
        (tmp_path / f"text.{language}").write_bytes(text.encode())
    flags = ["--src", str(tmp_path / "text.de"), "--tgt", str(tmp_path / "text.en")]
    flags += ["--out", str(tmp_path / "out")]
    assert run_script(own_text.make_parser(), own_text.make_corpus, flags) == 0
    assert written_pairs(tmp_path) == (sorted(pairs), 300)


@pytest.mark.parametrize("mark", WITHIN_LINES)
def test_cells_of_a_table_may_contain_other_line_marks(tmp_path, mark):
    pairs = made_pairs(mark)
    rows = (f"d{n // 10}\t{n}\t{source}\t{target}\r\n" for n, (source, target) in enumerate(pairs))
    (tmp_path / "a.tsv").write_bytes("".join(rows).encode())
    flags = ["--train", str(tmp_path / "a.tsv"), "--out", str(tmp_path / "out")]
    flags += ["--source-lang", "de", "--target-lang", "en"]
    assert run_script(tsv_documents.make_parser(), tsv_documents.make_corpus, flags) == 0
    assert written_pairs(tmp_path) == (sorted(pairs), 300)


def test_a_missing_text_is_a_one_line_error(tmp_path, capsys):
    flags = ["--src", str(tmp_path / "a.de"), "--tgt", str(tmp_path / "a.en"), "--out", "x"]
    assert run_script(own_text.make_parser(), own_text.make_corpus, flags) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "a.de: cannot read the text: No such file" in error


@pytest.mark.parametrize("mark", WITHIN_LINES)
def test_a_manual_page_is_cut_at_line_feeds_only(mark):
    [heading, block] = read_man(f".SH NAME\r\nls {mark}.B of\nfiles\n")
    assert (heading.text, block.text) == ("NAME", "ls .B of files")
