import pytest

from relu_nmt.data.document_config import DocumentConfig, parse_lengths
from relu_nmt.errors import ConfigError


def test_nothing_by_default():
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
def test_lengths(settings, training, validation):
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
def test_mistakes(settings, message):
    with pytest.raises(ConfigError, match=message):
        DocumentConfig(**settings)


def test_lists_of_lengths():
    assert parse_lengths("1,128,512") == (1, 128, 512)
    for text in ("", "1,", "a", "1 2"):
        with pytest.raises(ValueError, match="expected numbers with commas"):
            parse_lengths(text)


def test_groups_must_fit_into_a_batch():
    DocumentConfig(max_doc_tokens=64).check_fits(64)
    DocumentConfig(max_doc_tokens=64).check_fits(None)
    DocumentConfig().check_fits(5)
    with pytest.raises(ConfigError, match="--doc-mixture 64 is more than --max-tokens 63"):
        DocumentConfig(doc_mixture=(1, 64)).check_fits(63)
