import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.data.documents import (
    SEPARATOR_TESTS,
    document_sizes,
    read_documents,
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
def test_separator_lines_are_recognized(separator, lines, expected):
    assert list(map(SEPARATOR_TESTS[separator], lines)) == expected


def test_a_written_side_file_is_read_back(tmp_path):
    write_documents(tmp_path / "x", [3, 1, 12])
    assert (tmp_path / "x").read_text() == "3\n1\n12\n"
    counts = read_documents(tmp_path / "x", 16)
    assert counts.tolist() == [3, 1, 12]
    assert counts.dtype == np.int64


def test_marks_of_an_editor_are_no_part_of_a_side_file(tmp_path):
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbf3\r\n1\r\n")
    assert read_documents(tmp_path / "x").tolist() == [3, 1]


@pytest.mark.parametrize(
    "content", ["3\nx\n", "3\n0\n", "3\n-1\n", "3\n\n", "3\n1\u20285\n", "3\n" + "9" * 30]
)
def test_a_damaged_side_file_is_an_error(tmp_path, content):
    (tmp_path / "x").write_text(content)
    with pytest.raises(DataError, match="x:2: expected a document's number of sentences"):
        read_documents(tmp_path / "x")


def test_a_side_file_of_another_split_is_an_error(tmp_path):
    write_documents(tmp_path / "x", [3, 1])
    with pytest.raises(DataError, match="4 sentences in 2 documents, but the split has 5"):
        read_documents(tmp_path / "x", 5)
    with pytest.raises(DataError, match="cannot read"):
        read_documents(tmp_path / "y")


def mark(sizes, extra):
    """Separator lines of documents of these sizes. ``extra`` repeats some of them."""
    boundaries = []
    sentences = 0
    line = 0
    for i, size in enumerate(sizes):
        for _ in range(1 + extra[i % len(extra)]):
            line += 1
            boundaries.append((sentences, line))
        sentences += size
        line += size
    return sentences, boundaries


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=8),
    st.lists(st.integers(0, 2), min_size=1, max_size=3),
)
def test_repeated_separators_do_not_change_document_sizes(sizes, extra):
    first = mark(sizes, [0])
    second = mark(sizes, extra)
    assert document_sizes([("a", *first), ("b", *second)]).tolist() == sizes


def test_sides_with_different_boundaries_are_an_error():
    first = mark([3, 2, 4], [0])
    second = mark([3, 3, 3], [1])
    with pytest.raises(DataError) as caught:
        document_sizes([("a", *first), ("b", *second)])
    assert str(caught.value).startswith(
        "a:8: document 3 begins after 5 sentences, but at b:12 after 6;"
    )


def test_an_extra_boundary_on_one_side_is_an_error():
    first = mark([3, 2], [0])
    second = mark([3, 2, 1], [0])
    for sides in ([("a", *first), ("b", *second)], [("b", *second), ("a", *first)]):
        with pytest.raises(DataError, match=r"b:8: a document boundary after 5 sentences that"):
            document_sizes(sides)
