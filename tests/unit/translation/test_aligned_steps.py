"""Steps and searches of models with aligned document attention."""

import copy
import itertools

import numpy as np
import pytest
import torch

from relu_nmt.engine import FastDecoder
from relu_nmt.translation.base import StepDecoder
from relu_nmt.translation.search.config import GenerationConfig
from tests.stepping import Generator, Stepping, log_probs
from tests.tiny import EOS, numbered_words
from tests.unit.translation.test_aligned_attention import (
    SENTENCE_LIMITS,
    SEP,
    SOURCE,
    TARGET,
    TSEP,
    VOCAB,
    each_mechanism,
    make_model,
    padded,
)


@pytest.fixture(autouse=True)
def without_gradients():
    """Compute as searches do."""
    with torch.no_grad():
        yield


@each_mechanism
@pytest.mark.parametrize("global_layers", [0, 1, 2])
def test_steps_equal_the_full_pass_for_every_beam(choices, global_layers):
    """Beams have separators at different positions, and more separators than the source."""
    model = make_model(choices, global_layers=global_layers)
    source = padded(SOURCE)
    steps = 7
    generator = torch.Generator().manual_seed(3)
    beams = torch.randint(5, VOCAB, (3, 4, steps + 1), generator=generator)
    beams[torch.rand(beams.shape, generator=generator) < 0.4] = TSEP
    beams[:, :, 0] = EOS
    search = Stepping(model, source, num_groups=2)
    search.step(beams[:, :, 0])
    order = torch.tensor([1, 1, 3, 2])  # within the groups
    rows_kept = torch.arange(3)
    step_scores = []
    sources = []
    written = []
    for t in range(1, steps):
        step_scores.append(search.step(beams[:, :, t]).log_probs.flatten(0, 1))
        sources.append(source.repeat_interleave(4, 0))
        written += beams[:, :, : t + 1].flatten(0, 1).tolist()
        search.reorder(order.expand(len(rows_kept), -1))
        beams = torch.cat([beams[:, order, : t + 1], beams[:, :, t + 1 :]], 2)
        if t == 3:
            rows_kept = torch.tensor([0, 2])
            search.keep(rows_kept)
            source = source[rows_kept]
            beams = beams[rows_kept]
    # One full pass has all steps, as later tokens and padding do not count.
    full = log_probs(model, torch.cat(sources), padded(written))
    newest = full[torch.arange(len(written)), torch.tensor(list(map(len, written))) - 1]
    torch.testing.assert_close(torch.cat(step_scores), newest, rtol=1e-6, atol=1e-6)
    assert len((beams == TSEP).sum(2).unique()) > 2


@each_mechanism
def test_greedy_steps_equal_the_full_pass(choices):
    model = make_model(choices, global_layers=1)
    source = padded(SOURCE[:2])
    target = padded(TARGET[:2])[:, :6]
    full = log_probs(model, source, target)
    search = Stepping(model, source)
    for t in range(6):
        step_scores = search.step(target[:, t : t + 1]).log_probs[:, 0]
        torch.testing.assert_close(step_scores, full[:, t], rtol=1e-6, atol=1e-6)


@each_mechanism
@pytest.mark.parametrize("aligned", [False, True])
def test_searches_that_run_together_equal_single_ones(choices, aligned):
    """The searches differ in the numbers of sentences, beams and tokens."""
    model = make_model(choices, aligned, **({"global_layers": 1} if aligned else {}))
    decoder = FastDecoder(model)
    generator = torch.Generator().manual_seed(3)

    def begin(rows, num_beams, steps):
        beams = torch.randint(4, VOCAB, (len(rows), num_beams, 9), generator=generator)
        beams[:, :, 0] = EOS
        search = Stepping(decoder, padded(rows))
        search.step(beams[:, :, 0])
        for t in range(1, steps):
            search.step(beams[:, :, t])
        return beams[:, :, steps:], search

    searches = [(SOURCE[:2], 4, 5), (SOURCE[2:], 1, 3), (SOURCE, 2, 1)]
    beams, apart = map(list, zip(*itertools.starmap(begin, searches), strict=True))
    together = copy.deepcopy(apart, {id(decoder): decoder})
    for t in range(4):
        newest = [rows[:, :, t] for rows in beams]
        steps = list(map(Stepping.next, together, newest))
        for tokens, separate, output in zip(newest, apart, decoder.step(steps), strict=True):
            torch.testing.assert_close(output.log_probs, separate.step(tokens).log_probs)
        if t == 1:
            for states in (apart, together):
                states[0].reorder(torch.tensor([[1, 0, 0, 3], [2, 2, 1, 0]]))
                states[2].keep(torch.tensor([0, 2]))
            beams[2] = beams[2][[0, 2]]


