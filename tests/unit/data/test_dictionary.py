import os
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.errors import DataError
from tests.tiny import as_text


def restated(counts, threshold, nwords, padding_factor):
    """The dictionary file as fairseq's documentation describes it, said in another way."""
    words = [w for w in sorted(counts) if w not in ("<s>", "<pad>", "</s>", "<unk>")]
    words.sort(key=counts.__getitem__, reverse=True)  # stable: ties stay in code-point order
    if nwords > 0:
        words = words[: max(nwords - 4, 0)]
    words = [w for w in words if counts[w] >= threshold]
    lines = [f"{w} {counts[w]}" for w in words]
    filler = 0
    while (len(lines) + 4) % padding_factor:
        name = f"madeupword{filler:04d}"
        if name not in words:
            lines.append(f"{name} 0")
        filler += 1
    return as_text(lines)


def test_order_is_count_then_code_point():
    counts = Counter({"b": 2, "a": 2, "Z": 2, "ä": 2, "rare": 1, "often": 9})
    dictionary = Dictionary.from_counts(counts, padding_factor=1)
    assert dictionary.to_text() == "often 9\nZ 2\na 2\nb 2\nä 2\nrare 1\n"


def test_special_symbols_have_fairseqs_numbers():
    dictionary = Dictionary(["x"], [1])
    assert [dictionary[i] for i in range(5)] == ["<s>", "<pad>", "</s>", "<unk>", "x"]
    assert (dictionary.bos_index, dictionary.pad_index) == (0, 1)
    assert (dictionary.eos_index, dictionary.unk_index) == (2, 3)


def test_the_size_of_a_dictionary_is_rounded_up_with_fillers():
    dictionary = Dictionary.from_counts(Counter({"a": 1}))
    assert len(dictionary) == 8
    assert dictionary.to_text() == ("a 1\nmadeupword0000 0\nmadeupword0001 0\nmadeupword0002 0\n")
    assert dictionary.num_words == 1


def test_filler_words_of_the_text_are_not_doubled():
    dictionary = Dictionary.from_counts(Counter({"madeupword0000": 5, "a": 7}))
    assert dictionary.to_text() == "a 7\nmadeupword0000 5\nmadeupword0001 0\nmadeupword0002 0\n"


@given(
    st.dictionaries(
        st.sampled_from(
            ["a", "b", "c", "ä", "日", "</s>", "<unk>", "madeupword0000", "madeupword0002", "Z"]
        ),
        st.integers(1, 5),
        min_size=1,
    ),
    st.integers(-1, 4),
    st.integers(-1, 12),
    st.integers(1, 9),
)
def test_the_file_equals_that_of_fairseq(counts, threshold, nwords, padding_factor):
    dictionary = Dictionary.from_counts(counts, threshold, nwords, padding_factor)
    assert dictionary.to_text() == restated(counts, threshold, nwords, padding_factor)
    assert len(dictionary) % padding_factor == 0
    assert Dictionary.from_text(dictionary.to_text()) == dictionary


def test_threshold_and_limit_reduce_the_dictionary():
    counts = Counter({"a": 5, "b": 4, "c": 3, "d": 2})
    assert Dictionary.from_counts(counts, 3, -1, 1).to_text() == "a 5\nb 4\nc 3\n"
    assert Dictionary.from_counts(counts, 0, 6, 1).to_text() == "a 5\nb 4\n"
    assert Dictionary.from_counts(counts, 0, 3, 1).to_text() == ""


def test_encoded_symbols_are_decoded():
    dictionary = Dictionary(["ein", "Haus"], [1, 1])
    ids = dictionary.encode(["ein", "Hund", "Haus"])
    assert ids.dtype == np.int64
    assert ids.tolist() == [4, 3, 5, 2]
    assert dictionary.encode(["ein"], append_eos=False).tolist() == [4]
    assert dictionary.symbols_of([0, 4, 3, 5, 2, 1]) == ["ein", "<unk>", "Haus"]
    assert dictionary.symbols_of(ids, unk="?") == ["ein", "?", "Haus"]


