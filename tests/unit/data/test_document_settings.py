import pytest

from relu_nmt.data.document_settings import DocumentConfig, WindowConfig
from relu_nmt.errors import ConfigError


def test_documents_are_off_by_default():
    assert not DocumentConfig().active
    assert DocumentConfig().training_lengths == ()


@pytest.mark.parametrize(
    ("settings", "training", "validation"),
    [
        ({"max_doc_tokens": 128}, (128,), 128),
        ({"doc_mixture": (1, 128, 512)}, (1, 128, 512), 512),
        ({"doc_mixture": (1, 512), "max_doc_tokens": 256}, (1, 512), 256),
    ],
)
def test_settings_give_the_lengths_of_training_and_validation(settings, training, validation):
    config = DocumentConfig(**settings)
    assert config.active
    assert config.training_lengths == training
    assert config.validation_length == validation


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_doc_tokens": 0}, "--max-doc-tokens 0: expected 1"),
        ({"doc_mixture": (1, -5)}, "--doc-mixture 1,-5: expected"),
        ({"sentence_separator": True}, "give --max-doc-tokens or --doc-mixture"),
    ],
)
def test_wrong_document_settings_are_errors(settings, message):
    with pytest.raises(ConfigError, match=message):
        DocumentConfig(**settings)


def test_lists_of_lengths_are_read():
    assert DocumentConfig(doc_mixture="1,128,512").doc_mixture == (1, 128, 512)
    for text in ("a", "1 2", "1,,2"):
        with pytest.raises(ConfigError, match=r"--doc-mixture .*expected whole numbers"):
            DocumentConfig(doc_mixture=text)


def test_groups_must_fit_into_a_batch():
    DocumentConfig(max_doc_tokens=64).check_fits(64)
    DocumentConfig(max_doc_tokens=64).check_fits(None)
    DocumentConfig().check_fits(5)
    with pytest.raises(ConfigError, match="--doc-mixture 64 is more than --max-tokens 63"):
        DocumentConfig(doc_mixture=(1, 64)).check_fits(63)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_doc_tokens": 0}, "--max-doc-tokens 0: expected 1"),
        ({"max_doc_tokens": 8, "window_overlap": -1}, "--window-overlap -1: expected 0"),
        ({"max_doc_tokens": 1, "window_overlap": 2}, "--window-overlap 2: .*single sentences"),
    ],
)
def test_wrong_settings_of_windows_are_errors(settings, message):
    with pytest.raises(ConfigError, match=message):
        WindowConfig(**settings)
