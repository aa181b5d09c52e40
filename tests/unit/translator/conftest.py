"""Translators for the tests of this folder."""

import pytest

from relu_nmt.translator import Translator
from tests.unit.translator.models import make_model, make_task


@pytest.fixture
def translator():
    task = make_task()
    return Translator([make_model(task)], task, "cpu")


@pytest.fixture
def separated():
    task = make_task().with_sentence_separator()
    return Translator([make_model(task)], task, "cpu", max_doc_tokens=30)
