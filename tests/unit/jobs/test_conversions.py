import pytest

from relu_nmt.data.documents import document_sizes
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
