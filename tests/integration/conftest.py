"""The texts and models that several tests share."""

import pytest

from relu_nmt.io import text_lines
from tests.integration.spoken_digits import write_corpus
from tests.untrained_models import write_models


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Write four texts, which are read in small pieces, so that every file has several."""
    write_corpus(tmp_path, "train", 300, 1)
    write_corpus(tmp_path, "valid", 30, 2, "\r\n")
    write_corpus(tmp_path, "test", 20, 3)
    write_corpus(tmp_path, "more", 10, 4)
    monkeypatch.setattr(text_lines.scan_text, "__defaults__", (1000,))
    return tmp_path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a corpus, data folders and untrained models."""
    folder = tmp_path_factory.mktemp("untrained")
    write_models(folder)
    return folder
