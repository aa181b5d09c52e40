"""Documents with models of them, for tests of several commands."""

import pytest

from tests.integration.documents.document_models import copy_sources, make_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("documents"))


@pytest.fixture
def copying(monkeypatch):
    copy_sources(monkeypatch)
