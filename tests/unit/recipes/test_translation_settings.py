import pytest

from relu_nmt.errors import ConfigError
from relu_nmt.recipes.translation_settings import (
    TranslateDocumentsSettings,
    TranslateLinesSettings,
)


def test_plain_text_has_no_references():
    for given in ({"score_reference": True}, {"prefix_size": 1}):
        with pytest.raises(ConfigError, match="need references; use relu-nmt-generate"):
            TranslateLinesSettings.of(path="model", **given)
        with pytest.raises(ConfigError, match="need references"):
            TranslateDocumentsSettings.of(path="model", file="-", **given)
    with pytest.raises(ConfigError, match="--nbest: each line has one translation here"):
        TranslateDocumentsSettings.of(path="model", file="-", nbest=2)
