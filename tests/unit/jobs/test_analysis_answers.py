"""The sentences of relu-nmt-analyze: each number against an independent count of made values."""

import re

import numpy as np
import pytest
import sacrebleu

from relu_nmt.evaluation.metrics import Metric
from relu_nmt.evaluation.significance import SegmentStatistics
from relu_nmt.jobs.analyze import answers
from relu_nmt.jobs.analyze.answers import (
    Losses,
    Removal,
    does_context_count,
    how_many_zeros,
    place_of,
    weak_heads,
    where_heads_look,
    which_heads_could_go,
    which_translates_better,
)
from relu_nmt.jobs.analyze.page import extent, last_bleu
from tests.outputs import starting

SEED = 12345
SAMPLES = 1000


def losses(per_token, size=120, noise=0.5, seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(5, 30, size)
    return Losses(tokens * (per_token + noise * rng.standard_normal(size)), tokens)


def numbers(text):
    """Return all numbers of a sentence."""
    matches = re.findall(r"[+\u2212]?\d+(?:\.\d+)?", text)
    return [float(number.replace("\u2212", "-").replace("+", "")) for number in matches]


def bounds(value):
    """Return the 2.5 and 97.5 % points of a value of resampled indices, each counted by a loop."""
    rng = np.random.default_rng(SEED)
    drawn = rng.choice(120, size=(SAMPLES, 120), replace=True)
    values = sorted(map(value, drawn))
    return values[25], values[-26]


def loss_of(losses, indices=slice(None)):
    return sum(losses.bits[indices]) / sum(losses.tokens[indices])


def test_a_better_model_is_named_with_the_paired_interval_of_the_difference():
    good = losses(2.0)
    bad = losses(2.5)
    answer = which_translates_better({"relu": bad, "softmax": good}, {}, {}, "sentences")
    assert answer.question == "Which model translates better?"
    better, values, seeds = answer.sentences
    assert better.startswith("softmax is better in loss than relu, by ")
    low, high = bounds(lambda indices: loss_of(bad, indices) - loss_of(good, indices))
    difference = loss_of(bad) - loss_of(good)
    assert numbers(better) == pytest.approx([difference, low, high], abs=6e-4)
    assert values.startswith("Loss with 95% intervals: relu ") and values.endswith(
        ", on the same 120 sentences."
    )
    of_bad = [loss_of(bad), *bounds(lambda indices: loss_of(bad, indices))]
    assert numbers(values)[1:4] == pytest.approx(of_bad, abs=6e-4)
    assert seeds == "Other seeds of the trainings are not in the intervals."


def test_models_whose_interval_has_zero_cannot_be_told_apart():
    answers = {"a": losses(2.0, seed=1), "b": losses(2.01, seed=2)}
    answer = which_translates_better(answers, {}, {}, "groups")
    assert re.match(r"In loss \w cannot be told apart from \w, by ", answer.sentences[0])
    assert "better" not in " ".join(answer.sentences)


def test_models_whose_difference_is_zero_as_printed_cannot_be_told_apart():
    first = losses(2.0)
    second = Losses(first.bits * 1.0001, first.tokens)
    equal, *_ = which_translates_better({"a": first, "b": second}, {}, {}, "groups").sentences
    assert (
        equal == "In loss a cannot be told apart from b, by 0.000 (0.000 to 0.000) bits per token."
    )


def test_a_third_model_is_compared_with_the_best():
    models = {"a": losses(3.0), "b": losses(2.0), "c": losses(2.0, seed=5)}
    better, equal, *_ = which_translates_better(models, {}, {}, "sentences").sentences
    assert better.startswith("b is better in loss than a, by ") or "c is better" in better
    assert "cannot be told apart" in equal


def test_one_model_is_only_measured_and_few_sentences_are_said_to_be_few():
    answer = which_translates_better({"a": losses(2.0, size=12)}, {}, {}, "groups")
    assert answer.question == "How well does it translate?"
    values, few = answer.sentences
    assert values.startswith("Loss with 95% intervals: a ") and values.endswith(", on 12 groups.")
    assert few == "12 groups are few: others may give another answer."


def test_bleu_is_that_of_sacrebleu():
    references = [f"the cat number {i} sat on a red mat" for i in range(30)]
    right = [line if i % 3 else line.replace("red", "blue") for i, line in enumerate(references)]
    wrong = [line.replace("sat on", "went to") for line in references]
    bleu = {}
    for name, lines in (("good", right), ("bad", wrong)):
        bleu[name] = SegmentStatistics.of(Metric("bleu"), lines, [references])
    models = {name: losses(2.0, size=30, noise=0) for name in bleu}
    sentences = which_translates_better(models, bleu, {}, "sentences").sentences
    [better] = starting(sentences, "good is better in BLEU than bad, by ")
    [values] = starting(sentences, "BLEU with 95% intervals: good ")
    scores = [sacrebleu.corpus_bleu(lines, [references]).score for lines in (right, wrong)]
    assert numbers(better)[0] == pytest.approx(scores[0] - scores[1], abs=0.06)
    assert [numbers(values)[1], numbers(values)[4]] == pytest.approx(scores, abs=0.06)


def test_bleu_of_the_training_has_no_interval():
    courses = {
        "a": {("train", "bleu"): {9: 1.0}, ("valid", "bleu"): {5: 20.0, 7: 21.5}},
        "b": {("valid", "bleu"): {5: 30.0}, ("valid", "loss"): {5: 2.0}},
    }
    values = last_bleu(["a", "b"], courses)
    assert values == {"a": 21.5, "b": 30.0} and last_bleu(["a", "c"], courses) == {}
    models = {"a": losses(2.0), "b": losses(2.5)}
    sentences = which_translates_better(models, {}, values, "sentences").sentences
    assert "Last BLEU of validation, without interval: a 21.5, b 30.0." in sentences


@pytest.mark.parametrize(
    ("change", "verdict"), [(-0.1, "yes"), (0.1, "it harms"), (0.0, "it cannot")]
)
def test_context_counts_if_the_loss_is_lower_with_it(change, verdict):
    alone = losses(2.0)
    noise = np.random.default_rng(3).standard_normal(120)
    together = Losses(alone.bits + alone.tokens * (change + 0.1 * noise), alone.tokens)
    answer = does_context_count({"relu": together}, {"relu": alone})
    assert answer.sentences[0].startswith(f"relu: {verdict}")
    low, high = bounds(lambda indices: loss_of(together, indices) - loss_of(alone, indices))
    difference = loss_of(together) - loss_of(alone)
    assert numbers(answer.sentences[0]) == pytest.approx([difference, low, high], abs=6e-4)


def test_many_sentences_are_resampled_in_blocks(monkeypatch):
    """Blocks of three have the sums of their sentences."""
    of_all = losses(2.0)
    monkeypatch.setattr(answers, "MOST_SEGMENTS", 50)
    blocks = Losses(of_all.bits.reshape(40, 3).sum(1), of_all.tokens.reshape(40, 3).sum(1))
    np.testing.assert_allclose(of_all.resampled(), blocks.resampled())


# ------------------------------------------------------------------- heads


def head(slot="encoder", layer=0, number=0, **values):
    return {"slot": slot, "layer": layer, "head": number, "zero_fraction": 0.0, **values}


@pytest.mark.parametrize(
    ("slot", "values", "place"),
    [
        ("encoder", {"diagonal": 0.6, "neighbors": 0.1}, "at the token itself"),
        ("decoder", {"diagonal": 0.6}, "at the last token"),
        ("cross", {"diagonal": 0.6}, "at the diagonal"),
        ("cross", {"diagonal": 0.3, "neighbors": 0.3}, "at neighbors"),
        ("cross", {"ends": 0.51}, "at ends of sentences"),
        ("encoder", {"first": 0.9}, "at the first token"),
        ("cross", {"punctuation": 0.82}, "at punctuation"),
        ("encoder", {"diagonal": 0.25, "neighbors": 0.25, "ends": 0.5}, "spread"),
        ("encoder", {"null_fraction": 1.0}, "dead"),
        ("encoder", {}, "spread"),
    ],
)
def test_a_head_looks_where_more_than_half_of_its_weight_is(slot, values, place):
    assert place_of(head(slot, **values)) == place


def test_heads_are_counted_by_slot_and_place():
    records = [head(number=0, diagonal=0.9), head(number=1, diagonal=0.9)]
    records += [head(layer=1, number=0), head(layer=1, number=1), head(layer=1, number=2)]
    records += [head("cross", 2, 1, punctuation=0.8), head("cross", 2, "mean", punctuation=0.9)]
    sentence, _ = where_heads_look({"relu": records}).sentences
    assert sentence == (
        "relu: in the encoder 2 at the token itself (0.0, 0.1), 3 spread; "
        "in cross-attention 1 at punctuation (2.1)."
    )


def test_zeros_are_shares_and_none_where_there_are_none():
    records = [head(zero_fraction=0.1)]
    for slot, share in (("encoder", 0.7), ("decoder", 0.5546), ("cross", 0.0)):
        records.append({**head(slot, "mean", "mean"), "zero_fraction": share})
    [sentence] = how_many_zeros({"relu": records}).sentences
    assert sentence == "relu: in the encoder 70.0%, in the decoder 55.5%, in cross-attention none."


def changed(of_all, change, noise=0.0):
    added = change + noise * np.random.default_rng(0).standard_normal(len(of_all.bits))
    return Losses(of_all.bits + added * of_all.tokens, of_all.tokens)


def test_weak_heads_are_the_dead_ones_and_those_that_add_little_the_weakest_first():
    records = [
        head(number=0, added_variance=0.2, null_fraction=0.5),
        head(number=1, added_variance=0.001),
        head(number=2, added_variance=0.0001),
        head("cross", 1, 0, null_fraction=0.995, added_variance=0.0),
        head("cross", 1, 1),  # of unknown variance
    ]
    assert weak_heads(records) == ["cross.1.0", "encoder.0.2", "encoder.0.1"]


@pytest.mark.parametrize(
    ("heads", "change", "begin"),
    [
        (["encoder.0.1", "cross.1.0"], 0.01, "encoder.0.1, cross.1.0 could go, without which the"),
        (
            ["cross.1.0"],
            0.3,
            "none could go: even without cross.1.0, the weakest, the loss changes",
        ),
        (["encoder.0.1"] * 7, 0.3, "it is unknown whether any could go: without 7 heads the loss"),
    ],
)
def test_heads_could_go_if_the_loss_stays(heads, change, begin):
    of_all = losses(2.0)
    removal = Removal(heads, changed(of_all, change, 0.01))
    answer = which_heads_could_go({"a": [head()]}, {"a": of_all}, {"a": removal})
    [sentence] = answer.sentences
    assert sentence.startswith(f"a: no head is dead; {begin}")
    without = removal.losses
    low, high = bounds(lambda indices: loss_of(without, indices) - loss_of(of_all, indices))
    difference = loss_of(without) - loss_of(of_all)
    assert numbers(sentence)[-3:] == pytest.approx([difference, low, high], abs=6e-4)
    assert removal.is_harmless(of_all) == (high <= 0.02)


def test_dead_heads_are_named_and_models_without_weak_heads():
    records = [head(null_fraction=0.995)]
    of_all = losses(2.0)
    [sentence] = which_heads_could_go({"a": records}, {"a": of_all}, {}).sentences
    assert sentence == "a: dead: encoder.0.0."
    [sentence] = which_heads_could_go({"a": [head()]}, {"a": of_all}, {}).sentences
    assert sentence == "a: no head is dead; none adds less than 1% to the states."


def test_a_head_with_two_records_is_dead_only_if_both_are():
    outer_slots = [head(null_fraction=1.0, sees="all"), head(null_fraction=0.2, sees="sentence")]
    [sentence] = which_heads_could_go({"a": outer_slots}, {}, {}).sentences
    assert "no head is dead" in sentence


def test_an_extent_has_both_ends():
    assert extent([0.1, None, 0.3], 1) == "0.1 to 0.3" and extent([0.52, 0.49], 1) == "0.5"
