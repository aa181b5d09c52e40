"""Raw text to translate: lines, prefixes and terms of a text that arrives in parts."""

import numpy as np
import pytest

from relu_nmt.errors import DataError
from relu_nmt.jobs.translate.notes import LineNotes
from relu_nmt.jobs.translate.settings import TranslateLinesSettings
from relu_nmt.jobs.translate.text import InputText
from relu_nmt.translation.search.translations import SourceLimit, SourceSentence
from relu_nmt.translator import TranslationRequest


def test_lines_of_later_parts_have_their_own_numbers_and_prefixes(tmp_path):
    (tmp_path / "prefixes").write_text("x\ny\n")
    text = InputText(TranslateLinesSettings.of(path="any", prefixes=tmp_path / "prefixes"), "-")
    text.add(["a\tb"])
    text.check_prefixes(is_complete=False)
    text.add(["c", "d\te"])
    assert text.tab_note(1).startswith("NOTE: line 3: what stands behind a tab")
    template = TranslationRequest((), ordered=False)
    request = text.request(template, ["c"], [1])
    assert (request.prefixes, request.forced, request.numbers) == (["y"], [[]], [2])
    assert not request.ordered
    with pytest.raises(DataError, match="prefixes: 2 lines, but the text has more; give one"):
        text.check_prefixes(is_complete=False)


def test_terms_are_cut_off_their_lines():
    text = InputText(TranslateLinesSettings.of(path="any", constraints="ordered"), "-")
    text.add(["a\tb\tc", "d"])
    assert (text.lines, text.terms, text.tab_note()) == (["a", "d"], [["b", "c"], []], "")


@pytest.mark.parametrize(("option", "kinds"), [(None, ["cut", "split"]), (True, ["cut"])])
def test_lines_are_noted_by_their_numbers(option, kinds):
    short, long = (SourceSentence(np.arange(size)) for size in (2, 5))
    notes = LineNotes(SourceLimit(3), option, missing_splitter="")
    for number, source in ((0, short), (4, long), (7, SourceSentence.of_parts([short, short]))):
        notes.add(number, source)
    texts = {
        "cut": "NOTE: 1 line of more than 3 tokens: their translation is empty (line 5)",
        "split": "NOTE: 1 line of several sentences, which are translated one by one as in "
        "training (line 8); --no-split-sentences keeps lines whole",
    }
    assert notes.texts() == [texts[kind] for kind in kinds]
