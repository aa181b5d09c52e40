import collections
import math

import numpy as np
import pytest

from relu_nmt.errors import ConfigError, DataError
from relu_nmt.evaluation.metrics import Metric, ScoringConfig, split_compounds


def ngram_counts(words, n):
    return collections.Counter(zip(*(words[i:] for i in range(n)), strict=False))


def plain_bleu(hypotheses, references):
    """BLEU by its definition: clipped n-gram counts of the corpus and a brevity penalty."""
    right = np.zeros(4)
    total = np.zeros(4)
    hyp_length = ref_length = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        hypothesis = hypothesis.split()
        reference = reference.split()
        hyp_length += len(hypothesis)
        ref_length += len(reference)
        for n in range(1, 5):
            counts = ngram_counts(hypothesis, n)
            right[n - 1] += (counts & ngram_counts(reference, n)).total()
            total[n - 1] += counts.total()
    brevity = min(1.0, math.exp(1 - ref_length / hyp_length))
    return 100 * brevity * math.exp(np.log(right / total).mean())


def random_pairs(count, seed):
    rng = np.random.default_rng(seed)
    words = np.array(list("abcdefg"))
    pairs = []
    for _ in range(count):
        reference = rng.choice(words, rng.integers(4, 15))
        hypothesis = np.where(rng.random(len(reference)) < 0.2, rng.choice(words), reference)
        pairs.append((" ".join(hypothesis[: rng.integers(4, 15)]), " ".join(reference)))
    return list(map(list, zip(*pairs, strict=True)))


@pytest.mark.parametrize("smooth", ["exp", "none"])
def test_bleu_equals_its_definition(smooth):
    for seed in range(5):
        hypotheses, references = random_pairs(20, seed)
        score = Metric(tokenize="none", smooth=smooth).score(hypotheses, [references])
        assert score.value == pytest.approx(plain_bleu(hypotheses, references), abs=1e-6)


def test_ter_counts_edits_and_moves_over_words_of_the_reference():
    # One word is moved and one replaced, of four. Case does not count.
    score = Metric("ter").score(["c A b x"], [["a b c d"]])
    assert score.text == "TER = 50.00" and "case:lc" in score.signature
    # Two references have a mean length of five words. The nearer one counts edits.
    assert Metric("ter").score(["a b"], [["a b c d"], ["a b c d e f"]]).value == 40.0


@pytest.mark.parametrize(
    ("line", "split"),
    [
        ("X-Y", "X ##AT##-##AT## Y"),
        ("X - Y", "X - Y"),
        ("--", "--"),
        ("-X", "-X"),
        ("X @-@ Y", "X @-@ Y"),
        ("up-to-date x-y", "up ##AT##-##AT## to ##AT##-##AT## date x ##AT##-##AT## y"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # the second match would overlap
    ],
)
def test_compounds_are_split_as_the_script_for_wmt14_does(line, split):
    assert split_compounds(line) == split


def replaced(lines, old, new):
    return [line.replace(old, new) for line in lines]


def test_the_bleu_of_split_compounds_is_that_of_lines_split_before():
    hypotheses, references = random_pairs(20, 3)
    hypotheses = replaced(hypotheses, "a b", "a-b")
    references = replaced(references, "a b", "a-b")
    score = Metric(tokenize="compound", smooth="none").score(hypotheses, [references])
    unsplit = plain_bleu(hypotheses, references)
    parts = " ##AT##-##AT## "
    split = plain_bleu(replaced(hypotheses, "-", parts), replaced(references, "-", parts))
    assert score.value == pytest.approx(split, abs=1e-6)
    assert score.value != pytest.approx(unsplit, abs=1e-6)
    assert "tok:compound" in score.signature


def test_the_signature_names_the_settings():
    score = Metric(lowercase=True).score(["A big dog."], [["a big dog."]])
    assert score.value == pytest.approx(100)
    assert "case:lc" in score.signature
    assert "tok:13a" in score.signature
    assert str(score).endswith("signature: " + score.signature)
    assert Metric().score(["A big dog."], [["a big dog."]]).value < 100
    assert "smooth:none" in Metric(smooth="none", tokenize="none").score(["a"], [["a"]]).signature


def test_several_references_are_used():
    score = Metric().score(["a b c d"], [["x y z w"], ["a b c d"]])
    assert score.value == pytest.approx(100)
    assert "nrefs:2" in score.signature


def test_chrf_and_sentence_bleu_equal_those_of_sacrebleu():
    assert Metric("chrf").score(["a dog is"], [["a dog is"]]).value == pytest.approx(100)
    assert "nw:2" in Metric("chrf", word_order=2).score(["a dog"], [["a cat"]]).signature
    assert Metric().sentence_score("a dog", ["a dog"]).value == pytest.approx(100)
    assert 0 < Metric().sentence_score("a dog is here now", ["a dog is there now"]).value < 100


def test_wrong_numbers_of_lines_and_unknown_metrics_are_errors():
    with pytest.raises(DataError, match=r"2 translations, but 1 references"):
        Metric().score(["a", "b"], [["a"]])
    with pytest.raises(DataError, match="no lines"):
        Metric().score([], [[]])
    with pytest.raises(ConfigError, match="choose one of"):
        Metric(tokenize="moses").score(["a"], [["a"]])
    with pytest.raises(ConfigError, match="order 0"):
        Metric(order=0).score(["a"], [["a"]])


def test_contradictory_scoring_flags_are_errors():
    assert ScoringConfig(sacrebleu=True).scoring == "sacrebleu"
    for wrong in ({"sacrebleu": True}, {"sacrebleu_tokenizer": "13a"}):
        with pytest.raises(ConfigError, match="--scoring bleu"):
            ScoringConfig(scoring="bleu", **wrong)
