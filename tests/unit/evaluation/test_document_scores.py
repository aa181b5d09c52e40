import itertools
from operator import itemgetter

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.data.documents import document_sizes
from relu_nmt.errors import DataError
from relu_nmt.evaluation.document_scores import (
    AlignedDocuments,
    cut_by_counts,
    join_lines,
    split_at_separators,
    split_sentences,
)
from relu_nmt.evaluation.metrics import Metric

WORDS = st.sampled_from(["a", "dog", "is", "Here,", "is.", "it", "it's"])
SENTENCES = st.lists(WORDS, max_size=6).map(" ".join)
PAIRS = st.tuples(SENTENCES, st.lists(WORDS, min_size=1, max_size=6).map(" ".join))
DOCUMENTS = st.lists(st.lists(PAIRS, min_size=1, max_size=6), min_size=1, max_size=4)

HYPOTHESES = [["a dog .", "it barks ."], ["The house is red .", "Yes ."]]
REFERENCES = [["A dog is here .", "it barks loudly ."], ["The house is red .", "Yes , it is ."]]


def flat(documents):
    return list(itertools.chain.from_iterable(documents))


def in_groups(sentences, limit):
    """Join sentences as they are for training: while the words of a group are at most limit."""
    groups = []
    for sentence in sentences:
        if groups and len(f"{groups[-1]} {sentence}".split()) <= limit:
            groups[-1] += f" {sentence}"
        else:
            groups.append(sentence)
    return groups


@given(DOCUMENTS, st.sampled_from(["bleu", "chrf"]))
def test_document_scores_do_not_depend_on_the_groups(documents, name):
    metric = Metric(name)
    hypotheses = [list(map(itemgetter(0), pairs)) for pairs in documents]
    references = [list(map(itemgetter(1), pairs)) for pairs in documents]
    score = AlignedDocuments(hypotheses, [references]).document_score(metric)
    for limit in (1, 3, 7, 1000):
        groups = [in_groups(sentences, limit) for sentences in hypotheses]
        assert AlignedDocuments(groups, [references]).document_score(metric) == score
        grouped_references = [in_groups(sentences, limit) for sentences in references]
        assert AlignedDocuments(groups, [grouped_references]).document_score(metric) == score


def test_a_document_is_one_segment():
    score = AlignedDocuments(HYPOTHESES, [REFERENCES]).document_score(Metric())
    references = list(map(" ".join, REFERENCES))
    expected = sacrebleu.corpus_bleu(list(map(" ".join, HYPOTHESES)), [references])
    assert score.value == expected.score
    assert score.text == f"d-{expected} documents = 2"
    by_lines = sacrebleu.corpus_bleu(flat(HYPOTHESES), [flat(REFERENCES)])
    # The same words, and more n-grams: those across the sentence borders.
    assert (by_lines.sys_len, by_lines.ref_len) == (expected.sys_len, expected.ref_len)
    assert by_lines.totals[0] == expected.totals[0]
    assert all(a < b for a, b in zip(by_lines.totals[1:], expected.totals[1:], strict=True))


@given(st.lists(st.sampled_from(["", " ", "<d>", " <d> ", "a", "b c"]), max_size=12))
def test_documents_begin_where_preprocessing_has_them(lines):
    for separator, is_separator in (
        ("blank", lambda line: not line.strip()),
        ("tag", lambda line: line.strip() == "<d>"),
        ("none", lambda line: False),
    ):
        documents = split_at_separators(lines, separator)
        sentences = list(itertools.filterfalse(is_separator, lines))
        assert flat(documents) == sentences
        if sentences:
            boundaries = []
            before = 0
            for number, line in enumerate(lines, 1):
                if is_separator(line):
                    boundaries.append((before, number))
                else:
                    before += 1
            sizes = document_sizes([("file", len(sentences), boundaries)])
            assert list(map(len, documents)) == sizes.tolist()


def test_documents_are_cut_by_their_numbers_of_lines():
    assert cut_by_counts(["a", "", "c"], [1, 2], "sys") == [["a"], ["", "c"]]
    with pytest.raises(DataError, match=r"sys: 3 lines, but the documents have 4"):
        cut_by_counts(["a", "b", "c"], [2, 2], "sys")


def test_lines_are_cut_at_separators():
    documents = [["a b <sep> c <sep>", "d"], ["", "<sep> e"]]
    assert split_sentences(documents, "<sep>") == [["a b", "c", "d"], ["", "", "e"]]


def test_sentences_are_aligned_where_their_numbers_agree():
    hypotheses = [*HYPOTHESES, ["One line", "too many ."]]
    references = [*REFERENCES, ["One line too many ."]]
    aligned = AlignedDocuments(hypotheses, [references])
    assert aligned.sentences == [
        [*HYPOTHESES[0], *HYPOTHESES[1], "One line too many ."],
        [*REFERENCES[0], *REFERENCES[1], "One line too many ."],
    ]
    assert aligned.positions == [1, 2, 1, 2, 0] and aligned.num_mismatched == 1
    score = aligned.sentence_score(Metric())
    expected = sacrebleu.corpus_bleu(aligned.sentences[0], aligned.sentences[1:])
    assert score.value == expected.score
    assert score.text == f"s-{expected} segments = 5 mismatched documents = 1/3 (33.33%)"


def test_sides_of_different_numbers_of_documents_are_refused():
    with pytest.raises(ValueError, match="argument 3 is shorter"):
        AlignedDocuments(HYPOTHESES, [REFERENCES, REFERENCES[:1]])


def test_sentences_are_scored_by_their_position():
    hypotheses = [*HYPOTHESES, ["One line", "too many ."]]
    references = [*REFERENCES, ["One line too many ."]]
    scores = AlignedDocuments(hypotheses, [references]).position_scores(Metric(), (1, 9, 20))
    for (_, size, score), begin, end in zip(scores, (0, 1), (1, 9), strict=False):
        own_lines = flat(document[begin:end] for document in HYPOTHESES)
        reference_lines = flat(document[begin:end] for document in REFERENCES)
        assert size == len(own_lines) > 0
        assert score.value == sacrebleu.corpus_bleu(own_lines, [reference_lines]).score
    names, sizes, values = zip(*scores, strict=True)
    assert names == ("1", "2-9", "10-20", ">20")
    assert values[2:] == (None, None)
    # The mismatched document has no part.
    assert sum(sizes) == sum(map(len, REFERENCES))


def test_without_an_aligned_document_there_is_no_score_of_sentences():
    aligned = AlignedDocuments([["a b c d"]], [[["a b", "c d"]]])
    assert aligned.sentence_score(Metric()) is None
    assert aligned.document_score(Metric()).value > 99


def test_sets_of_references_need_the_same_sentences():
    with pytest.raises(DataError, match="document 1: the sets of references have 2 and 1"):
        AlignedDocuments([["a"]], [[["a", "b"]], [["a b"]]])


def test_joining_does_not_depend_on_lines():
    assert join_lines([["a  b", "", "c "], ["a b c"], []]) == ["a b c", "a b c", ""]


def test_documents_of_japanese_are_joined_without_spaces():
    lines = [["今日は。", "", "元気です。"]]
    assert join_lines(lines, "ja") == ["今日は。元気です。"]
    assert join_lines(lines) == ["今日は。 元気です。"]
    metric = Metric(tokenize="none", order=1)
    aligned = AlignedDocuments([["今日は。元気です。"]], [lines], "ja")
    assert aligned.document_score(metric).value > 99
    assert aligned.sentences[1] == ["今日は。元気です。"]
