import pytest
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.data.documents import document_sizes
from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import scan_text
from relu_nmt.jobs.preprocess.text import Conversion, Step, convert_texts
from relu_nmt.tokenization.pipeline import TextPipeline


def convert(tmp_path, text, step, separator="none", chunk_bytes=20, workers=1):
    path = tmp_path / "in"
    path.write_bytes(text.encode())
    conversion = Conversion(
        ("train", "en"),
        separator,
        {tmp_path / "out": step, tmp_path / "raw": Step.KEEP},
    )
    text_file = scan_text(str(path), chunk_bytes)
    pipelines = {"en": TextPipeline("en", "moses", lowercase=True)}
    (done,) = convert_texts([(conversion, text_file)], pipelines, workers, lambda _: None)
    return (tmp_path / "out").read_text(), (tmp_path / "raw").read_bytes().decode(), done


@pytest.mark.parametrize("workers", [1, 2])
def test_conversions_keep_the_lines(tmp_path, workers):
    text = "It's A dog.\n\n \t\nTwo\u2028lines?\r\nNo end" + "\nA cat!" * 30
    output, raw, done = convert(tmp_path, text, Step.WORDS, workers=workers)
    assert output == "it &apos;s a dog .\n\n\ntwo lines ?\nno end" + "\na cat !" * 30 + "\n"
    assert raw == text.replace("\r\n", "\n") + "\n"
    assert done["sentences"] == 35
    assert done["boundaries"] == []


def test_separators_are_left_out(tmp_path):
    output, raw, done = convert(tmp_path, "<d>\nA b.\nC.\n<d>\n<d>\nE.\n<d>\n", Step.KEEP, "tag")
    assert output == raw == "A b.\nC.\nE.\n"
    assert done["boundaries"] == [(0, 1), (2, 4), (2, 5), (3, 7)]
    sizes = document_sizes([("x", done["sentences"], done["boundaries"])])
    assert sizes.tolist() == [2, 1]


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
