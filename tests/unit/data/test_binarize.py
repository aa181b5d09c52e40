"""Binarized text: the files of fairseq, and how text becomes them."""

import itertools
import os
import pickle
import struct
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.data.binarize import binarize, count_words, token_dtype
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.indexed_dataset import IndexedDataset, indexed_writer
from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import scan_text

ODD = (
    "b \ufeffa b\xa0c\n\n  \t\na\x85b\u2028c </s> <unk> <pad> <s>\r\nunseen a\rb\x1cc\u3000a\n"
    "\u200ba b\x0cc\x00d"
) * 30


def words_of_lines(text):
    """Words of lines that end in a line feed, split at Unicode's white space."""
    return list(map(str.split, text.split("\n")))


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(ODD.encode())
    return scan_text(str(path), 50)


def contents(dataset):
    return [dataset[i].tolist() for i in range(len(dataset))]


def test_words_are_counted(text_file):
    done = []
    words = list(itertools.chain(*words_of_lines(ODD)))
    for workers in (1, 2):
        counts = count_words([text_file, text_file], workers, done.append)
        assert counts == Counter(2 * words)
    assert sum(done) == 4 * text_file.num_bytes


@pytest.mark.parametrize("workers", [1, 2])
def test_binary_data_has_the_ids_of_the_words_and_their_counts(tmp_path, text_file, workers):
    dictionary = Dictionary(["a", "b", "c"], [1, 1, 1])
    prefix = tmp_path / "out"
    done = []
    (result,) = binarize([(("xx", prefix), text_file)], {"xx": dictionary}, workers, done.append)
    dataset = IndexedDataset(prefix)
    expected = [dictionary.encode(line).tolist() for line in words_of_lines(ODD)]
    assert contents(dataset) == expected
    assert dataset.dtype is np.uint16
    assert result["sentences"] == len(expected) == text_file.num_lines
    assert result["tokens"] == sum(map(len, expected))
    literal = ODD.count("<unk>")
    assert result["unknown"] == list(itertools.chain(*expected)).count(3) - literal
    assert sum(done) == text_file.num_bytes


def test_several_sides_have_their_own_dictionaries(tmp_path, text_file):
    dictionaries = {"x": Dictionary(["a"], [1]), "y": Dictionary(["c", "b"], [1, 1])}
    texts = [((name, tmp_path / f"{name}{i}"), text_file) for i, name in enumerate("xyx")]
    assert len(list(binarize(texts, dictionaries, 2, lambda _: None))) == 3
    first, second, third = (IndexedDataset(prefix) for (_, prefix), _ in texts)
    assert first[3].tolist() == third[3].tolist()
    assert second[3].tolist() == dictionaries["y"].encode(words_of_lines(ODD)[3]).tolist()


SENTENCES = [[4, 5, 6, 2], [2], [7, 2], [4, 2]]


def expected_files(sentences, code=8, letter="H"):
    """The two files, said independently of the package: (bin, idx)."""
    tokens = np.array(list(itertools.chain(*sentences)), f"<{letter}").tobytes()
    sizes = list(map(len, sentences))
    width = struct.calcsize(letter)
    starts = np.cumsum([0, *sizes])[:-1] * width
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQ", 1, code, len(sizes))
    index += np.array(sizes, "<i4").tobytes() + starts.astype("<i8").tobytes()
    return tokens, index


def write(prefix, sentences, dtype=np.uint16, per_call=3):
    with indexed_writer(prefix, dtype) as add:
        for i in range(0, len(sentences), per_call):
            part = sentences[i : i + per_call]
            add(np.array(list(itertools.chain(*part))), np.array(list(map(len, part))))


def write_raw(prefix, tokens, index):
    prefix.with_suffix(".bin").write_bytes(tokens)
    prefix.with_suffix(".idx").write_bytes(index)


def test_written_bytes_equal_those_of_fairseq(tmp_path):
    write(tmp_path / "x", SENTENCES)
    tokens, index = expected_files(SENTENCES)
    assert (tmp_path / "x.bin").read_bytes() == tokens
    assert (tmp_path / "x.idx").read_bytes() == index


@given(st.lists(st.lists(st.integers(0, 65000), min_size=1, max_size=6), max_size=12))
def test_written_bytes_of_any_sentences_equal_those_of_fairseq(tmp_path_factory, sentences):
    prefix = tmp_path_factory.mktemp("bytes") / "x"
    write(prefix, sentences, per_call=2)
    written = prefix.with_suffix(".bin").read_bytes(), prefix.with_suffix(".idx").read_bytes()
    assert written == expected_files(sentences)
    assert contents(IndexedDataset(prefix)) == sentences


