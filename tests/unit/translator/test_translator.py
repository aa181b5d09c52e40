import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from relu_nmt.config import to_dict
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.documents import Window, WindowConfig
from relu_nmt.engine import FastDecoder
from relu_nmt.engine.linear import PackedLinear, can_pack
from relu_nmt.errors import CheckpointError, ConfigError, DataError
from relu_nmt.tokenization.base import WholeWords
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.training.checkpoint import Checkpoint, save_checkpoint
from relu_nmt.translation.base import StepDecoder
from relu_nmt.translation.building import load_model
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.generator import Generator
from relu_nmt.translation.search.hypotheses import Hypothesis
from relu_nmt.translation.search.translations import SourceLimit, Translation
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator import TranslationRequest, Translator
from relu_nmt.translator.sources import SourceEncoder
from tests.tiny import save_tiny_model, tiny_model, tiny_task

pytestmark = pytest.mark.filterwarnings("ignore:.*reached the longest output")

SHAPE = {"ffn_embed_dim": 2048}
SHORT = {"beam": 3, "max_len_b": 6}
LINES = ["ein Haus", "", "das Haus ist gross .", "   ", "ein Xaver", "Haus\tHaus", "gross"]


def make_task(words="ein das Haus ist gross . house dog is big a the"):
    return tiny_task(words.split(), tokenizer="moses")


def make_model(task, seed=0, **settings):
    return tiny_model(task, seed, SHAPE, attention="reluformer", **settings).eval()


def save(path, task, seed=0):
    save_tiny_model(path, task, seed, SHAPE, attention="reluformer")
    return path


