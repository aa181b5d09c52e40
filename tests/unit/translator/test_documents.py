"""Documents, which a translator reads in windows."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from relu_nmt.config import to_dict
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.document_settings import WindowConfig
from relu_nmt.data.groups import Window
from relu_nmt.errors import CheckpointError, ConfigError, DataError
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.training.checkpoint import Checkpoint, save_checkpoint
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.translations import Hypothesis, SourceLimit, Translation
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator import TranslationRequest, Translator
from tests.unit.translator.models import (
    DOCUMENTS,
    LINES,
    SHORT,
    best_of,
    make_model,
    make_models,
    make_task,
    scores_of,
    shorten_sentences,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*reached the longest output")


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
    models = make_models(task, num_models)
    separated = Translator(models, task, "cpu")
    documents = [["ein Haus", "das", "", "Haus gross ."], ["gross ."], [], ["das Haus"] * 5]
    for limit, overlap in ((1, 0), (9, 0), (9, 2), (60, 0)):
        windows = {"max_doc_tokens": limit, "window_overlap": overlap}
        limits = {"max_len_a": 0.0, "max_len_b": 20, **search}
        translations = separated.translate_documents(documents, **windows, **limits)
        assert list(map(len, translations)) == list(map(len, documents))
        assert translations.num_mismatched == translations.num_undivided == 0
        for window in translations.windows:
            for translation in window.translations:
                count = sum(bool(lines.strip()) for lines in lines_of(window.window, documents))
                assert translation.tokens.count("<sep>") == count


def lines_of(window, documents):
    lines = list(itertools.chain(*documents))
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

    def copy_all(sources, first_id):
        return [copy] * len(sources)

    monkeypatch.setattr(translator, "window_translator", lambda *_: copy_all)
    assert translator.translate_document(lines, max_doc_tokens=20) == ["all of it"]
    with pytest.raises(ConfigError, match=r"--window-overlap 1: .*--sentence-separator"):
        translator.translate_document(lines, max_doc_tokens=20, window_overlap=1)


def test_an_overlap_forces_the_translation_of_the_context(separated, monkeypatch):
    requests = []
    window_translator = separated.window_translator

    def noting(*arguments):
        translate = window_translator(*arguments)

        def note(sources, first_id):
            results = translate(sources, first_id)
            requests.extend(zip(sources, best_of(results), strict=True))
            return results

        return note

    monkeypatch.setattr(separated, "window_translator", noting)
    shorten_sentences(separated)
    # A limit that only ever leaves room for one new sentence and one of context.
    lines = ["ein Haus", "das Haus", "Haus gross", "gross ."]
    texts = separated.translate_document(lines, max_doc_tokens=8, window_overlap=1, max_len_b=20)
    assert len(texts) == len(lines)
    overlapping = [pair for pair in requests if len(pair[0].context)]
    assert overlapping
    for source, best in overlapping:
        assert len(source.context) + len(best.hypothesis.ids) <= 1.5 * len(source.ids) + 20 + 1
        # The model's own probabilities of the new text, behind the context.
        reference = np.concatenate([source.context, best.hypothesis.ids])
        pair = replace(source, reference=reference, context=np.zeros(0, dtype=np.int64))
        [[scored]] = window_translator(GenerationConfig(score_reference=True))([pair])
        expected = scored.hypothesis.positional_scores[len(source.context) :]
        np.testing.assert_allclose(best.hypothesis.positional_scores, expected, atol=1e-4)
        assert best.score == pytest.approx(expected.mean(), abs=1e-4)


@pytest.mark.parametrize("seed", [0, 1])
def test_hypotheses_behind_a_context_are_ranked_by_their_new_text(seed):
    task = make_task().with_sentence_separator()
    separated = Translator([make_model(task, seed)], task, "cpu")
    shorten_sentences(separated)
    lines = ["ein Haus", "das Haus", "Haus gross", "gross ."]
    request = TranslationRequest(lines, windows=WindowConfig(8, 1, repair=True))
    config = GenerationConfig(beam=6, nbest=6, max_len_b=20).resolved(documents=True)
    answer = separated.translate_sources(separated.sources.encode(request), config)
    assert any(result.window.context < result.window.first for result in answer.windows)
    for translated in answer.windows:
        scores = scores_of(translated.translations)
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
    separator = task.separators[0]
    unknown = Dictionary.unk_index
    ids = translator.sources.sentence("ein <sep> Haus <sep>").ids.tolist()
    assert ids[1] == ids[3] == unknown
    assert ids[4:] == [separator, Dictionary.eos_index]


def test_tokens_and_ids_agree_after_a_sentence_is_cut(separated):
    limit = SourceLimit(4, truncate=True, separator=separated.sources.separators.source)
    lines = ["das Haus ist gross .", "ein Haus"]
    documents = separated.sources.encode(TranslationRequest(lines, limit=limit))
    source = documents.joined(Window(0, 0, 0, 2))
    assert source.tokens == ["das", "Haus", "<sep>", "ein", "Haus", "<sep>"]
    assert separated.task.source_dictionary.encode(source.tokens).tolist() == source.ids.tolist()


def test_a_translation_reports_whether_it_reached_the_limit(translator):
    for length, sure in ((1, True), (60, False)):
        (best,) = translator.translate_nbest(["ein Haus ist gross ."], beam=3, max_len_b=length)[0]
        assert best.reached_limit == (len(best.hypothesis.ids) > length)
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
