import numpy as np
import pytest

from relu_nmt.data.documents import (
    read_documents,
    separator_test,
    write_documents,
)
from relu_nmt.errors import DataError


@pytest.mark.parametrize(
    ("separator", "lines", "expected"),
    [
        ("none", ["", "<d>"], [False, False]),
        ("blank", ["", " \t", "<d>", "a"], [True, True, False, False]),
        ("tag", ["<d>", " <d> ", "", "<d> a"], [True, True, False, False]),
    ],
)
def test_which_lines_separate(separator, lines, expected):
    assert [separator_test(separator)(line) for line in lines] == expected


def test_write_and_read(tmp_path):
    write_documents(tmp_path / "x", [3, 1, 12])
    assert (tmp_path / "x").read_text() == "3\n1\n12\n"
    counts = read_documents(tmp_path / "x", 16)
    assert counts.tolist() == [3, 1, 12]
    assert counts.dtype == np.int64


@pytest.mark.parametrize("content", ["3\nx\n", "3\n0\n", "3\n-1\n", "3\n\n", "3\n" + "9" * 30])
def test_damaged(tmp_path, content):
    (tmp_path / "x").write_text(content)
    with pytest.raises(DataError, match="x:2: expected a document's number of sentences"):
        read_documents(tmp_path / "x")


def test_does_not_fit(tmp_path):
    write_documents(tmp_path / "x", [3, 1])
    with pytest.raises(DataError, match="4 sentences in 2 documents, but the split has 5"):
        read_documents(tmp_path / "x", 5)
    with pytest.raises(DataError, match="cannot read"):
        read_documents(tmp_path / "y")