@pytest.fixture
def translator():
    task = make_task()
    return Translator([make_model(task)], task, "cpu")


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
    assert [t.score for t in translations] == sorted((t.score for t in translations), reverse=True)
    assert translations[0].text == translator.translate(LINES[:1], GenerationConfig(**SHORT))[0]
    assert translations[0].tokens == translator.task.target_dictionary.symbols_of(
        translations[0].hypothesis.tokens
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
    scores = [t[0].score for t in pair.translate_nbest(LINES, **SHORT)]
    other = Translator.from_checkpoint([second, first], "cpu").translate_nbest(LINES, **SHORT)
    np.testing.assert_allclose(scores, [t[0].score for t in other], atol=1e-5)

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
            {"subword": WholeWords("@@ ")},
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
    assert [type(decoder) for decoder in translator.decoders] == [kind]


def test_loaded_models_have_packed_weights_and_translate_the_same(tmp_path):
    path = save(tmp_path / "1.safetensors", make_task())
    loaded, (plain, task, _) = Translator.from_checkpoint(path, "cpu"), load_model(path)
    expected = Translator([plain], task, "cpu").translate_nbest(LINES, **SHORT)
    translations = loaded.translate_nbest(LINES, **SHORT)
    assert type(loaded.models[0].output_projection) is PackedLinear
    assert [t[0].text for t in translations] == [t[0].text for t in expected]
    np.testing.assert_allclose(
        [t[0].score for t in translations], [t[0].score for t in expected], atol=1e-5
    )


def test_bfloat16_is_near_float32(translator):
    task = translator.task
    half = Translator(translator.models, task, "cpu", torch.bfloat16)
    full_scores = [t[0].score for t in translator.translate_nbest(LINES, **SHORT)]
    half_scores = [t[0].score for t in half.translate_nbest(LINES, **SHORT)]
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
    monkeypatch.setattr(translator, "searcher", lambda *_: pytest.fail)
    with pytest.raises(DataError, match="the model can read 6"):
        lines = ["Haus"] * 9 + ["das Haus ist gross und ein Haus"]
        translator.translate_document(lines, max_doc_tokens=6, window_overlap=1)


DOCUMENTS = [["ein Haus", "", "das Haus ist gross .", "Haus"], [], ["gross"], ["ist ein Haus"] * 4]


@pytest.fixture
def separated():
    task = make_task().with_sentence_separator()
    return Translator([make_model(task)], task, "cpu", max_doc_tokens=30)


def shorten_sentences(translator):
    """Let an untrained model end sentences sooner than by chance."""
    bonus = torch.zeros(len(translator.task.target_dictionary))
    bonus[translator.task.separators[1]] = 3.0
    for model in translator.models:
        model.output_projection.register_forward_hook(lambda *call: call[-1] + bonus)


@pytest.mark.filterwarnings("ignore:.*reached the longest output")
@pytest.mark.parametrize(
    "search",
    [
        {"beam": 3},
        {"beam": 1},
        {"beam": 2, "sampling": True},
        {"beam": 4, "diverse_beam_groups": 2},
        {"beam": 2, "no_repeat_ngram_size": 1},
        {"beam": 2, "min_len": 9, "stop_rule": "exact"},
        {"beam": 2, "max_len_a": 0.0, "max_len_b": 1},
    ],
)
@pytest.mark.parametrize("num_models", [1, 2])
def test_each_line_of_a_document_has_a_sentence_of_its_own(search, num_models):
    task = make_task().with_sentence_separator()
    models = [make_model(task, seed) for seed in range(num_models)]
    separated = Translator(models, task, "cpu")
    documents = [["ein Haus", "das", "", "Haus gross ."], ["gross ."], [], ["das Haus"] * 5]
    for limit, overlap in ((1, 0), (9, 0), (9, 2), (60, 0)):
        windows = {"max_doc_tokens": limit, "window_overlap": overlap}
        translations = separated.translate_documents(documents, **windows, **search)
        assert list(map(len, translations)) == list(map(len, documents))
        assert translations.num_mismatched == translations.num_undivided == 0
        for window in translations.windows:
            for translation in window.translations:
                count = sum(bool(lines.strip()) for lines in lines_of(window.window, documents))
                assert translation.tokens.count("<sep>") == count


def lines_of(window, documents):
    lines = [line for document in documents for line in document]
    return lines[window.first : window.end]


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_doc_tokens": 1}, {"max_doc_tokens": 9}, {"max_doc_tokens": 9, "window_overlap": 2}],
)
def test_translated_documents_have_as_many_lines_as_their_sources(separated, settings):
    translations = separated.translate_documents(DOCUMENTS, **settings, beam=2, max_len_b=6)
    assert list(map(len, translations)) == list(map(len, DOCUMENTS))
    assert translations[0][1] == ""
    alone = [separated.translate_document(d, **settings, beam=2, max_len_b=6) for d in DOCUMENTS]
    assert alone == translations
    assert separated.translate_documents([], **settings) == []


def test_documents_may_be_groups_that_are_read_once(separated):
    documents = [["ein Haus", "gross"], ["das Haus"]]
    lines = [*documents[0], None, *documents[1]]
    groups = itertools.groupby(lines, lambda line: line is not None)
    texts = separated.translate_documents((group for is_text, group in groups if is_text), **SHORT)
    assert texts == separated.translate_documents(documents, **SHORT)


def test_single_lines_of_documents_are_translated_as_sentences(separated):
    lines = separated.translate(LINES, beam=2, max_len_a=1.5, max_len_b=50)
    assert separated.translate_documents([LINES], max_doc_tokens=1, beam=2) == [lines]


def test_a_group_gives_one_line_without_separators(translator, monkeypatch):
    lines = ["ein Haus", "das Haus", "gross"]
    assert translator.max_doc_tokens == 1
    assert translator.translate_document(lines, beam=2) == translator.translate(
        lines, beam=2, max_len_a=1.5, max_len_b=50
    )
    copy = [Translation("all of it", ["all"], Hypothesis(np.array([4, 2]), -1.0, -np.ones(2)))]
    monkeypatch.setattr(translator, "searcher", lambda *_: lambda sources: [copy for _ in sources])
    assert translator.translate_document(lines, max_doc_tokens=20) == ["all of it"]
    with pytest.raises(ConfigError, match=r"--window-overlap 1: .*--sentence-separator"):
        translator.translate_document(lines, max_doc_tokens=20, window_overlap=1)


