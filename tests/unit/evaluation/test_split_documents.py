from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu

from relu_nmt.cli.preprocess import PreprocessSettings
from relu_nmt.data.documents import Line, write_documents
from relu_nmt.data.groups import Window
from relu_nmt.evaluation.document_scores import SplitScorer
from relu_nmt.evaluation.metrics import MetricConfig, ScoringConfig
from relu_nmt.recipes import preprocess
from relu_nmt.recipes.translate_split import aligned_sentences
from relu_nmt.translation.search.document_search import WindowTranslation
from relu_nmt.translation.search.translations import Translation
from relu_nmt.translation.task import TranslationTask

REFERENCES = ["A dog isn't here, is it?", "The xylophone is big.", "A house is here."]
COUNTS = np.array([2, 1])


@pytest.fixture
def task(tmp_path):
    for split, lines in (("train", REFERENCES[::2] * 3), ("test", REFERENCES)):
        for language in ("de", "en"):
            (tmp_path / f"{split}.{language}").write_text("\n".join(lines) + "\n")
    config = PreprocessSettings(
        source_lang="de",
        target_lang="en",
        trainpref=str(tmp_path / "train"),
        testpref=str(tmp_path / "test"),
        destdir=str(tmp_path / "bin"),
        tokenizer="moses",
        lowercase=True,
        subword="subword-nmt",
        subword_size=9,
    )
    preprocess.run(config, progress=False)
    write_documents(tmp_path / "bin" / "test.de-en.documents", COUNTS)
    return TranslationTask.from_data_folder(tmp_path / "bin")


def line(task, text):
    tokens = task.target_text.encode(text)
    return task.target_text.decode(tokens), tokens


def scores_of(task, documents, groups, group_counts, **scoring):
    return SplitScorer(task, task.load_split("test"), ScoringConfig(**scoring)).document_scores(
        [[line(task, text) for text in texts] for texts in documents],
        [line(task, text) for text in groups],
        np.array(group_counts),
    )


def test_segments_are_documents_sentences_and_groups(task):
    texts = ["A dog is here, is it?", "The xylophone is big.", "A house is there."]
    scores = scores_of(task, [texts[:2], texts[2:]], texts, [1, 1, 1])
    lowered = [text.lower() for text in texts]
    joined = [" ".join(lowered[:2]), lowered[2]]
    references = [" ".join(REFERENCES[:2]), REFERENCES[2]]
    d_bleu = MetricConfig(lowercase=True).score(joined, [references])
    s_bleu = MetricConfig(lowercase=True).score(lowered, [REFERENCES])
    assert (scores["d_bleu"].value, scores["d_bleu"].signature) == (d_bleu.value, d_bleu.signature)
    assert scores["s_bleu"].value == s_bleu.value == scores["group_bleu"].value
    assert (
        scores["chrf"].value
        == MetricConfig("chrf", lowercase=True).score(joined, [references]).value
    )
    names = [score.name for score in (scores["d_bleu"], scores["s_bleu"], scores["group_bleu"])]
    assert [*names, scores["chrf"].name] == ["d-BLEU", "s-BLEU", "group BLEU", "d-chrF2"]


def test_a_group_that_is_not_cut_changes_no_d_bleu(task):
    texts = ["A dog is here, is it?", "The xylophone is big.", "A house is there."]
    whole = [" ".join(texts[:2]), texts[2]]
    cut = ([texts[:2], texts[2:]], texts, [1, 1, 1])
    uncut = ([whole[:1], whole[1:]], whole, [2, 1])
    for scoring in ("sacrebleu", "bleu", "chrf"):
        one, other = (scores_of(task, *each, scoring=scoring) for each in (cut, uncut))
        assert one["d_bleu"] == other["d_bleu"]
        assert one["chrf"] == other["chrf"]
        assert ("tok:none" in one["d_bleu"].signature) == (scoring == "bleu")
        assert one["group_bleu"].value != other["group_bleu"].value
        assert "mismatched documents = 1/2" in other["s_bleu"].text


@pytest.mark.parametrize("scoring", ["sacrebleu", "bleu"])
def test_sentences_are_scored_by_position_in_document_and_in_group(task, scoring):
    texts = ["A dog is here, is it?", "The xylophone is big.", "A house is there."]
    scorer = SplitScorer(task, task.load_split("test"), ScoringConfig(scoring=scoring))
    lines = [Line(*line(task, text)) for text in texts]
    aligned = [(number, 1, own) for number, own in enumerate(lines)]
    found = scorer.position_scores(aligned)
    assert list(found) == ["position", "group position"]
    for name, firsts in (("position", [0, 2]), ("group position", [0, 1, 2])):
        sizes = {bucket: values["sentences"] for bucket, values in found[name].items()}
        later = 3 - len(firsts)
        assert sizes == {"1": len(firsts), "2-4": later, "5-9": 0, "10-19": 0, ">19": 0}
        assert found[name][">19"] == {"sentences": 0, "score": None, "signature": None}
        if scoring == "sacrebleu":
            own = [texts[i].lower() for i in firsts]
            expected = sacrebleu.corpus_bleu(own, [[REFERENCES[i] for i in firsts]], lowercase=True)
            assert found[name]["1"]["score"] == expected.score
        else:
            assert "tok:none" in found[name]["1"]["signature"]


def test_aligned_sentences_are_those_of_groups_that_were_cut():
    def window(first, end, context, words):
        lines = [Line(word, [word]) for word in words]
        divided = len(lines) == end - first
        translation = Translation(" ".join(words), list(words), hypothesis=None)
        place = Window(0, context, first, end)
        return WindowTranslation(place, None, [translation], lines, divided)

    windows = [window(0, 2, 0, "ab"), window(2, 5, 2, "c"), window(5, 7, 4, "de")]
    documents = SimpleNamespace(windows=windows)
    assert [
        (number, position, own.text) for number, position, own in aligned_sentences(documents, 30)
    ] == [
        *((30, 1, "a"), (31, 2, "b")),
        *((35, 2, "d"), (36, 3, "e")),  # behind a sentence of context
    ]


def test_without_an_aligned_document_s_bleu_is_missing(task):
    texts = [" ".join(REFERENCES[:2]), f"{REFERENCES[2]} And more."]
    assert "s_bleu" not in scores_of(task, [texts[:1], ["A", "house"]], texts, [2, 1])
