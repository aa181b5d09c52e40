"""The texts that several tests of preprocessing share."""

import pytest

from relu_nmt.io import text_lines
from tests.integration.spoken_digits import write_corpus


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Write four texts, which are read in small pieces, so that every file has several."""
    write_corpus(tmp_path, "train", 300, 1)
    write_corpus(tmp_path, "valid", 30, 2, "\r\n")
    write_corpus(tmp_path, "test", 20, 3)
    write_corpus(tmp_path, "more", 10, 4)
    monkeypatch.setattr(text_lines.scan_text, "__defaults__", (1000,))
    return tmp_path