@each_mechanism
@pytest.mark.parametrize("aligned", [False, True])
def test_live_beams_equal_those_among_all(choices, aligned):
    model = make_model(choices, aligned, **({"global_layers": 1} if aligned else {}))
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(4, VOCAB, (len(SOURCE), 4, 7), generator=generator)
    partial = Stepping(FastDecoder(model), padded(SOURCE))
    full = Stepping(model, padded(SOURCE))
    for search in (partial, full):
        search.step(torch.full((len(SOURCE), 4), EOS))
    for t in range(7):
        live = torch.rand(tokens.shape[:2], generator=generator) < 0.4
        live[:, t % 4] = True
        scores = partial.step(tokens[:, :, t], live)
        expected = full.step(tokens[:, :, t]).log_probs
        torch.testing.assert_close(scores.of_all_beams().log_probs[live], expected[live])
        # No hypothesis goes on from one that is not computed.
        parents = torch.where(live, torch.arange(4), t % 4)
        for search in (partial, full):
            search.reorder(parents)


@pytest.mark.parametrize("global_layers", [0, 1])
def test_searches_that_run_together_have_the_same_alignments(global_layers):
    model = make_model({"attention": "softmax"}, global_layers=global_layers)
    sources = (padded(SOURCE[:1]), padded(SOURCE[1:]))
    tokens = (torch.full((1, 1), EOS), torch.full((2, 1), EOS))
    decoder = FastDecoder(model)
    together = [Stepping(decoder, source) for source in sources]
    outputs = decoder.step(list(map(Stepping.next, together, tokens)), want_weights=True)
    for token_ids, source, output in zip(tokens, sources, outputs, strict=True):
        alone = Stepping(model, source).step(token_ids, want_weights=True)
        torch.testing.assert_close(output.weights, alone.weights)


@pytest.mark.parametrize(
    "choices",
    [
        {"attention": "softmax", "positions": "learned"},
        {"attention": "softmax", "decoder_attention": "cosformer:horizon=6"},
    ],
    ids=str,
)
@pytest.mark.parametrize("free", [False, True], ids=["counted", "free"])
@pytest.mark.parametrize("flags", [{}, {"sampling": True}, {"beam_threshold": 4.0}], ids=str)
def test_a_search_ends_each_sentence_at_the_limit_of_the_model(choices, free, flags):
    limits = SENTENCE_LIMITS if "positions" in choices else {}
    model = make_model(choices, global_layers=0, **limits).float()
    # It would write words for ever.
    model.output_projection.weight[[EOS, TSEP]] -= 20 * model.output_projection.weight.mean()
    assert model.most_tokens("target", of_sentence=True) == 6
    config = GenerationConfig(beam=3, max_len_a=0, max_len_b=30, free_sentence_count=free, **flags)
    symbols = numbered_words(VOCAB - 4)
    generator = Generator([StepDecoder(model)], config, symbols, separators=(SEP, TSEP))
    longest = []
    for source, hypotheses in zip(SOURCE[:2], generator.generate(padded(SOURCE[:2])), strict=True):
        tokens = hypotheses[0].ids.tolist()
        if not free:
            assert tokens.count(TSEP) == source.count(SEP)
        ends = np.flatnonzero(np.isin(tokens, [TSEP, EOS]))
        longest += np.diff(ends, prepend=-1).tolist()
    assert max(longest) <= 6 and (max(longest) == 6 or config.sampling)
