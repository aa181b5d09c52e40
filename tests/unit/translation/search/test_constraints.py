import numpy as np
import pytest
import torch
from toy_models import ToyModel, generator_of

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.search.banned_terms import BannedTerms
from relu_nmt.translation.search.constraints import block_repeated_ngrams
from relu_nmt.translation.search.symbol_texts import SymbolTexts


def ngrams(tokens, size):
    return list(zip(*(tokens[start:] for start in range(size)), strict=False))


def repeats(tokens, size):
    return len(ngrams(tokens, size)) - len(set(ngrams(tokens, size)))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_exactly_the_tokens_that_repeat_an_ngram_are_blocked(size):
    rng = np.random.default_rng(size)
    for length in (1, 2, 3, 4, 9, 20):
        history = rng.integers(4, 7, (3, 2, length))
        log_probs = torch.zeros(3, 2, 8)
        block_repeated_ngrams(log_probs, torch.from_numpy(history), size, spare_index=1)
        for b in range(3):
            for k in range(2):
                before = history[b, k].tolist()
                for token in range(4, 8):
                    ending = tuple([*before, token][-size:]) if length >= size - 1 else None
                    blocked = bool(log_probs[b, k, token].isinf())
                    assert blocked == (ending in ngrams(before, size))
                assert log_probs[b, k, [0, 2, 3]].eq(0).all()


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("beam", [1, 4])
def test_no_hypothesis_repeats_an_ngram(size, beam):
    repeated_without = 0
    for seed in range(8):
        source = torch.tensor([[4, 5, 2]])
        shared = {"beam": beam, "nbest": beam, "max_len_b": 12, "stop_rule": "exact"}
        model = ToyModel(vocab_size=9, seed=seed)
        for blocked in (0, size):
            generator = generator_of(model, no_repeat_ngram_size=blocked, **shared)
            [hypotheses] = generator.generate(source)
            num_repeats = sum(repeats(h.ids.tolist(), size) for h in hypotheses)
            if blocked:
                assert num_repeats == 0
            else:
                repeated_without += num_repeats
    assert repeated_without > 0


TERMS = [(5,), (4, 6), (6, 6, 4)]


def has_term(hypothesis):
    tokens = hypothesis.ids.tolist()
    return any(term in ngrams(tokens, len(term)) for term in TERMS)


@pytest.mark.parametrize("beam", [1, 4])
def test_no_hypothesis_has_a_banned_term(beam):
    written = 0
    words = Dictionary(list("abcde"))
    banned = BannedTerms(SymbolTexts(TextPipeline("en"), words), ["b", "a c", "c c a"])
    for seed in range(8):
        source = torch.tensor([[4, 5, 2], [6, 2, 1]])
        generator = generator_of(
            ToyModel(vocab_size=9, seed=seed),
            words,
            beam=beam,
            nbest=beam,
            max_len_b=12,
            stop_rule="exact",
        )
        free = generator.generate(source)
        bound = generator.generate(source, banned=[banned] * 2)
        for before, after in zip(free, bound, strict=True):
            assert not any(map(has_term, after))
            if has_term(before[0]):
                written += 1
            else:  # the same, as nothing of it is banned
                assert after[0].ids.tolist() == before[0].ids.tolist()
    assert 4 < written < 16
