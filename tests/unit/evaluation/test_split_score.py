import numpy as np
import pytest

from relu_nmt.cli.preprocess import PreprocessSettings
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.documents import Line
from relu_nmt.errors import DataError
from relu_nmt.evaluation.document_scores import SplitScorer
from relu_nmt.evaluation.metrics import MetricConfig, ScoringConfig
from relu_nmt.recipes import preprocess
from relu_nmt.translation.task import TranslationTask

REFERENCES = ["A dog isn't here, is it?", "The xylophone is big.", "A house is here."]
WORDS = ["a dog isn &apos;t here , is it ?", "the xylophone is big .", "a house is here ."]


@pytest.fixture
def corpus(tmp_path):
    for split, lines in (("train", REFERENCES[::2] * 3), ("test", REFERENCES)):
        for language in ("de", "en"):
            path = tmp_path / f"{split}.{language}"
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def folder(corpus, **settings):
    config = PreprocessSettings(
        source_lang="de",
        target_lang="en",
        trainpref=str(corpus / "train"),
        testpref=str(corpus / "test"),
        destdir=str(corpus / "bin"),
        **settings,
    )
    preprocess.run(config)
    return TranslationTask.from_data_folder(corpus / "bin")


def scored(task, texts, tokens, config, counts=None):
    lines = [Line(*line) for line in zip(texts, tokens, strict=True)]
    return SplitScorer(task, task.load_split("test"), config).score(lines, counts)


def test_raw_text_is_compared_with_the_raw_references(corpus):
    task = folder(corpus, tokenizer="moses", lowercase=True)
    tokens = [line.split() for line in WORDS]
    texts = [task.target_text.decode(line) for line in tokens]
    score = scored(task, texts, tokens, ScoringConfig())
    assert score.value == pytest.approx(100)
    assert "case:lc" in score.signature
    assert "tok:13a" in score.signature
    cased = scored(
        task,
        texts,
        tokens,
        ScoringConfig(sacrebleu_lowercase=False),
    )
    assert cased.value < 100
    assert "case:mixed" in cased.signature
    other = ScoringConfig(sacrebleu_tokenizer="char")
    assert "tok:char" in scored(task, texts, tokens, other).signature
    chrf = scored(task, texts, tokens, ScoringConfig(scoring="chrf"))
    assert chrf == MetricConfig("chrf", lowercase=True).score(texts, [REFERENCES])


def test_whole_documents_are_compared_with_joined_references(corpus):
    task = folder(corpus, tokenizer="moses", lowercase=True)
    documents = np.array([1, 2])
    texts = [REFERENCES[0], f"{REFERENCES[1]} {REFERENCES[2]}"]
    tokens = [task.target_text.encode(text) for text in texts]
    for scoring in ("sacrebleu", "bleu", "chrf"):
        score = scored(
            task,
            texts,
            tokens,
            ScoringConfig(scoring=scoring),
            documents,
        )
        assert score.value == pytest.approx(100)


def test_tokenised_text_is_compared_with_tokenised_references(corpus):
    task = folder(corpus, tokenizer="moses", lowercase=True, subword="subword-nmt", subword_size=9)
    tokens = [task.target_text.encode(line) for line in REFERENCES]
    tokens[0] = tokens[0][:-1]
    score = scored(task, REFERENCES, tokens, ScoringConfig(scoring="bleu"))
    words = [WORDS[0].removesuffix(" ?"), *WORDS[1:]]
    expected = MetricConfig(lowercase=True, tokenize="none", smooth="none").score(words, [WORDS])
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
    texts = [" ".join(line) for line in tokens]
    for scoring in ("sacrebleu", "bleu"):
        score = scored(task, texts, tokens, ScoringConfig(scoring=scoring))
        assert "tok:none" in score.signature
        assert score.value < 100
        known = [line for line in texts if "<unk>" not in line]
        assert MetricConfig(tokenize="none").score(known, [known]).value == pytest.approx(100)


def test_source_only_data_has_no_score(corpus):
    (corpus / "only").mkdir()
    config = PreprocessSettings(
        source_lang="de",
        target_lang="en",
        testpref=str(corpus / "test"),
        destdir=str(corpus / "only"),
        only_source=True,
        srcdict=_dictionary(corpus),
    )
    preprocess.run(config)
    words = Dictionary.load(corpus / "words.txt")
    known = folder(corpus)
    task = TranslationTask(known.source_text, known.target_text, words, words, corpus / "only")
    for scoring in ("sacrebleu", "bleu"):
        config = ScoringConfig(scoring=scoring)
        with pytest.raises(DataError, match="source-only"):
            SplitScorer(task, task.load_split("test"), config)


def _dictionary(corpus):
    Dictionary(["is", "here"]).save(corpus / "words.txt")
    return str(corpus / "words.txt")
