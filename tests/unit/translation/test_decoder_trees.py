"""Step-by-step decoding with any reordering of beams against the full forward pass."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relu_nmt.attention import attentions
from relu_nmt.translation import decoder_state
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from tests.stepping import Stepping, log_probs
from tests.tiny import EOS, PAD, tiny_config

VOCAB = 20
SOURCES = torch.tensor([[5, 6, 7, 8, 2], [9, 10, 2, PAD, PAD], [4, 5, 6, 2, PAD]])
CAUSAL = [name for name in attentions.names() if attentions.get(name).capabilities.causal]


def model(decoder_attention):
    torch.manual_seed(0)
    sizes = {"embed_dim": 8, "ffn_embed_dim": 8}
    config = tiny_config(sizes, decoder_layers=2, decoder_attention=decoder_attention)
    return EncoderDecoder(config, VOCAB, VOCAB, PAD).double().eval()


class Checked:
    """A decoder state together with its hypotheses."""

    def __init__(self, m, beam_size, num_groups=1, seed=0):
        self.model = m
        self.beam_size = beam_size
        self.num_groups = num_groups
        self.generator = torch.Generator().manual_seed(seed)
        self.sources = SOURCES
        self.search = Stepping(m, SOURCES, num_groups)
        self.tokens = torch.full((len(SOURCES), beam_size, 1), EOS)  # [B, K, t]
        self.step(check=True)
        self.add()

    def add(self):
        shape = (len(self.sources), self.beam_size, 1)
        newest = torch.randint(4, VOCAB, shape, generator=self.generator)
        self.tokens = torch.cat([self.tokens, newest], 2)

    def step(self, check):
        step_scores = self.search.step(self.tokens[:, :, -1]).log_probs
        if check:
            batch, beam_size, length = self.tokens.shape
            sources = self.sources.repeat_interleave(beam_size, 0)
            expected = log_probs(self.model, sources, self.tokens.reshape(-1, length))[:, -1]
            expected = expected.view(batch, beam_size, VOCAB)
            torch.testing.assert_close(step_scores, expected, rtol=1e-5, atol=1e-6)

    def reorder(self):
        size = self.beam_size // self.num_groups
        shape = (len(self.sources), self.num_groups, size)
        numbers = torch.randint(size, shape, generator=self.generator)
        parents = (numbers + size * torch.arange(self.num_groups)[:, None]).flatten(1)
        self.search.reorder(parents)
        self.tokens = self.tokens.gather(1, parents[:, :, None].expand_as(self.tokens))
        self.add()

    def drop(self, sentence):
        if len(self.sources) > 1:
            rows = torch.arange(len(self.sources))
            rows = rows[rows != sentence % len(rows)]
            self.search.keep(rows)
            self.sources = self.sources[rows]
            self.tokens = self.tokens[rows]


@pytest.mark.parametrize(("beam_size", "groups"), [(4, 1), (4, 2), (3, 3), (1, 1)])
@pytest.mark.parametrize("name", CAUSAL)
@torch.inference_mode()
def test_steps_equal_the_full_pass_when_caches_grow(name, beam_size, groups, monkeypatch):
    monkeypatch.setattr(decoder_state, "MOST_STEPS", 12)
    checked = Checked(model(name), beam_size, groups)
    for i in range(2 * decoder_state.MOST_STEPS + 8):
        checked.step(check=i % 5 == 0 or i % decoder_state.MOST_STEPS < 3)
        if i in (5, 16):
            checked.drop(i)
        checked.reorder()
    checked.step(check=True)


@pytest.mark.parametrize("name", ["reluformer", "softmax", "cosformer", "performer"])
@settings(max_examples=12)
@given(
    beams=st.sampled_from([(1, 1), (2, 1), (5, 1), (4, 2)]),
    room=st.integers(1, 5),
    seed=st.integers(0, 1000),
    events=st.lists(st.one_of(st.none(), st.integers(0, 2)), max_size=12),
)
def test_steps_equal_the_full_pass_after_any_reordering(name, beams, room, seed, events):
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(decoder_state, "MOST_STEPS", room)
        beam_size, groups = beams
        checked = Checked(model(name), beam_size, groups, seed)
        for leaving in events:
            checked.step(check=True)
            if leaving is not None:
                checked.drop(leaving)
            checked.reorder()
        checked.step(check=True)


@torch.inference_mode()
def test_tokens_that_beams_share_are_stored_once():
    length = 200
    beam_size = 5
    search = Stepping(model("reluformer"), SOURCES)
    num_positions = []
    search.step(torch.full((3, beam_size), EOS))
    for i in range(length):
        search.step(torch.randint(4, VOCAB, (3, beam_size)))
        search.reorder(torch.full((3, beam_size), i % beam_size))
        num_positions.append(max(cache.target[0].size(2) for cache in search.state.caches))
    unshared = beam_size * decoder_state.MOST_STEPS
    assert max(num_positions) <= length + 2 * unshared < beam_size * length


@torch.inference_mode()
def test_keys_of_the_source_are_stored_once_per_sentence():
    m = model("softmax")
    search = Stepping(m, SOURCES)
    search.step(torch.full((3, 5), EOS))
    search.keep(torch.tensor([0, 2]))
    assert all(cache.source[0].shape == (2, 2, 5, 4) for cache in search.state.caches)
