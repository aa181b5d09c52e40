from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.documents import write_documents
from relu_nmt.data.groups import Window
from relu_nmt.errors import DataError
from relu_nmt.evaluation.metrics import Metric, ScoringConfig
from relu_nmt.evaluation.split_scorer import SplitScorer
from relu_nmt.jobs.translate.split import aligned_sentences
from relu_nmt.translation.search.document_search import WindowTranslation
from relu_nmt.translation.search.translations import Line, Translation
from relu_nmt.translation.task import TranslationTask
from tests.tiny import preprocessed, write_lines

REFERENCES = ["A dog isn't here, is it?", "The xylophone is big.", "A house is here."]
WORDS = ["a dog isn &apos;t here , is it ?", "the xylophone is big .", "a house is here ."]


@pytest.fixture
def corpus(tmp_path):
    for split, lines in (("train", REFERENCES[::2] * 3), ("test", REFERENCES)):
        write_lines(tmp_path, split, lines)
    return tmp_path


def folder(corpus, **settings):
    data = preprocessed(corpus, splits=("train", "test"), **settings)
    return TranslationTask.from_data_folder(data)


def scored(task, texts, tokens, config, counts=None):
    lines = list(map(Line, texts, tokens))
    return SplitScorer(task, task.load_split("test"), config).score(lines, counts)


def test_raw_text_is_compared_with_the_raw_references(corpus):
    task = folder(corpus, tokenizer="moses", lowercase=True)
    tokens = list(map(str.split, WORDS))
    texts = list(map(task.target_text.decode, tokens))
    score = scored(task, texts, tokens, ScoringConfig())
    assert score.value == pytest.approx(100)
    assert "case:lc" in score.signature
    assert "tok:13a" in score.signature
    cased = scored(task, texts, tokens, ScoringConfig(sacrebleu_lowercase=False))
    assert cased.value < 100
    assert "case:mixed" in cased.signature
    other = ScoringConfig(sacrebleu_tokenizer="char")
    assert "tok:char" in scored(task, texts, tokens, other).signature
    chrf = scored(task, texts, tokens, ScoringConfig(scoring="chrf"))
    assert chrf == Metric("chrf", lowercase=True).score(texts, [REFERENCES])


def test_whole_documents_are_compared_with_joined_references(corpus):
    task = folder(corpus, tokenizer="moses", lowercase=True)
    documents = np.array([1, 2])
    texts = [REFERENCES[0], f"{REFERENCES[1]} {REFERENCES[2]}"]
    tokens = list(map(task.target_text.encode, texts))
    for scoring in ("sacrebleu", "bleu", "chrf"):
        score = scored(task, texts, tokens, ScoringConfig(scoring=scoring), documents)
        assert score.value == pytest.approx(100)


def test_tokenized_text_is_compared_with_tokenized_references(corpus):
    task = folder(corpus, tokenizer="moses", lowercase=True, subword="subword-nmt", subword_size=9)
    tokens = list(map(task.target_text.encode, REFERENCES))
    tokens[0] = tokens[0][:-1]
    score = scored(task, REFERENCES, tokens, ScoringConfig(scoring="bleu"))
    words = [WORDS[0].removesuffix(" ?"), *WORDS[1:]]
    expected = Metric(lowercase=True, tokenize="none", smooth="none").score(words, [WORDS])
    assert score == expected
    assert "tok:none|smooth:none" in score.signature
    split = scored(task, REFERENCES, tokens, ScoringConfig(scoring="compound-bleu"))
    assert split.signature == score.signature.replace("tok:none", "tok:compound")


def test_without_raw_references_unknown_words_never_match(corpus):
    task = folder(corpus)
    for path in [*(corpus / "bin").glob("*.raw"), corpus / "bin/manifest.json"]:
        path.unlink()
    task = TranslationTask.from_data_folder(corpus / "bin")
    dataset = task.load_split("test")
    tokens = [task.target_dictionary.symbols_of(dataset.pair(i)[1]) for i in range(3)]
    assert "<unk>" in tokens[1]
    texts = list(map(" ".join, tokens))
    for scoring in ("sacrebleu", "bleu"):
        score = scored(task, texts, tokens, ScoringConfig(scoring=scoring))
        assert "tok:none" in score.signature
        assert score.value < 100
        lines = [line for line in texts if "<unk>" not in line]
        assert Metric(tokenize="none").score(lines, [lines]).value == pytest.approx(100)


def test_source_only_data_has_no_score(corpus):
    options = {"only_source": True, "srcdict": _dictionary(corpus)}
    preprocessed(corpus, "only", ("test",), **options)
    words = Dictionary.load(corpus / "words.txt")
    files = folder(corpus)
    task = TranslationTask(files.source_text, files.target_text, words, words, corpus / "only")
    for scoring in ("sacrebleu", "bleu"):
        config = ScoringConfig(scoring=scoring)
        with pytest.raises(DataError, match="source-only"):
            SplitScorer(task, task.load_split("test"), config)


def _dictionary(corpus):
    Dictionary(["is", "here"]).save(corpus / "words.txt")
    return str(corpus / "words.txt")


COUNTS = np.array([2, 1])