def test_the_overwrite_flag_is_read_and_written():
    text = "a 3\nb 2\na 1 #fairseq:overwrite\n"
    dictionary = Dictionary.from_text(text)
    assert len(dictionary) == 7
    assert dictionary.index("a") == 6
    assert dictionary.to_text().endswith("a 1 #fairseq:overwrite\n")
    assert Dictionary.from_text(dictionary.to_text()).index("a") == 6


def test_symbols_may_hold_unusual_characters():
    text = "a\u2028b 3\nx y 2\r\n\x85z 1\na\rb 1"
    dictionary = Dictionary.from_text(text)
    assert [dictionary[i] for i in (4, 5, 6, 7)] == ["a\u2028b", "x y", "\x85z", "a\rb"]
    with pytest.raises(DataError, match="dictionary:3: expected"):
        Dictionary.from_text("a\rb 3\n\x0cc 1\nd\n")


def test_a_first_symbol_that_begins_with_a_byte_order_mark_is_kept(tmp_path):
    dictionary = Dictionary(["\ufeffa", "a"], [2, 1])
    dictionary.save(tmp_path / "dict.de.txt")
    assert Dictionary.load(tmp_path / "dict.de.txt") == dictionary


def test_a_saved_dictionary_is_loaded(tmp_path):
    dictionary = Dictionary(["über", "日本"], [2, 1])
    dictionary.save(tmp_path / "dict.de.txt")
    assert (tmp_path / "dict.de.txt").read_bytes() == "über 2\n日本 1\n".encode()
    assert Dictionary.load(tmp_path / "dict.de.txt") == dictionary
    assert os.listdir(tmp_path) == ["dict.de.txt"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a 1\nb\n", r"dict:2: expected '<symbol> <count>', found 'b'"),
        ("a 1\n\nb 1\n", r"dict:2: expected"),
        ("a one\n", r"dict:1: expected"),
        ("a 1\na 2\n", r"dict:2: the symbol 'a' stands twice"),
        ("<unk> 2\n", r"dict:1: the symbol '<unk>' stands twice"),
        ("a " + "9" * 5000, r"dict:1: expected"),
    ],
)
def test_a_damaged_dictionary_is_an_error(text, message):
    with pytest.raises(DataError, match=message):
        Dictionary.from_text(text, "dict")


def test_missing_and_foreign_files_are_errors(tmp_path):
    with pytest.raises(DataError, match="cannot read the dictionary"):
        Dictionary.load(tmp_path / "none.txt")
    (tmp_path / "latin.txt").write_bytes(b"\xfcber 1\n")
    with pytest.raises(DataError, match=r"latin.txt: not a UTF-8 dictionary \(byte 0\)"):
        Dictionary.load(tmp_path / "latin.txt")


def test_a_symbol_that_occurs_twice_is_an_error():
    with pytest.raises(DataError, match="occurs twice"):
        Dictionary(["a", "a"])


@pytest.mark.parametrize(("padding_factor", "size"), [(8, 8), (1, 7)])
def test_a_symbol_takes_the_place_of_a_filler_or_comes_last(padding_factor, size):
    dictionary = Dictionary.from_counts({"b": 2, "a": 2}, padding_factor=padding_factor)
    bigger = dictionary.with_symbol("<sep>")
    assert (len(bigger), bigger.index("<sep>"), bigger[6]) == (size, 6, "<sep>")
    assert "<sep>" not in dictionary
    assert "madeupword0000" not in bigger
    assert (bigger.index("a"), bigger.index("b")) == (4, 5)
    assert Dictionary.from_text(bigger.to_text()) == bigger != dictionary
    with pytest.raises(DataError, match="in it already"):
        bigger.with_symbol("<sep>")


def test_a_word_that_looks_like_a_filler_keeps_its_place():
    dictionary = Dictionary.from_counts({"madeupword0000": 3}, padding_factor=1)
    assert dictionary.with_symbol("<sep>").index("<sep>") == 5