def test_an_overlap_forces_the_translation_of_the_context(separated, monkeypatch):
    requests = []
    searcher = separated.searcher

    def noting(*arguments):
        search = searcher(*arguments)

        def note(sources):
            results = search(sources)
            pairs = zip(sources, results, strict=True)
            requests.append([(source, best) for source, (best, *_) in pairs])
            return results

        return note

    monkeypatch.setattr(separated, "searcher", noting)
    shorten_sentences(separated)
    # A limit that only ever leaves room for one new sentence and one of context.
    lines = ["ein Haus", "das Haus", "Haus gross", "gross ."]
    texts = separated.translate_document(lines, max_doc_tokens=8, window_overlap=1, max_len_b=20)
    assert len(texts) == len(lines)
    overlapping = [pair for batch in requests for pair in batch if len(pair[0].context)]
    assert overlapping
    for source, best in overlapping:
        assert len(source.context) + len(best.hypothesis.tokens) <= 1.5 * len(source.ids) + 20 + 1
        # The model's own probabilities of the new text, behind the context.
        reference = np.concatenate([source.context, best.hypothesis.tokens])
        pair = replace(source, reference=reference, context=np.zeros(0, dtype=np.int64))
        [[scored]] = searcher(GenerationConfig(score_reference=True))([pair])
        expected = scored.hypothesis.positional_scores[len(source.context) :]
        np.testing.assert_allclose(best.hypothesis.positional_scores, expected, atol=1e-4)
        assert best.score == pytest.approx(expected.mean(), abs=1e-4)


@pytest.mark.parametrize("seed", [0, 1])
def test_hypotheses_behind_a_context_are_ranked_by_their_new_text(seed):
    task = make_task().with_sentence_separator()
    separated = Translator([make_model(task, seed)], task, "cpu")
    shorten_sentences(separated)
    lines = ["ein Haus", "das Haus", "Haus gross", "gross ."]
    sources = separated.sources.encode(TranslationRequest(lines))
    config = GenerationConfig(beam=6, nbest=6, max_len_b=20).resolved(documents=True)
    answer = separated.answer(sources, config, WindowConfig(8, 1, repair=True))
    assert any(result.window.context < result.window.first for result in answer.windows)
    for translated in answer.windows:
        scores = [translation.score for translation in translated.translations]
        assert scores == sorted(scores, reverse=True)
        for translation in translated.translations:
            mean = translation.hypothesis.positional_scores.mean()
            assert translation.score == pytest.approx(mean, abs=1e-5)


def test_a_single_text_instead_of_a_list_is_an_error(separated):
    text = "ein Haus"
    for translate in (
        separated.translate,
        separated.translate_nbest,
        separated.translate_document,
        separated.translate_documents,
    ):
        with pytest.raises(DataError, match=r"\[text\]"):
            translate(text)
    with pytest.raises(DataError, match=r"\[text\]"):
        separated.translate_documents([text])


def test_each_window_of_a_document_draws_its_own_samples(separated):
    lines = ["ein Haus"] * 4
    settings = {"sampling": True, "beam": 1, "max_len_b": 9, "max_doc_tokens": 4}
    separated.models[0].output_projection.weight.data.zero_()  # only the numbers drawn decide
    texts = separated.translate_document(lines, window_overlap=1, **settings)
    assert len(set(texts)) == len(lines)
    assert texts == separated.translate_document(lines, window_overlap=1, **settings)


def test_a_separator_in_the_text_is_an_unknown_word():
    words = Dictionary(["ein", "Haus"])
    task = TranslationTask(TextPipeline("de"), TextPipeline("en"), words, words)
    task = task.with_sentence_separator()
    translator = Translator([make_model(task)], task, "cpu")
    separator, unknown = task.separators[0], Dictionary.unk_index
    ids = translator.sources.sentence("ein <sep> Haus <sep>").ids.tolist()
    assert ids[1] == ids[3] == unknown
    assert ids[4:] == [separator, Dictionary.eos_index]


