import pytest

from relu_nmt.errors import ConfigError
from relu_nmt.jobs.translate.settings import TranslateDocumentsSettings, TranslateLinesSettings


@pytest.mark.parametrize(
    "option", [{"sampling": True}, {"diverse_beam_groups": 5}, {"beam_threshold": 1.0}]
)
def test_terms_and_a_search_that_cannot_force_them_are_refused_before_anything_is_read(option):
    flag = "--" + next(iter(option)).replace("_", "-")
    for settings, file in (
        (TranslateLinesSettings, {}),
        (TranslateDocumentsSettings, {"file": "-"}),
    ):
        settings.of(path="model", **file, **option)
        with pytest.raises(ConfigError, match=f"{flag}: terms can be forced in plain beam search"):
            settings.of(path="model", constraints="ordered", **file, **option)


def test_plain_text_has_no_references():
    for option in ({"score_reference": True}, {"prefix_size": 1}):
        with pytest.raises(ConfigError, match="needs references; use relu-nmt-generate"):
            TranslateLinesSettings.of(path="model", **option)
        with pytest.raises(ConfigError, match="needs references"):
            TranslateDocumentsSettings.of(path="model", file="-", **option)
    with pytest.raises(ConfigError, match="--nbest: each line has one translation here"):
        TranslateDocumentsSettings.of(path="model", file="-", nbest=2)


def test_alignments_need_a_format_that_has_them():
    for name in ("fairseq", "json"):
        TranslateLinesSettings.of(path="model", format=name, print_alignment="hard")
    with pytest.raises(ConfigError, match="--print-alignment does nothing with --format text"):
        TranslateLinesSettings.of(path="model", print_alignment="hard")
