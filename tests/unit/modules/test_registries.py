"""Every registered feed-forward network, norm and position scheme: registered means tested."""

import re

import pytest
import torch

from relu_nmt.attention import attentions
from relu_nmt.attention.masks import Visibility
from relu_nmt.errors import ConfigError
from relu_nmt.modules import feed_forwards, norms, position_schemes
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from tests.stepping import Stepping, log_probs
from tests.tiny import EOS, PAD, both_sides, without_gradient

VOCAB = 20
SHAPE = {"embed_dim": 16, "ffn_embed_dim": 24, "layers": 2, "attention_heads": 2}
CHOICES = [
    *({"feed_forward": name} for name in feed_forwards.names()),
    *({"norm": name} for name in norms.names()),
    *({"positions": name} for name in position_schemes.names()),
    {"encoder_positions": "alibi", "decoder_positions": "rotary"},
    {"positions": "t5", "attention": "softmax"},
    {"positions": "sinusoidal+t5"},
    {"encoder_positions": "learned+rotary+alibi"},
]
each_choice = pytest.mark.parametrize("choices", CHOICES, ids=str)


def make_model(**choices):
    torch.manual_seed(0)
    settings = {"attention": "reluformer", "dropout": 0.0, **both_sides(SHAPE), **choices}
    model = EncoderDecoder(TransformerConfig(**settings), VOCAB, VOCAB, PAD).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # what starts at 0 or 1 must count, too
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def batch():
    source = torch.tensor([[5, 6, 7, 8, 9, EOS], [9, 10, EOS, PAD, PAD, PAD]])
    return source, torch.tensor([[EOS, 11, 12, 13, 14], [EOS, 14, 15, PAD, PAD]])


@each_choice
def test_a_model_of_any_choice_has_finite_features_and_all_gradients(choices):
    model = make_model(**choices).train()
    features = model(*batch())
    assert features.shape == (2, 5, 16) and features.isfinite().all()
    features.square().sum().backward()
    assert without_gradient(model) == {"output_projection.weight"}


@each_choice
def test_steps_equal_the_full_pass_for_every_beam(choices):
    model = make_model(**choices)
    source, _ = batch()
    beams = torch.randint(4, VOCAB, (2, 4, 5))
    beams[:, :, 0] = EOS
    search = Stepping(model, source, num_groups=2)
    search.step(beams[:, :, 0])
    order = torch.tensor([1, 1, 3, 2])  # within the groups
    for t in range(1, 5):
        step_scores = search.step(beams[:, :, t]).log_probs
        sources = source.repeat_interleave(4, 0)
        full = log_probs(model, sources, beams[:, :, : t + 1].flatten(0, 1))[:, -1]
        torch.testing.assert_close(step_scores.flatten(0, 1), full, rtol=1e-6, atol=1e-6)
        search.reorder(order.expand(2, -1))
        beams = torch.cat([beams[:, order, : t + 1], beams[:, :, t + 1 :]], 2)