def test_tokens_and_ids_agree_after_a_sentence_is_cut(separated):
    limit = SourceLimit(4, truncate=True, separators=separated.sources.separators)
    lines = ["das Haus ist gross .", "ein Haus"]
    documents = separated.sources.encode(TranslationRequest(lines)).limited(limit)
    source = documents.joined(Window(0, 0, 0, 2))
    assert source.tokens == ["das", "Haus", "<sep>", "ein", "Haus", "<sep>"]
    assert separated.task.source_dictionary.encode(source.tokens).tolist() == source.ids.tolist()


def test_a_translation_reports_whether_it_reached_the_limit(translator):
    for length, sure in ((1, True), (60, False)):
        (best,) = translator.translate_nbest(["ein Haus ist gross ."], beam=3, max_len_b=length)[0]
        assert best.reached_limit == (len(best.hypothesis.tokens) > length)
        assert best.reached_limit or not sure
    assert not translator.translate_nbest([""], max_len_b=1)[0][0].reached_limit


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (None, 1),
        ({"max_doc_tokens": 64}, 64),
        ({"max_doc_tokens": 512, "doc_mixture": [1, 256, 128]}, 256),
    ],
)
def test_the_length_of_the_groups_comes_from_the_training(tmp_path, settings, expected):
    task = make_task()
    model = make_model(task)
    metadata = {"model_config": to_dict(model.config), "task": task.to_state()}
    if settings is not None:
        metadata["args"] = {"documents": settings}
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, Checkpoint(model.state_dict(), metadata))
    assert Translator.from_checkpoint(path, "cpu").max_doc_tokens == expected


def test_damaged_settings_of_documents_name_the_file(tmp_path):
    task = make_task()
    model = make_model(task)
    for damaged in (7, {"max_doc_tokens": "x"}, {"other": 1}):
        metadata = {"model_config": to_dict(model.config), "task": task.to_state()}
        metadata["args"] = {"documents": damaged}
        path = tmp_path / "model.safetensors"
        save_checkpoint(path, Checkpoint(model.state_dict(), metadata))
        with pytest.raises(CheckpointError, match=r"model.safetensors: .*documents"):
            Translator.from_checkpoint(path, "cpu")


def test_translations_have_their_prefix_and_no_banned_term(translator):
    lines, prefixes = ["ein Haus", "das Haus", ""], ["The big dog".lower(), "", ""]
    texts = translator.translate(lines, prefixes=prefixes, **SHORT)
    assert texts[0].startswith("the big dog")
    assert texts[1:] == translator.translate(lines, **SHORT)[1:]
    words = texts[1].split()
    banned = [" ".join(words[:2]), "no such word"]
    other = translator.translate_nbest(lines, banned=banned, nbest=3, **SHORT)
    assert not any(banned[0] in translation.text for translation in other[1])
    # A forced term may contain banned words.
    text = translator.translate(["ein Haus"], prefixes=["the big"], banned=["the"], **SHORT)
    assert text[0].startswith("the big") and "the" not in text[0].split()[2:]


def test_the_numbers_of_prefixes_and_lines_must_agree(translator):
    with pytest.raises(DataError, match="1 prefix, but 2 lines"):
        translator.translate(["ein", "das"], prefixes=["a"])
    with pytest.raises(DataError, match="1 term list, but 2 lines"):
        translator.translate(["ein", "das"], forced=[["a"]])


@pytest.mark.parametrize("ordered", [True, False])
def test_translations_contain_their_forced_terms(translator, ordered):
    lines = ["ein Haus", "", "das Haus", "das"]
    forced = [["a big dog", "the ."], [" "], [], ["big", " ", "big"]]
    texts = translator.translate(lines, forced=forced, ordered=ordered, **SHORT)
    assert "a big dog" in texts[0] and "the." in texts[0]
    assert ordered <= (texts[0].index("a big dog") < texts[0].index("the."))
    assert texts[1] == "" and texts[2] == translator.translate(lines, **SHORT)[2]
    assert texts[3].split().count("big") >= 2
    # A forced term may contain banned words.
    [[best]] = translator.translate_nbest(
        ["das"], forced=[["big dog"]], banned=["dog"], ordered=ordered, **SHORT
    )
    assert "big dog" in best.text and best.text.split().count("dog") == 1


