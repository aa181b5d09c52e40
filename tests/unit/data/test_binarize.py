from collections import Counter

import numpy as np
import pytest

from relu_nmt.data.binarize import binarize, count_words
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.indexed_dataset import IndexedDataset
from relu_nmt.io.text_lines import scan_text

ODD = (
    "b \ufeffa b\xa0c\n\n  \t\na\x85b\u2028c </s> <unk> <pad> <s>\r\nunseen a\rb\x1cc\u3000a\n"
    "\u200ba b\x0cc\x00d"
) * 30


def words_of_lines(text):
    """Words of lines that end in a line feed, split at Unicode's white space."""
    return [line.split() for line in text.split("\n")]


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(ODD.encode())
    return scan_text(str(path), 50)


def test_words_are_counted(text_file):
    done = []
    expected = Counter(word for line in words_of_lines(ODD) for word in line)
    for workers in (1, 2):
        assert count_words([text_file, text_file], workers, done.append) == Counter(
            {word: 2 * n for word, n in expected.items()}
        )
    assert sum(done) == 4 * text_file.num_bytes


@pytest.mark.parametrize("workers", [1, 2])
def test_words_become_ids(tmp_path, text_file, workers):
    dictionary = Dictionary(["a", "b", "c"], [1, 1, 1])
    prefix = tmp_path / "out"
    done = []
    (result,) = binarize([("xx", prefix, text_file)], {"xx": dictionary}, workers, done.append)
    dataset = IndexedDataset(prefix)
    expected = [dictionary.encode(line).tolist() for line in words_of_lines(ODD)]
    assert [dataset[i].tolist() for i in range(len(dataset))] == expected
    assert dataset.dtype is np.uint16
    assert result["sentences"] == len(expected) == text_file.num_lines
    assert result["tokens"] == sum(map(len, expected))
    literal = ODD.count("<unk>")
    assert result["unknown"] == sum(ids.count(3) for ids in expected) - literal
    assert sum(done) == text_file.num_bytes
    assert set(result["checksums"]) == {"out.bin", "out.idx"}


def test_several_sides_have_their_own_dictionaries(tmp_path, text_file):
    dictionaries = {"x": Dictionary(["a"], [1]), "y": Dictionary(["c", "b"], [1, 1])}
    sides = [(name, tmp_path / f"{name}{i}", text_file) for i, name in enumerate("xyx")]
    assert len(list(binarize(sides, dictionaries, 2, lambda _: None))) == 3
    first, second, third = (IndexedDataset(prefix) for _, prefix, _ in sides)
    assert first[3].tolist() == third[3].tolist()
    assert second[3].tolist() == dictionaries["y"].encode(words_of_lines(ODD)[3]).tolist()
