import pytest
from prep_tools import cleaning
from prep_tools.command import PrepError


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        (0, 5, "empty"),
        (5, 0, "empty"),
        (175, 175, ""),
        (176, 175, "length"),
        (10, 15, ""),
        (15, 10, ""),
        (10, 16, "ratio"),
        (16, 10, "ratio"),
        (1, 1, ""),
        (1, 2, "ratio"),
    ],
)
def test_pairs_are_dropped_by_length_and_ratio(source, target, reason):
    assert cleaning.LengthFilter(175).reason_to_drop(source, target) == reason


def test_segments_of_a_test_set_are_read(tmp_path):
    path = tmp_path / "test.xml"
    path.write_text(
        '<doc>\n<seg id="1"> It’s one. </seg>\n<title>no</title>\n<seg id="2"></seg>\n'
        '<SEG ID="3">A &amp; B</SEG>\n</doc>\n',
        "utf-8",
    )
    assert cleaning.segments(path) == ["It's one.", "", "A &amp; B"]


def test_files_of_different_lengths_are_an_error(tmp_path):
    (tmp_path / "a").write_text("1\n2\n")
    (tmp_path / "b").write_text("1\n")
    with pytest.raises(PrepError, match="b: ends before line 2"):
        list(cleaning.read_pairs(tmp_path / "a", tmp_path / "b"))


def test_only_line_feeds_end_lines(tmp_path):
    (tmp_path / "a").write_bytes("one\u2028still\x85one\r\ntwo\rtwo".encode())
    (tmp_path / "b").write_bytes(b"1\x0c\n2\n")
    pairs = list(cleaning.read_pairs(tmp_path / "a", tmp_path / "b"))
    assert pairs == [("one\u2028still\x85one", "1\x0c"), ("two\rtwo", "2")]


def test_punctuation_and_spaces_are_normalized():
    assert cleaning.normalize("„Ja“ ,  sagte\u200b er …", "de") == '"Ja" , sagte er ...'
    assert cleaning.remove_non_printing("a\x07b\u200bc\ue000é") == "a b c é"


@pytest.mark.parametrize("word", ["می‌خواهم", "क्‍ष", "👩‍🚀", "۝"])
def test_characters_of_the_spelling_are_kept(word):
    assert cleaning.remove_non_printing(f"{word}\x07{word}") == f"{word} {word}"
    assert cleaning.normalize(f"{word}  {word}", "fa") == f"{word} {word}"


def test_marks_inside_words_go_without_a_space():
    assert cleaning.remove_non_printing("Schiff\u00adfahrt a\u2060b\u200f") == "Schifffahrt ab"


def test_tokens_are_those_of_training():
    from relu_nmt.tokenization.moses import MosesTokenizer

    text = "Er kam z.B. am 3. Mai in die well-bekannte Stadt."
    assert cleaning.tokenize(text, "de") == MosesTokenizer("de").split(text)
    assert "@-@" in cleaning.tokenize(text, "de", aggressive=True)


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order(workers):
    numbers = list(range(5000))
    assert list(cleaning.parallel_map(str, numbers, workers, chunk=7)) == list(map(str, numbers))
    assert list(cleaning.parallel_map(str, [], workers)) == []
