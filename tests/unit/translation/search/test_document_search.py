"""Documents through a made search that translates token by token, faithfully or with faults."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relu_nmt.data.document_settings import WindowConfig
from relu_nmt.data.separators import Separators, sentence_slices
from relu_nmt.errors import ConfigError
from relu_nmt.evaluation.document_scores import AlignedDocuments, join_lines
from relu_nmt.evaluation.metrics import Metric
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.document_search import SourceDocuments, translate_windows
from relu_nmt.translation.search.translations import (
    Hypothesis,
    SourceSentence,
    Translation,
)
from tests.tiny import EOS

SOURCE_SEPARATOR = 4
TARGET_SEPARATOR = 5
ROOM = GenerationConfig(max_len_a=10.0, max_len_b=100)

# The words of each sentence. A sentence may have none.
DOCUMENTS = st.lists(
    st.lists(st.lists(st.integers(10, 30), max_size=5), max_size=6), min_size=1, max_size=4
)


def name(token):
    return "<sep>" if token == TARGET_SEPARATOR else f"w{token}"


def decode(tokens):
    return " ".join(without_separators(tokens, "<sep>"))


def without_separators(tokens, separator=TARGET_SEPARATOR):
    return [token for token in tokens if token != separator]


def source_documents(documents, separated=True, **windows):
    sentences = []
    for words in itertools.chain.from_iterable(documents):
        end = [SOURCE_SEPARATOR, EOS] if separated and words else [EOS]
        sentences.append(SourceSentence(np.array([*words, *end]), list(map(str, words))))
    return SourceDocuments(
        sentences,
        np.fromiter(map(len, documents), np.int64),
        np.array([len(sentence.ids) for sentence in sentences], dtype=np.int64),
        Separators(SOURCE_SEPARATOR, TARGET_SEPARATOR) if separated else None,
        WindowConfig(**windows),
    )


class WordByWord:
    """Adds 100 to every word, and keeps all sources.

    Args:
        fault: changes the separators of what follows the context: takes its tokens, returns others.
        limit: translations of more tokens end there, as at the longest output.
    """

    def __init__(self, fault=None, limit=None):
        self.asked = []
        self.asked_tokens = []
        self.fault = fault or (lambda tokens: tokens)
        self.limit = limit

    def __call__(self, sources, first_id):
        self.asked.append(sources)
        self.asked_tokens.append([source.tokens for source in sources])
        return [[self.translate(source)] for source in sources]

    def translate(self, source):
        ids = source.ids[:-1]
        words = np.where(ids == SOURCE_SEPARATOR, TARGET_SEPARATOR, ids + 100)
        # The sentences of the context end in as many separators, wherever they were cut.
        ends = [0, *(np.flatnonzero(words == TARGET_SEPARATOR) + 1)]
        num_context = int((source.context == TARGET_SEPARATOR).sum())
        new_words = self.fault(words[ends[num_context] :].tolist())
        reached = self.limit is not None and len(new_words) > self.limit
        tokens = np.array([*new_words[: self.limit], EOS])
        scores = -np.ones(len(tokens), dtype=np.float32)
        hypothesis = Hypothesis(tokens, -1.0, scores, reached_limit=reached)
        names = list(map(name, tokens[:-1]))
        return Translation(decode(names), names, hypothesis)


def translate(documents, search, separated=True, config=ROOM, **windows):
    sources = source_documents(documents, separated, **windows)
    return translate_windows(sources, config, None, decode, search)


def texts_of(result, documents):
    assert len(result) == len(documents)
    for lines in result:
        assert lines == [line.text for line in lines.translations]
    return list(result)


def translated(words):
    return " ".join(f"w{word + 100}" for word in words)


def expected(documents):
    return [list(map(translated, document)) for document in documents]


def joined(documents):
    return [" ".join(filter(None, lines)) for lines in documents]


@given(DOCUMENTS, st.integers(2, 40), st.integers(0, 3))
def test_every_line_has_its_own_translation_in_any_windows(documents, limit, overlap):
    search = WordByWord()
    result = translate(documents, search, max_doc_tokens=limit, window_overlap=overlap)
    assert texts_of(result, documents) == expected(documents)
    assert result.num_mismatched == result.num_repeated == result.num_at_limit == 0
    assert len(result.windows) == result.num_groups
    for source in itertools.chain.from_iterable(search.asked):
        assert len(source.ids) <= limit or (source.ids == SOURCE_SEPARATOR).sum() == 1
        # The context is the translation of the beginning of the source.
        tokens = search.translate(SourceSentence(source.ids, source.tokens)).hypothesis.ids
        np.testing.assert_array_equal(source.context, tokens[: len(source.context)])


def fault_of(seed):
    """Drop or double separators, differently each time."""
    rng = random.Random(seed)

    def fault(tokens):
        repeated = []
        for token in tokens:
            copies = rng.choice([0, 1, 1, 1, 2]) if token == TARGET_SEPARATOR else 1
            repeated += [token] * copies
        return repeated

    return fault


@given(DOCUMENTS, st.integers(1, 40), st.integers(0, 3), st.integers(0, 1000))
def test_repair_gives_every_line_one_line_for_any_separators(documents, limit, overlap, seed):
    overlap = overlap if limit > 1 else 0
    search = WordByWord(fault_of(seed))
    settings = {"max_doc_tokens": limit, "window_overlap": overlap, "repair": True}
    result = translate(documents, search, **settings)
    texts = texts_of(result, documents)
    assert list(map(len, texts)) == list(map(len, documents))
    # No word is lost or moved to another document, whatever was asked again.
    assert joined(texts) == joined(expected(documents))
    sentences = zip(itertools.chain(*documents), itertools.chain(*texts), strict=True)
    assert not any(line for words, line in sentences if not words)


@given(DOCUMENTS, st.integers(1, 40), st.integers(0, 1000))
def test_without_repair_a_mismatched_group_is_one_line(documents, limit, seed):
    search = WordByWord(fault_of(seed))
    result = translate(documents, search, max_doc_tokens=limit)
    assert result.num_mismatched == sum(not window.divided for window in result.windows)
    assert len(search.asked) <= 1
    assert result.num_repeated == 0
    for part in result.windows:
        assert len(part.lines) == (part.window.num_new if part.divided else 1)
    assert joined(texts_of(result, documents)) == joined(expected(documents))


def random_document(rng):
    return [rng.choices(range(10, 20), k=rng.randint(0, 9)) for _ in range(rng.randint(1, 9))]


def test_d_bleu_of_the_same_translations_does_not_depend_on_the_groups():
    rng = random.Random(1)
    documents = [random_document(rng) for _ in range(6)]
    texts = map("\n".join, expected(documents))
    references = [text.replace("w113", "other").split("\n") for text in texts]
    scores = set()
    for limit in (1, 4, 9, 20, 33, 1000):
        for separated in (True, False):
            for seed in (0, 1):
                search = WordByWord(fault_of(seed) if separated else None)
                result = translate(documents, search, separated, max_doc_tokens=limit)
                texts = texts_of(result, documents)
                scores.add(str(AlignedDocuments(texts, [references]).document_score(Metric())))
    assert len(scores) == 1


MOSES = TextPipeline("en", tokenizer="moses", sentence_separator="<sep>")
QUOTED = ["dogs", "house", "&quot;", "&apos;", "&apos;s", ",", ".", "<sep>"]
"""Translations of the words 10 to 17. The last is one separator too many."""


def quote(sources, first_id):
    """Translate word by word into text whose quotes may be left open."""
    translations = []
    for source in sources:
        words = source.ids[:-1].tolist()
        names = ["<sep>" if word == SOURCE_SEPARATOR else QUOTED[word - 10] for word in words]
        ids = [TARGET_SEPARATOR if token == "<sep>" else 100 for token in names]
        hypothesis = Hypothesis(np.array([*ids, EOS]), -1.0, -np.ones(len(ids) + 1))
        translations.append([Translation(MOSES.decode(names), names, hypothesis)])
    return translations


SENTENCES_WITH_QUOTES = st.lists(st.integers(10, 17), max_size=8)


@given(st.lists(st.lists(SENTENCES_WITH_QUOTES, min_size=1, max_size=6), min_size=1, max_size=3))
@example([[[10, 12, 11], [11, 12, 10], [13, 10, 17, 12, 13, 11]]])
@example([[[12, 10, 16], [17, 12, 11, 12, 10], [12, 10, 12, 10, 12]]])
def test_open_quotes_do_not_run_on_from_sentence_to_sentence(documents):
    texts = set()
    for limit in (1, 9, 17, 1000):
        sources = source_documents(documents, max_doc_tokens=limit)
        lines_of_documents = translate_windows(sources, ROOM, None, MOSES.decode, quote)
        lines_of_documents = texts_of(lines_of_documents, documents)
        texts.add(tuple(join_lines(lines_of_documents)))
    assert len(texts) == 1


def test_mismatched_groups_are_translated_again_in_halves():
    documents = [[[11], [12], [13], [14]]]
    calls = []

    def lose_separators_of_four(tokens):
        calls.append(len(tokens))
        return without_separators(tokens) if len(tokens) > 4 else tokens

    search = WordByWord(lose_separators_of_four)
    result = translate(documents, search, max_doc_tokens=50, repair=True)
    assert calls == [8, 4, 4]
    assert list(map(len, search.asked)) == [1, 2]  # both halves in one batch
    assert (result.num_groups, result.num_mismatched, result.num_repeated) == (1, 1, 1)
    assert texts_of(result, documents) == expected(documents)


def test_groups_at_the_longest_output_are_translated_again_in_halves():
    documents = [[[11, 12], [13, 14]]]
    search = WordByWord(limit=5)
    result = translate(documents, search, max_doc_tokens=50, repair=True)
    assert texts_of(result, documents) == expected(documents)
    assert (result.num_mismatched, result.num_repeated, result.num_at_limit) == (0, 1, 0)
    cut = translate(documents, WordByWord(limit=5), max_doc_tokens=50)
    assert cut.num_at_limit == 1
    alone = translate([[[11, 12, 13]]], WordByWord(limit=2), max_doc_tokens=50, repair=True)
    assert (alone.num_at_limit, alone.num_repeated) == (1, 0)


def test_windows_wait_for_those_before_in_their_document_only():
    documents = [[[11], [12], [13]], [[21]], [[], [31], [32]]]
    search = WordByWord()
    result = translate(documents, search, max_doc_tokens=5, window_overlap=1)
    assert texts_of(result, documents) == expected(documents)
    assert search.asked_tokens == [[["11", "12"], ["21"], ["31", "32"]], [["12", "13"]]]
    assert search.asked[1][0].context.tolist() == [112, TARGET_SEPARATOR]
    last = result.windows[1]
    [line] = last.lines
    assert line.text == "w113"
    assert last.translations[0].text == "w113"
    assert last.translations[0].hypothesis.ids.tolist() == [113, TARGET_SEPARATOR, EOS]


def test_context_without_a_translation_of_its_own_is_not_given():
    documents = [[[11], [12], [13], [14], [15]]]
    no_separators = WordByWord(without_separators)
    result = translate(documents, no_separators, max_doc_tokens=7, window_overlap=2)
    source_tokens = list(itertools.chain(*no_separators.asked_tokens))
    # The first three are one text, so that nothing is known of 12 and 13. 14 was told alone.
    assert source_tokens == [["11", "12", "13"], ["14"], ["14", "15"]]
    assert result.num_mismatched == 1


def test_context_leaves_the_new_sentences_their_share_of_the_output():
    documents = [[[11], [12], [13]]]
    tight = GenerationConfig(max_len_a=0.0, max_len_b=2)  # no room for a context of 2 and more
    search = WordByWord()
    translate(documents, search, max_doc_tokens=5, window_overlap=1, config=tight)
    assert search.asked_tokens == [[["11", "12"]], [["13"]]]


def test_references_are_those_of_the_new_sentences():
    sources = source_documents([[[11], [12], [13]]], max_doc_tokens=5, window_overlap=1)
    sentences = [
        SourceSentence(s.ids, s.tokens, np.array([50 + i, TARGET_SEPARATOR, EOS]))
        for i, s in enumerate(sources.sentences)
    ]
    sources = replace(sources, sentences=sentences)
    first, second = translate_windows(sources, ROOM, None, decode, WordByWord()).windows
    assert first.source.reference.tolist() == [50, TARGET_SEPARATOR, 51, TARGET_SEPARATOR, EOS]
    assert second.source.reference.tolist() == [52, TARGET_SEPARATOR, EOS]
    assert second.source.tokens == ["12", "13"]


def test_an_overlap_needs_separators():
    with pytest.raises(ConfigError, match=r"--window-overlap 1: .*--sentence-separator"):
        translate([[[11]]], WordByWord(), separated=False, max_doc_tokens=9, window_overlap=1)


@given(st.lists(st.sampled_from([7, 8, TARGET_SEPARATOR]), max_size=8))
def test_slices_are_the_tokens_between_separators(tokens):
    parts = "".join(map(str, tokens)).replace(str(TARGET_SEPARATOR), "|").split("|")
    parts = parts if parts[-1] else parts[:-1]
    slices = sentence_slices(np.array(tokens, dtype=np.int64), TARGET_SEPARATOR)
    assert ["".join(map(str, tokens[part])) for part in slices] == parts