def test_a_single_text_in_place_of_a_list_is_an_error(translator):
    for texts in ("", "das Haus"):
        with pytest.raises(DataError, match="documents are lists of lines, not one text"):
            translator.translate_documents(texts)
    for option in ({"prefixes": "a"}, {"forced": "a"}, {"banned": "a"}, {"forced": ["a"]}):
        with pytest.raises(DataError, match="a list of lines is wanted, not one text"):
            translator.translate_documents([["das"]], **option)
    with pytest.raises(DataError, match=r"not one text \('a b'\)"):
        translator.sources.sentence("das", forced="a b")


@pytest.mark.parametrize("term", ["a Xaver", "</s>"])
def test_a_term_that_the_model_cannot_write_is_an_error(translator, term):
    with pytest.raises(DataError, match=f"the term '{term}' cannot be forced: the model has no"):
        translator.translate(["das"], forced=[["a", term]])
    with pytest.raises(DataError, match="a list of lines is wanted, not one text"):
        translator.translate(["das"], forced=["dog"])
    with pytest.raises(DataError, match=f"line 2: the prefix '{term}' cannot be forced: the m"):
        translator.translate(["das", "ein"], prefixes=["", term])


@pytest.mark.parametrize("options", [{"forced": [[], ["", "dog"]]}, {"prefixes": ["", "dog"]}])
def test_a_prefix_or_term_in_a_blank_line_is_an_error(translator, options):
    with pytest.raises(DataError, match="'dog' cannot be forced: the line is blank"):
        translator.translate(["das", " "], **options)


@pytest.mark.parametrize("wrong", [None, 1, b"das", ["das"], "das \ud800"])
def test_a_value_that_is_no_text_is_an_error(translator, wrong):
    cases = [{"lines": ["das", wrong]}, {"lines": ["das"], "banned": [wrong]}]
    cases += [{"lines": ["das"], "prefixes": [wrong]}, {"lines": ["das"], "forced": [["a", wrong]]}]
    for settings in cases:
        with pytest.raises(DataError, match=r"a text is wanted, not|is no text that"):
            translator.translate(**settings, **SHORT)


@pytest.mark.parametrize("device", ["nowhere", "cuda:99"])
def test_a_missing_device_is_an_error(translator, device):
    with pytest.raises(ConfigError, match=f"device {device}: "):
        Translator(translator.models, translator.task, device)


WANTED = [["big dog"], [], ["the", "the"], ["dog"]]
BEGINNINGS = ["", "", "a house", "the"]


@pytest.mark.filterwarnings("ignore:.*reached the longest output")
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("num_models", [1, 2])
@pytest.mark.parametrize(("limit", "overlap"), [(1, 0), (9, 0), (12, 2), (60, 0)])
def test_each_line_of_a_document_has_its_prefix_and_its_terms(num_models, limit, overlap, ordered):
    task = make_task().with_sentence_separator()
    models = [make_model(task, seed) for seed in range(num_models)]
    separated = Translator(models, task, "cpu")
    shorten_sentences(separated)
    search = {"max_doc_tokens": limit, "window_overlap": overlap, "beam": 4}
    free = separated.translate_documents(DOCUMENTS, **search)
    documents = [DOCUMENTS[0], [], ["gross"], DOCUMENTS[3]]
    forced = [WANTED, [], [[]], [["the big"]] * 4]
    prefixes = [BEGINNINGS, [], [""], [""] * 4]
    result = separated.translate_documents(
        documents, **search, prefixes=prefixes, forced=forced, ordered=ordered, banned=["is", "a ."]
    )
    assert list(map(len, result)) == [4, 0, 1, 4] and result[0][1] == ""
    assert result.num_mismatched == result.num_undivided == 0
    lines = [line for document in result for line in document]
    terms, beginnings = (list(itertools.chain.from_iterable(lists)) for lists in (forced, prefixes))
    for line, texts, beginning in zip(lines, terms, beginnings, strict=True):
        assert line.startswith(beginning)
        single_words = [word for word in texts if " " not in word]
        assert all(line.split().count(word) >= texts.count(word) for word in single_words)
        assert all(term in line for term in texts)
    written = " ".join(token for group in result.lines for line in group for token in line.tokens)
    assert "is" not in written.split() and "a ." not in written
    assert any(lines != other_lines for lines, other_lines in zip(result, free, strict=True))