@pytest.fixture
def task(corpus):
    options = {"tokenizer": "moses", "lowercase": True, "subword": "subword-nmt", "subword_size": 9}
    task = folder(corpus, **options)
    write_documents(corpus / "bin" / "test.de-en.documents", COUNTS)
    return task


def line(task, text):
    tokens = task.target_text.encode(text)
    return Line(task.target_text.decode(tokens), tokens)


def scores_of(task, documents, groups, group_counts, **scoring):
    scorer = SplitScorer(task, task.load_split("test"), ScoringConfig(**scoring))
    line_of = partial(line, task)
    lines = [list(map(line_of, texts)) for texts in documents]
    return scorer.document_scores(lines, list(map(line_of, groups)), np.array(group_counts))


def test_segments_are_documents_sentences_and_groups(task):
    texts = ["A dog is here, is it?", "The xylophone is big.", "A house is there."]
    scores = scores_of(task, [texts[:2], texts[2:]], texts, [1, 1, 1])
    lowered = list(map(str.lower, texts))
    joined = [" ".join(lowered[:2]), lowered[2]]
    references = [" ".join(REFERENCES[:2]), REFERENCES[2]]
    d_bleu = Metric(lowercase=True).score(joined, [references])
    s_bleu = Metric(lowercase=True).score(lowered, [REFERENCES])
    assert (scores["d_bleu"].value, scores["d_bleu"].signature) == (d_bleu.value, d_bleu.signature)
    assert scores["s_bleu"].value == s_bleu.value == scores["group_bleu"].value
    assert scores["chrf"].value == Metric("chrf", lowercase=True).score(joined, [references]).value
    names = [score.name for score in (scores["d_bleu"], scores["s_bleu"], scores["group_bleu"])]
    assert [*names, scores["chrf"].name] == ["d-BLEU", "s-BLEU", "group BLEU", "d-chrF2"]


def test_a_group_that_is_not_cut_changes_no_d_bleu(task):
    texts = ["A dog is here, is it?", "The xylophone is big.", "A house is there."]
    groups = [" ".join(texts[:2]), texts[2]]
    cut = partial(scores_of, task, [texts[:2], texts[2:]], texts, [1, 1, 1])
    uncut = partial(scores_of, task, [groups[:1], groups[1:]], groups, [2, 1])
    for scoring in ("sacrebleu", "bleu", "chrf"):
        uncut_scores = cut(scoring=scoring)
        other = uncut(scoring=scoring)
        assert uncut_scores["d_bleu"] == other["d_bleu"]
        assert uncut_scores["chrf"] == other["chrf"]
        assert ("tok:none" in uncut_scores["d_bleu"].signature) == (scoring == "bleu")
        assert uncut_scores["group_bleu"].value != other["group_bleu"].value
        assert "mismatched documents = 1/2" in other["s_bleu"].text


@pytest.mark.parametrize("scoring", ["sacrebleu", "bleu"])
def test_sentences_are_scored_by_position_in_document_and_in_group(task, scoring):
    texts = ["A dog is here, is it?", "The xylophone is big.", "A house is there."]
    scorer = SplitScorer(task, task.load_split("test"), ScoringConfig(scoring=scoring))
    aligned = [(number, 1, line(task, text)) for number, text in enumerate(texts)]
    scores = scorer.scores_by_position(aligned)
    assert list(scores) == ["position", "group position"]
    for name, firsts in (("position", [0, 2]), ("group position", [0, 1, 2])):
        sizes = {bucket: values["sentences"] for bucket, values in scores[name].items()}
        later = 3 - len(firsts)
        assert sizes == {"1": len(firsts), "2-4": later, "5-9": 0, "10-19": 0, ">19": 0}
        assert scores[name][">19"] == {"sentences": 0, "score": None, "signature": None}
        if scoring == "sacrebleu":
            output = [texts[i].lower() for i in firsts]
            references = [REFERENCES[i] for i in firsts]
            expected = sacrebleu.corpus_bleu(output, [references], lowercase=True)
            assert scores[name]["1"]["score"] == expected.score
        else:
            assert "tok:none" in scores[name]["1"]["signature"]


def test_aligned_sentences_are_those_of_groups_that_were_cut():
    def window(first, end, context, words):
        lines = [Line(word, [word]) for word in words]
        divided = len(lines) == end - first
        translation = Translation(" ".join(words), list(words), hypothesis=None)
        window = Window(0, context, first, end)
        return WindowTranslation(window, None, [translation], lines, divided)

    windows = [window(0, 2, 0, "ab"), window(2, 5, 2, "c"), window(5, 7, 4, "de")]
    documents = SimpleNamespace(windows=windows)
    assert [
        (number, position, part.text) for number, position, part in aligned_sentences(documents, 30)
    ] == [
        *((30, 1, "a"), (31, 2, "b")),
        *((35, 2, "d"), (36, 3, "e")),  # behind a sentence of context
    ]


def test_without_an_aligned_document_s_bleu_is_missing(task):
    texts = [" ".join(REFERENCES[:2]), f"{REFERENCES[2]} And more."]
    assert "s_bleu" not in scores_of(task, [texts[:1], ["A", "house"]], texts, [2, 1])
