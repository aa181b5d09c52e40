import numpy as np
import pytest
import torch
from toy_models import ToyModel

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.search.banned_terms import BannedTerms
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.step_rules import block_repeated_ngrams
from relu_nmt.translation.search.symbol_texts import SymbolTexts
from tests.stepping import Generator


def repeats(tokens, size):
    ngrams = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
    return len(ngrams) - len(set(ngrams))


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
                    earlier = {tuple(before[i : i + size]) for i in range(length - size + 1)}
                    blocked = bool(log_probs[b, k, token].isinf())
                    assert blocked == (ending in earlier)
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
            config = GenerationConfig(no_repeat_ngram_size=blocked, **shared)
            [hypotheses] = Generator([model], config, Dictionary()).generate(source)
            counts = [repeats(h.tokens.tolist(), size) for h in hypotheses]
            if blocked:
                assert sum(counts) == 0
            else:
                repeated_without += sum(counts)
    assert repeated_without > 0


def occurs(term, tokens):
    return any(tuple(tokens[i : i + len(term)]) == term for i in range(len(tokens)))


@pytest.mark.parametrize("beam", [1, 4])
def test_no_hypothesis_has_a_banned_term(beam):
    written = 0
    words = Dictionary(list("abcde"))
    terms = [(5,), (4, 6), (6, 6, 4)]
    banned = BannedTerms(SymbolTexts(TextPipeline("en"), words), ["b", "a c", "c c a"])
    for seed in range(8):
        source = torch.tensor([[4, 5, 2], [6, 2, 1]])
        config = GenerationConfig(beam=beam, nbest=beam, max_len_b=12, stop_rule="exact")
        model = ToyModel(vocab_size=9, seed=seed)
        free, bound = (
            Generator([model], config, words).generate(source, banned=terms_of_rows)
            for terms_of_rows in ((), [banned] * 2)
        )
        for hypotheses in bound:
            assert not any(occurs(term, h.tokens.tolist()) for h in hypotheses for term in terms)
        for before, after in zip(free, bound, strict=True):
            best = before[0].tokens.tolist()
            written += (has := any(occurs(term, best) for term in terms))
            if not has:  # the same, as nothing of it is banned
                assert after[0].tokens.tolist() == best
    assert 4 < written < 16
