"""examples/document_sweep/join_documents.py: longer documents of the same lines."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.example_modules import example_modules

with example_modules("document_sweep", ["join_documents"]) as modules:
    join_documents = modules.join_documents

LINES = st.lists(st.sampled_from(["a", "b c", "ä"]), min_size=1)


@given(st.lists(LINES, min_size=1), st.integers(1, 5))
def test_joined_documents_hold_the_same_lines(documents, count):
    text = "\n\n".join("\n".join(lines) for lines in documents) + "\n"
    joined = join_documents.join_documents(text, count)
    parts = joined.removesuffix("\n").split("\n\n")
    assert len(parts) == math.ceil(len(documents) / count)
    for place, part in enumerate(parts):
        lines = []
        for document in documents[place * count : (place + 1) * count]:
            lines += document
        assert part.split("\n") == lines


@pytest.fixture
def corpus(tmp_path):
    for split in ("train", "valid", "test"):
        for language in ("de", "en"):
            text = f"{split}\n\n{language}\n\nä\n"
            (tmp_path / f"{split}.{language}").write_text(text, "utf-8")
    return tmp_path


def test_the_splits_of_a_corpus_are_joined(corpus):
    out = corpus / "long" / "text"
    assert join_documents.main([str(corpus), str(out), "2"]) == 0
    assert (out / "valid.de").read_text("utf-8") == "valid\nde\n\nä\n"
    assert len(list(out.iterdir())) == 6


def test_wrong_input_is_one_line(corpus, capsys):
    (corpus / "test.en").unlink()
    assert join_documents.main([str(corpus), str(corpus / "long"), "2"]) == 2
    assert join_documents.main([str(corpus), str(corpus / "long"), "0"]) == 2
    missing, zero = capsys.readouterr().err.splitlines()
    assert "test.en: cannot be read" in missing
    assert zero == "join_documents: error: N: got 0; a document holds at least 1"