def test_forced_terms_of_one_document_change_no_other(separated):
    forced = [WANTED, [], [[]], [[]] * 4]
    options = {"max_doc_tokens": 20, "beam": 3, "max_len_b": 6}
    translations = separated.translate_documents(DOCUMENTS, forced=forced, **options)
    free = separated.translate_documents(DOCUMENTS, **options)
    assert translations[1:] == free[1:] and translations[0] != free[0]


def test_terms_in_documents_need_separated_sentences(separated, translator):
    documents, forced = [["ein", "", "das"]], [[["dog"], [], []]]
    for other, settings, reason in (
        (translator, {}, "was trained without --sentence-separator"),
        (separated, {"free_sentence_count": True}, r"any number of them \(--free-sentence-count"),
    ):
        with pytest.raises(ConfigError, match=reason):
            other.translate_documents(documents, max_doc_tokens=9, forced=forced, **settings)
        with pytest.raises(ConfigError, match=r"line by line \(--max-doc-tokens 1\)"):
            prefixes = [["", "", "dog"]]
            other.translate_documents(documents, 9, prefixes=prefixes, **settings)
        texts = other.translate_documents(documents, 1, forced=forced, max_len_b=5, **settings)
        assert "dog" in texts[0][0]
    with pytest.raises(DataError, match="'dog' cannot be forced: the line is blank"):
        separated.translate_documents(documents, forced=[[[], ["dog"], []]])
    with pytest.raises(DataError, match="a list for each document"):
        separated.translate_documents(documents, forced=[])
    with pytest.raises(DataError, match="2 prefixes, but 3 lines"):
        separated.translate_documents(documents, prefixes=[["a", "a"]])


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
    ("banned", "options", "expected"),
    [
        (["garten"], {}, "<unk> <unk>"),
        (["garten"], {"match_case": True}, "Garten Garten"),
        (["art"], {}, "Garten Garten"),
        (["art"], {"inside_words": True}, "<unk> <unk>"),
        (["Garten Garten"], {}, "Garten <unk>"),
        (["Hof"], {}, "Garten Garten"),
    ],
)
def test_a_copied_word_is_not_banned(translator, monkeypatch, banned, options, expected):
    hypothesis = Hypothesis(
        np.array([Dictionary.unk_index] * 2 + [Dictionary.eos_index]),
        0.0,
        np.zeros(3),
        np.zeros(3, int),
    )
    monkeypatch.setattr(Generator, "translate", lambda *_: [[hypothesis]])
    translated = translator.translate(["Garten"], replace_unk="", banned=banned, **options)
    assert translated == [expected]


@pytest.mark.parametrize(
    ("side", "code", "other"), [("target", "__en__", "__de__"), ("source", ">>eng<<", ">>fra<<")]
)
def test_a_typed_code_before_a_prefix_is_the_code_of_the_model(side, code, other):
    task = tiny_task(["das", "Haus", "the", code])
    text = replace(getattr(task, f"{side}_text"), first_symbol=code)
    sources = SourceEncoder(replace(task, **{f"{side}_text": text}))
    prefix = sources.sentence("das Haus", prefix="the").prefix
    assert sources.sentence("das Haus", prefix=f" {code} the").prefix.tolist() == prefix.tolist()
    with pytest.raises(DataError, match=f"begins with {other}, but the model is for {code}"):
        sources.sentence("das Haus", prefix=f"{other} the")


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


def test_a_generator_of_lines_and_a_set_of_banned_words_are_taken(translator):
    lines, banned = ["ein Haus", "das Haus"], ["the", "big"]
    expected = translator.translate(lines, banned=banned, **SHORT)
    assert translator.translate((line for line in lines), banned=set(banned), **SHORT) == expected


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
