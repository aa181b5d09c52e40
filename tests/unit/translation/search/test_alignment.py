import numpy as np
import pytest
import torch
from toy_models import ToyModel, generator_of

from relu_nmt.errors import DataError
from relu_nmt.translation.search.beam_search import strongest_words
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.scoring import build_scorer
from relu_nmt.translation.search.translations import (
    Hypothesis,
    SourceSentence,
    Translation,
    join_translations,
    load_translations,
    replace_unknown_words,
)
from tests.tiny import EOS


def test_each_token_is_aligned_by_the_step_that_chose_it():
    # The toy model looks at source position (previous token modulo padded length). Positions of
    # the end symbol and of padding do not count, and then the token aligns with nothing.
    source = torch.tensor([[4, 5, 6, 4, 2], [6, 5, 2, 1, 1]])
    settings = {"beam": 4, "nbest": 4, "print_alignment": "hard", "max_len_b": 9}
    translations = generator_of(ToyModel(seed=2), **settings).generate(source)
    for row, hypotheses in zip(source, translations, strict=True):
        words = int((row >= 4).sum())
        for h in hypotheses:
            previous = np.array([EOS, *h.ids[:-1]])
            expected = np.where(previous % 5 < words, previous % 5, -1)
            assert h.alignment.tolist() == expected.tolist()


@pytest.mark.parametrize("free_sentence_count", [False, True])
def test_no_token_is_aligned_to_the_end_of_a_sentence(free_sentence_count):
    separator = 4
    source = torch.tensor([[5, 6, 4, 5, 4, 2, 1]])
    settings = {"beam": 4, "nbest": 4, "print_alignment": "hard", "max_len_b": 9}
    generator = generator_of(
        ToyModel(seed=2),
        separators=(separator, separator),
        free_sentence_count=free_sentence_count,
        **settings,
    )
    [hypotheses] = generator.generate(source)
    positions = np.concatenate([h.alignment for h in hypotheses])
    assert set(source[0, positions[positions >= 0]].tolist()) <= {5, 6}


def test_a_token_without_attention_aligns_with_nothing():
    is_word = torch.tensor([[True, True, False]])
    weights = torch.tensor([[[0, 0, 0.5], [0.1, 0.2, 0.7], [0, 0, 0], [-0.2, -0.1, 0]]])
    assert strongest_words(weights, is_word).tolist() == [[-1, 1, -1, 1]]


def test_sentences_of_a_line_join_with_tokens_that_align_with_nothing():
    ids = np.array([4, 5, 2])
    scores = np.zeros(3, dtype=np.float32)
    source = SourceSentence.of_parts([SourceSentence(ids, ["a", "b"])] * 2)
    translations = []
    for alignment in ([-1, 1, 0], [-1, 1, -1]):
        hypothesis = Hypothesis(ids, 0.0, scores, np.array(alignment))
        translations.append(Translation("A B", ["A", "B"], hypothesis))
    joined = join_translations(source, translations, "en", build_scorer(GenerationConfig()))
    assert (joined.text, joined.tokens) == ("A B A B", ["A", "B", "A", "B"])
    assert joined.alignment.tolist() == [-1, 1, -1, 3]
    assert joined.hypothesis.alignment.tolist() == [-1, 1, -1, 3, -1]


def test_unknown_words_are_copied_or_translated(tmp_path):
    (tmp_path / "lexicon").write_text("Haus house\nHund dog\n", encoding="utf-8")
    translations = load_translations(tmp_path / "lexicon")
    replaced = replace_unknown_words(
        ["a", "<unk>", "<unk>", "<unk>"],
        ["ein", "Haus", "Xaver"],
        np.array([0, 1, 2, -1, 0]),
        translations,
    )
    # A symbol that aligns with nothing stays.
    assert replaced == ["a", "house", "Xaver", "<unk>"]


def test_no_banned_word_is_copied():
    tokens = ["<unk>", "a", "<unk>"]
    replaced = replace_unknown_words(
        tokens, ["Haus", "Hof"], np.array([0, 0, 1, 0]), {}, lambda words: "Haus" in words
    )
    assert replaced == ["<unk>", "a", "Hof"] and tokens == ["<unk>", "a", "<unk>"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Haus house\nHund\n", r"lexicon:2: expected 'source target', found 'Hund'"),
        (b"Haus house\n\xff dog\n", r"lexicon:2: not UTF-8 \(byte 0xff\)"),
        (None, "lexicon: cannot read the text: No such file or directory$"),
    ],
)
def test_an_unreadable_lexicon_is_an_error_with_its_line(tmp_path, content, message):
    if content is not None:
        (tmp_path / "lexicon").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_translations(tmp_path / "lexicon")