def test_the_memory_of_a_sentence_is_its_length(tmp_path):
    sizes = np.ones(100_000, dtype=np.int32)
    tracemalloc.start()
    try:
        with indexed_writer(tmp_path / "x", np.uint16) as add:
            for _ in range(20):
                add(sizes, sizes)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * 20 * len(sizes)
    assert len(IndexedDataset(tmp_path / "x")) == 20 * len(sizes)


@pytest.mark.parametrize(
    ("code", "letter"),
    [(1, "B"), (2, "b"), (3, "h"), (4, "i"), (5, "q"), (8, "H"), (9, "I"), (10, "Q")],
)
def test_every_token_dtype_is_read(tmp_path, code, letter):
    write_raw(tmp_path / "x", *expected_files(SENTENCES, code, letter))
    dataset = IndexedDataset(tmp_path / "x")
    assert dataset.sizes.tolist() == [4, 1, 2, 2]
    assert dataset.sizes.dtype == np.int32
    assert contents(dataset) == SENTENCES
    assert dataset[0].dtype == np.int64


def test_a_file_that_is_cut_while_it_is_read_is_an_error(tmp_path):
    write(tmp_path / "x", SENTENCES)
    dataset = IndexedDataset(tmp_path / "x")
    os.truncate(tmp_path / "x.idx", 0)
    os.truncate(tmp_path / "x.bin", 9)
    assert dataset.sizes.tolist() == [4, 1, 2, 2] and dataset[0].tolist() == SENTENCES[0]
    with pytest.raises(DataError, match=r"x\.bin: was cut while it was read, and sentence 1 is"):
        dataset[1]


def test_token_dtype_follows_the_vocabulary():
    assert token_dtype(65499) is np.uint16
    assert token_dtype(65500) is np.uint32


def test_an_empty_dataset_is_read(tmp_path):
    write(tmp_path / "x", [])
    assert len(IndexedDataset(tmp_path / "x")) == 0


def test_failure_leaves_the_old_files(tmp_path):
    write(tmp_path / "x", SENTENCES)
    before = (tmp_path / "x.bin").read_bytes()
    with pytest.raises(KeyError), indexed_writer(tmp_path / "x", np.uint16) as add:
        add(np.array([9, 2]), np.array([2]))
        raise KeyError
    assert (tmp_path / "x.bin").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["x.bin", "x.idx"]


def test_pickling_sends_the_path_only(tmp_path):
    write(tmp_path / "x", [[4] * 5000 + [2]])
    data = pickle.dumps(IndexedDataset(tmp_path / "x"))
    assert len(data) < 1000
    assert len(pickle.loads(data)[0]) == 5001


def test_changes_of_a_read_sentence_do_not_change_the_data(tmp_path):
    write(tmp_path / "x", SENTENCES)
    dataset = IndexedDataset(tmp_path / "x")
    dataset[0][:] = 0
    assert dataset[0].tolist() == SENTENCES[0]


@pytest.mark.parametrize("index", [-1, 4])
def test_an_index_outside_the_dataset_is_an_error(tmp_path, index):
    write(tmp_path / "x", SENTENCES)
    with pytest.raises(IndexError):
        IndexedDataset(tmp_path / "x")[index]


def damage_cases():
    tokens, index = expected_files(SENTENCES)
    negative = bytearray(index)
    negative[26:30] = struct.pack("<i", -4)
    pointer = bytearray(index)
    pointer[-8:] = struct.pack("<q", 3)
    return {
        "no index": (tokens, None, "idx: No such file"),
        "no tokens": (None, index, "bin: No such file"),
        "empty index": (tokens, b"", "only 0 bytes"),
        "short header": (tokens, index[:20], "only 20 bytes"),
        "cut index": (tokens, index[:-1], "cut off or damaged"),
        "long index": (tokens, index + b"\0", "cut off or damaged"),
        "cut tokens": (tokens[:-1], index, "do not belong together"),
        "more tokens": (tokens + b"\0\0", index, "do not belong together"),
        "magic": (tokens, b"X" + index[1:], "not an index of a binarized corpus"),
        "version": (tokens, index[:9] + b"\2" + index[10:], "format version 2"),
        "type": (tokens, index[:17] + b"\6" + index[18:], "unknown dtype 6"),
        "huge count": (tokens, index[:18] + b"\xff" * 8 + index[26:], "cut off or damaged"),
        "negative size": (tokens, bytes(negative), "contradict each other"),
        "pointer": (tokens, bytes(pointer), "contradict each other"),
        "older format": (tokens, b"TNTIDX\0\0" + index[8:], "older 'cached' format"),
    }


@pytest.mark.parametrize("case", damage_cases())
def test_damaged_files_are_errors(tmp_path, case):
    tokens, index, message = damage_cases()[case]
    for ending, content in ((".bin", tokens), (".idx", index)):
        if content is not None:
            (tmp_path / f"x{ending}").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        IndexedDataset(tmp_path / "x")
    assert "\n" not in str(caught.value)
