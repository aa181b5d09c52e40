"""Prefixes, forced terms and banned terms of a translator."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.translation.search.generator import Generator
from relu_nmt.translation.search.translations import Hypothesis
from relu_nmt.translator import TranslationRequest, Translator
from relu_nmt.translator.sources import SourceEncoder
from tests.tiny import tiny_task
from tests.unit.translator.models import (
    DOCUMENTS,
    SHORT,
    make_models,
    make_task,
    shorten_sentences,
    texts_of,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*reached the longest output")


def test_translations_have_their_prefix_and_no_banned_term(translator):
    lines = ["ein Haus", "das Haus", ""]
    prefixes = ["the big dog", "", ""]
    texts = translator.translate(lines, prefixes=prefixes, **SHORT)
    assert texts[0].startswith("the big dog")
    assert texts[1:] == translator.translate(lines, **SHORT)[1:]
    words = texts[1].split()
    banned = [" ".join(words[:2]), "no such word"]
    other = translator.translate_nbest(lines, banned=banned, nbest=3, **SHORT)
    assert banned[0] not in "\n".join(texts_of(other[1]))
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


WANTED = [["big dog"], [], ["the", "the"], ["dog"]]


BEGINNINGS = ["", "", "a house", "the"]


@pytest.mark.filterwarnings("ignore:.*reached the longest output")
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("num_models", [1, 2])
@pytest.mark.parametrize(("limit", "overlap"), [(1, 0), (9, 0), (12, 2), (60, 0)])
def test_each_line_of_a_document_has_its_prefix_and_its_terms(num_models, limit, overlap, ordered):
    task = make_task().with_sentence_separator()
    models = make_models(task, num_models)
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
    terms = itertools.chain(*forced)
    beginnings = itertools.chain(*prefixes)
    for line, texts, beginning in zip(itertools.chain(*result), terms, beginnings, strict=True):
        assert line.startswith(beginning)
        for term in texts:
            assert term in line
            assert " " in term or line.split().count(term) >= texts.count(term)
    tokens = [line.tokens for lines in result for line in lines.translations]
    written = " ".join(itertools.chain(*tokens))
    assert "is" not in written.split() and "a ." not in written
    assert list(result) != list(free)


def test_forced_terms_of_one_document_change_no_other(separated):
    forced = [WANTED, [], [[]], [[]] * 4]
    options = {"max_doc_tokens": 20, "beam": 3, "max_len_b": 6}
    translations = separated.translate_documents(DOCUMENTS, forced=forced, **options)
    free = separated.translate_documents(DOCUMENTS, **options)
    assert translations[1:] == free[1:] and translations[0] != free[0]


def test_terms_in_documents_need_separated_sentences(separated, translator):
    documents = [["ein", "", "das"]]
    forced = [[["dog"], [], []]]
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

    def prefix_of(prefix):
        request = TranslationRequest(["das Haus"], prefixes=[prefix])
        [sentence] = sources.sentences(request)
        return sentence.prefix.tolist()

    assert prefix_of(f" {code} the") == prefix_of("the")
    with pytest.raises(DataError, match=f"begins with {other}, but the model is for {code}"):
        prefix_of(f"{other} the")


def test_a_generator_of_lines_and_a_set_of_banned_words_are_taken(translator):
    lines = ["ein Haus", "das Haus"]
    expected = translator.translate(lines, banned=["the", "big"], **SHORT)
    assert translator.translate(iter(lines), banned={"the", "big"}, **SHORT) == expected