@each_choice
def test_padding_changes_nothing(choices):
    model = make_model(**choices)
    source, previous = batch()
    alone = model(source[1:, :3], previous[1:, :3])
    torch.testing.assert_close(model(source, previous)[1, :3], alone[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", sorted({*position_schemes.names()} - {"none"}))
def test_positions_make_the_order_of_the_source_matter(name):
    model = make_model(positions=name)
    first = model.encoder(torch.tensor([[5, 6, 7, EOS]])).states[0]
    second = model.encoder(torch.tensor([[6, 5, 7, EOS]])).states[0]
    assert not torch.allclose(first[[1, 0, 2, 3]], second)


def test_without_positions_the_order_has_no_effect():
    model = make_model(positions="none")
    source = torch.tensor([[5, 6, 7, EOS]])
    first = model.encoder(source).states[0]
    second = model.encoder(source[:, [1, 0, 2, 3]]).states[0]
    torch.testing.assert_close(first[[1, 0, 2, 3]], second)


@pytest.mark.parametrize("name", norms.names())
def test_norms_work_under_autocast(name):
    norm = norms.get(name)(8, 1e-5)
    x = torch.randn(3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(norm(x.bfloat16()).float(), norm(x), atol=0.05, rtol=0)


@pytest.mark.parametrize("name", feed_forwards.names())
def test_feed_forward_networks_are_position_wise_and_use_their_full_width(name):
    network = feed_forwards.get(name)(8, 12, 0.0).double()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    torch.testing.assert_close(network(x)[:, 1], network(x[:, 1]))
    assert network.outer.in_features == 12 and network.inner.out_features in (12, 24)


def test_gated_networks_multiply_by_the_activation():
    x = torch.randn(5, 8)
    for name, activation in (
        ("swiglu", torch.nn.functional.silu),
        ("geglu", torch.nn.functional.gelu),
    ):
        network = feed_forwards.get(name)(8, 12, 0.0)
        gate, value = (x @ network.inner.weight.T + network.inner.bias).split(12, -1)
        torch.testing.assert_close(network(x), network.outer(activation(gate) * value))


@pytest.mark.parametrize("attention", attentions.names())
@pytest.mark.parametrize("name", ["rotary", "alibi", "t5", "sinusoidal+t5"])
def test_schemes_inside_attention_need_scores(name, attention):
    if attentions.get(attention).capabilities.scores:
        make_model(encoder_positions=name, encoder_attention=attention).encoder(batch()[0])
    else:
        flag = re.escape(f"--encoder-positions {name}")
        message = f"^{flag} acts on attention scores, which --encoder-attention {attention}[^\n]*$"
        with pytest.raises(ConfigError, match=message):
            make_model(encoder_positions=name, encoder_attention=attention)


@pytest.mark.parametrize(
    ("registry", "flag"),
    [(feed_forwards, "relux"), (norms, "layers"), (position_schemes, "rotery")],
)
def test_an_unknown_name_is_a_one_line_error_with_close_names(registry, flag):
    with pytest.raises(ConfigError, match=r"did you mean .*--user-module FILE"):
        registry.check(flag)


def test_all_layers_share_one_bias_table():
    """The bias is made once: its table is one tensor whatever the number of layers."""
    scheme = make_model(positions="t5").encoder.embedding.positions
    relative = scheme.relative(Visibility(4, 4))
    assert relative.bias.table.shape == (2, 7)


def test_joined_schemes_act_like_each_scheme_alone():
    """With the other one's part taken away, a model of two schemes is a model of one."""
    joined = make_model(encoder_positions="sinusoidal+t5")
    source, _ = batch()
    waves, t5 = joined.encoder.embedding.positions.schemes
    states = {}
    for name in ("sinusoidal", "t5"):
        alone = make_model(encoder_positions=name)
        weights = joined.state_dict()
        weights = {name: weights[name] for name in weights.keys() & alone.state_dict().keys()}
        if name == "t5":
            weights["encoder.embedding.positions.weight"] = t5.weight
        alone.load_state_dict(weights)
        states[name] = alone.encoder(source).states
    table = waves.table.clone()
    waves.table.zero_()
    torch.testing.assert_close(joined.encoder(source).states, states["t5"])
    waves.table.copy_(table)
    torch.nn.init.zeros_(t5.weight)
    torch.testing.assert_close(joined.encoder(source).states, states["sinusoidal"])
    assert not torch.allclose(states["t5"], states["sinusoidal"])


def test_joined_schemes_that_conflict_or_are_unknown_are_errors():
    with pytest.raises(ConfigError, match="only one of several position schemes can add a bias"):
        make_model(positions="alibi+t5")
    with pytest.raises(ConfigError, match="position schemes can rotate queries and keys"):
        make_model(positions="rotary+rotary")
    with pytest.raises(ConfigError, match=r"unknown position scheme 'rotery'; did you mean rotary"):
        make_model(positions="sinusoidal+rotery")
    assert make_model(positions="learned+alibi", max_source_positions=9).most_tokens("source") == 9
