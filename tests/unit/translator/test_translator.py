"""Lines, models and settings of a translator."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.engine import FastDecoder
from relu_nmt.engine.linear import PackedLinear, can_pack
from relu_nmt.errors import CheckpointError, ConfigError, DataError
from relu_nmt.tokenization.base import JoinedPieces
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.base import StepDecoder
from relu_nmt.translation.building import load_model
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translator import TranslationRequest, Translator
from tests.unit.translator.models import (
    LINES,
    SHORT,
    best_of,
    make_model,
    make_task,
    save,
    scores_of,
    texts_of,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*reached the longest output")


def test_encoding_a_sentence_makes_no_tokenizer(translator, monkeypatch):
    def fail(*args):
        raise AssertionError("to make one takes longer than to split a sentence")

    monkeypatch.setattr(TextPipeline, "__post_init__", fail)
    prefixes = ["house" if line.strip() else "" for line in LINES]
    assert len(translator.translate(LINES, prefixes=prefixes, **SHORT)) == len(LINES)


def test_each_line_gives_one_line_and_blank_lines_stay_blank(translator):
    texts = translator.translate(LINES, **SHORT)
    assert len(texts) == len(LINES)
    assert texts[1] == texts[3] == ""
    assert all(texts[i] and "\n" not in texts[i] for i in (0, 2, 4, 5, 6))
    assert translator.translate([], **SHORT) == []


def test_a_warning_counts_translations_that_reach_the_limit(translator):
    with pytest.warns(
        UserWarning, match=r"4 of 5 translations reached the longest output \(1 token\) and"
    ):
        texts = translator.translate(["ein Haus", "", "das", "Haus", "gross"], beam=2, max_len_b=1)
    assert texts.at_limit == (0, 2, 3, 4)
    assert texts == list(texts)
    with pytest.warns(UserWarning, match="1 of 1 translations reached"):
        ((best,),) = translator.translate_nbest(["das"], beam=2, max_len_b=1)
    assert best.reached_limit
    with pytest.warns(UserWarning, match="1 of 2 translations reached"):
        lines = translator.translate_document(["", "das"], beam=2, max_len_a=0, max_len_b=1)
    assert lines.at_limit == (1,)


def test_no_warning_without_translations_at_the_limit(translator, recwarn):
    assert translator.translate(["", " "], max_len_b=1).at_limit == ()
    assert not recwarn


def test_lines_do_not_depend_on_each_other(translator):
    together = translator.translate(LINES, **SHORT)
    assert [translator.translate([line], **SHORT)[0] for line in LINES] == together
    assert translator.translate(LINES, batch_size=2, **SHORT) == together
    assert translator.translate(LINES[::-1], **SHORT) == together[::-1]


def test_nbest_gives_scores_and_tokens(translator):
    translations = translator.translate_nbest(LINES[:1], nbest=3, **SHORT)[0]
    assert len(translations) == 3
    scores = scores_of(translations)
    assert scores == sorted(scores, reverse=True)
    assert translations[0].text == translator.translate(LINES[:1], GenerationConfig(**SHORT))[0]
    assert translations[0].tokens == translator.task.target_dictionary.symbols_of(
        translations[0].hypothesis.ids
    )


def test_unknown_source_words_are_copied(translator):
    task = translator.task
    with torch.no_grad():
        projection = translator.models[0].output_projection.weight
        # Make the unknown word by far the likeliest of all.
        features = translator.models[0](
            torch.from_numpy(task.encode_source("ein Xaver"))[None], torch.tensor([[2]])
        )
        projection[Dictionary.unk_index] = 20 * features[0, 0]
    unknown = translator.translate_nbest(["ein Xaver"], **SHORT)[0][0]
    assert "<unk>" in unknown.tokens
    copied = translator.translate_nbest(["ein Xaver"], replace_unk="", **SHORT)[0][0]
    assert "<unk>" not in copied.tokens
    for token, copy, position in zip(
        unknown.tokens, copied.tokens, copied.hypothesis.alignment, strict=False
    ):
        assert copy == (["ein", "Xaver"][position] if token == "<unk>" else token)


def test_checkpoints_are_loaded_alone_and_as_ensembles(tmp_path):
    task = make_task()
    first = save(tmp_path / "1.safetensors", task)
    second = save(tmp_path / "2.safetensors", task, 1)
    alone = Translator.from_checkpoint(first, device="cpu").translate(LINES, **SHORT)
    assert Translator.from_checkpoint([first, first], "cpu").translate(LINES, **SHORT) == alone
    pair = Translator.from_checkpoint(f"{first}:{second}", device="cpu")
    assert len(pair.models) == 2
    scores = scores_of(best_of(pair.translate_nbest(LINES, **SHORT)))
    turned = Translator.from_checkpoint([second, first], "cpu")
    turned_scores = scores_of(best_of(turned.translate_nbest(LINES, **SHORT)))
    np.testing.assert_allclose(scores, turned_scores, atol=1e-5)

    # A folder may have a colon in its name.
    (tmp_path / "12:00").mkdir()
    timed = [save(tmp_path / "12:00" / f"{name}.safetensors", task) for name in "ab"]
    for path, count in ((timed[0], 1), (f"{timed[0]}:{first}:{timed[1]}", 3)):
        assert len(Translator.from_checkpoint(path, "cpu").models) == count
    with pytest.raises(CheckpointError, match=r"12:00/c\.safetensors: no such checkpoint"):
        Translator.from_checkpoint(tmp_path / "12:00" / "c.safetensors")

    foreign = save(tmp_path / "3.safetensors", make_task("ein Haus"))
    with pytest.raises(
        CheckpointError, match=r"3\.safetensors: the source dictionary is 6 symbols"
    ):
        Translator.from_checkpoint([first, foreign])
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        Translator.from_checkpoint(tmp_path / "nothing.safetensors")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"language": "fr"}, "source language is fr, but in FIRST it is de"),
        (
            {"tokenizer": "none", "tokenizer_version": None},
            "source tokenizer is none, but in FIRST it is moses",
        ),
        ({"lowercase": True}, "source lower-casing is on, but in FIRST it is off"),
        ({"first_symbol": "the"}, "source first symbol is the, but in FIRST it is none"),
        ({"sentence_separator": "."}, "source sentence separator is ., but in FIRST it is none"),
        ({"detokenizer": "none"}, "source detokenizer is none, but in FIRST it is moses"),
        (
            {"subword": JoinedPieces("@@ ")},
            "source joining of pieces is '@@ ', but in FIRST it is none",
        ),
    ],
)
@pytest.mark.parametrize("side", ["source", "target"])
def test_models_of_an_ensemble_must_process_text_alike(tmp_path, changes, expected, side):
    task = make_task()
    text = replace(getattr(task, f"{side}_text"), **changes)
    first = save(tmp_path / "1.safetensors", task)
    second = save(tmp_path / "2.safetensors", replace(task, **{f"{side}_text": text}))
    own_language = {"source": "de", "target": "en"}[side]
    expected = expected.replace("source", side).replace("FIRST", str(first))
    expected = expected.replace("it is de", f"it is {own_language}")
    with pytest.raises(
        CheckpointError, match=re.escape(f"{second}: the {expected}; an ensemble needs")
    ):
        Translator.from_checkpoint([first, second], "cpu")
    assert len(Translator.from_checkpoint([first, first], "cpu").models) == 2


@pytest.mark.skipif(not can_pack(), reason="needs x86 and oneDNN")
@pytest.mark.parametrize(
    ("device", "packed", "kind"),
    [("cpu", True, FastDecoder), ("cpu", False, StepDecoder), ("meta", True, StepDecoder)],
)
def test_the_engine_decodes_on_a_cpu_if_it_was_installed(device, packed, kind):
    task = make_task()
    translator = Translator([make_model(task)], task, device, packed=packed)
    assert list(map(type, translator.decoders)) == [kind]


def test_loaded_models_have_packed_weights_and_translate_the_same(tmp_path):
    path = save(tmp_path / "1.safetensors", make_task())
    loaded = Translator.from_checkpoint(path, "cpu")
    plain, task, _ = load_model(path)
    expected = best_of(Translator([plain], task, "cpu").translate_nbest(LINES, **SHORT))
    translations = best_of(loaded.translate_nbest(LINES, **SHORT))
    assert type(loaded.models[0].output_projection) is PackedLinear
    assert texts_of(translations) == texts_of(expected)
    np.testing.assert_allclose(scores_of(translations), scores_of(expected), atol=1e-5)


def test_bfloat16_is_near_float32(translator):
    task = translator.task
    half = Translator(translator.models, task, "cpu", torch.bfloat16)
    full_scores = scores_of(best_of(translator.translate_nbest(LINES, **SHORT)))
    half_scores = scores_of(best_of(half.translate_nbest(LINES, **SHORT)))
    np.testing.assert_allclose(half_scores, full_scores, atol=0.05)
    assert half_scores != full_scores


def test_wrong_settings_are_refused(translator):
    with pytest.raises(ConfigError, match="unknown option 'beams': did you mean beam"):
        translator.translate(["a"], beams=3)
    with pytest.raises(ConfigError, match=r"--stop-rule fulll: .*did you mean full\?"):
        translator.translate(["a"], stop_rule="fulll")
    with pytest.raises(ConfigError, match="not both"):
        translator.translate(["a"], GenerationConfig(), beam=3)
    for setting in ({"score_reference": True}, {"prefix_size": 1}):
        with pytest.raises(ConfigError, match="needs references"):
            translator.translate(["a"], **setting)


def test_a_source_too_long_for_learned_positions_is_an_error():
    task = make_task()
    model = make_model(task, encoder_positions="learned", max_source_positions=4)
    translator = Translator([model], task, "cpu")
    assert translator.max_source_positions == 4
    with pytest.raises(DataError, match="the model can read 4"):
        translator.translate(["ein Haus ist gross ."], **SHORT)


def test_a_line_that_is_too_long_is_an_error_before_the_search(monkeypatch):
    task = make_task().with_sentence_separator()
    model = make_model(task, encoder_positions="learned", max_source_positions=6)
    translator = Translator([model], task, "cpu")
    monkeypatch.setattr(translator, "window_translator", lambda *_: pytest.fail)
    with pytest.raises(DataError, match="the model can read 6"):
        lines = ["Haus"] * 9 + ["das Haus ist gross und ein Haus"]
        translator.translate_document(lines, max_doc_tokens=6, window_overlap=1)


def test_a_single_text_in_place_of_a_list_is_an_error(translator):
    for texts in ("", "das Haus"):
        with pytest.raises(DataError, match="documents are lists of lines, not one text"):
            translator.translate_documents(texts)
    for option in ({"prefixes": "a"}, {"forced": "a"}, {"banned": "a"}, {"forced": ["a"]}):
        with pytest.raises(DataError, match="a list of lines is wanted, not one text"):
            translator.translate_documents([["das"]], **option)
    with pytest.raises(DataError, match=r"not one text \('a b'\)"):
        translator.translate(["das"], forced=["a b"])


@pytest.mark.parametrize("wrong", [None, 1, b"das", ["das"], "das \ud800"])
def test_a_value_that_is_no_text_is_an_error(translator, wrong):
    cases = [{"lines": ["das", wrong]}, {"lines": ["das"], "banned": [wrong]}]
    cases += [{"lines": ["das"], "prefixes": [wrong]}, {"lines": ["das"], "forced": [["a", wrong]]}]
    for settings in cases:
        with pytest.raises(DataError, match=r"expected a text, not|is no text that"):
            translator.translate(**settings, **SHORT)


@pytest.mark.parametrize("device", ["nowhere", "cuda:99"])
def test_a_missing_device_is_an_error(translator, device):
    with pytest.raises(ConfigError, match=f"device {device}: "):
        Translator(translator.models, translator.task, device)


@pytest.mark.parametrize("lines", [{"ein Haus", "das Haus"}, frozenset(["ein"]), {"ein": "das"}])
def test_lines_without_an_order_are_refused(translator, lines):
    for translate in (translator.translate, translator.translate_nbest):
        with pytest.raises(DataError, match=r"lines are a .*, which has no order; give a list"):
            translate(lines, **SHORT)
    with pytest.raises(DataError, match="which has no order"):
        translator.translate_document(lines, **SHORT)
    with pytest.raises(DataError, match="which has no order"):
        translator.translate_documents([lines], **SHORT)


def test_documents_without_an_order_are_refused(translator):
    with pytest.raises(DataError, match="documents are a set, which has no order"):
        translator.translate_documents({("ein Haus", "das Haus"), ("das",)}, **SHORT)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"numbers": [1]}, "1 number, but 2 lines"),
        ({"counts": [1]}, r"documents of \[1\] lines, but there are 2 lines"),
        ({"counts": [3, -1]}, r"documents of \[3, -1\] lines, but there are 2 lines"),
        ({"prefixes": ["a"] * 3}, "3 prefixes, but 2 lines"),
        ({"forced": [["a"]]}, "1 term list, but 2 lines"),
    ],
)
def test_a_request_has_an_entry_for_each_line(fields, message):
    with pytest.raises(DataError, match=message):
        TranslationRequest(["ein Haus", "das Haus"], **fields)


@pytest.mark.parametrize("path", [None, 5, 1.5, [None], {"a.safetensors"}])
def test_a_checkpoint_that_is_no_path_is_an_error(path):
    with pytest.raises((ConfigError, CheckpointError), match="expected "):
        Translator.from_checkpoint(path)


def test_whole_numbers_may_come_as_floats(translator):
    lines = ["ein Haus"]
    assert translator.translate(lines, beam=2.0, max_len_b=5) == translator.translate(
        lines, beam=2, max_len_b=5
    )
    with pytest.raises(ConfigError, match=r"5\.0000001: expected a whole number"):
        translator.translate(lines, beam=5.0000001)
