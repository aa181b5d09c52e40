import subprocess
import sys
from dataclasses import fields

import pytest
import torch

from relu_nmt.errors import ConfigError, DataError
from relu_nmt.translation.config import TransformerConfig, architectures
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from tests.stepping import Stepping, log_probs
from tests.tiny import PAD, gradients, num_parameters, without_gradient


def of_architecture(name, **changes):
    shape = architectures[name]
    names = shape.keys() & {field.name for field in fields(TransformerConfig)}
    return TransformerConfig(**{name: shape[name] for name in names} | changes)


def config(**changes):
    return of_architecture("transformer_tiny", **changes)


def model(vocab=20, **changes):
    torch.manual_seed(0)
    return EncoderDecoder(config(**changes), vocab, vocab, PAD).double().eval()


def batch():
    src = torch.tensor([[5, 6, 7, 8, 2], [9, 10, 2, PAD, PAD]])
    prev = torch.tensor([[2, 11, 12, 13], [2, 14, PAD, PAD]])
    return src, prev


VARIANTS = [
    {"attention": "softmax"},
    {"attention": "reluformer"},
    {"attention": "reluformer:centered=true", "encoder_normalize_before": True},
    {"cross_attention": "reluformer", "decoder_normalize_before": True},
    {"positions": "learned", "layernorm_embedding": True},
    {"share_all_embeddings": True, "no_scale_embedding": True, "feed_forward": "gelu"},
    {"output_bias": True, "decoder_start_symbol": "<s>"},
]


@pytest.mark.parametrize("changes", VARIANTS)
def test_steps_equal_the_full_pass_for_every_beam(changes):
    m = model(**changes)
    src, _ = batch()
    beams = torch.randint(4, 20, (2, 3, 6))
    beams[:, :, 0] = 2
    search = Stepping(m, src)
    for t in range(6):
        scores = search.step(beams[:, :, t], want_weights=True)
        for k in range(3):
            full = log_probs(m, src, beams[:, k, : t + 1])[:, -1]
            torch.testing.assert_close(scores.log_probs[:, k], full, rtol=1e-6, atol=1e-6)
        assert not scores.weights[1, :, 3:].any()


@pytest.mark.parametrize("changes", VARIANTS[:3])
def test_steps_equal_the_full_pass_after_reordering_and_dropping(changes):
    m = model(**changes)
    src, _ = batch()
    tokens = torch.randint(4, 20, (2, 2, 3))
    search = Stepping(m, src)
    search.step(tokens[:, :, 0])
    search.step(tokens[:, :, 1])
    origin = torch.tensor([[1, 1], [1, 0]])
    search.reorder(origin)
    search.keep(torch.tensor([1]))
    step_scores = search.step(tokens[1:, :, 2]).log_probs
    for k in range(2):
        history = torch.cat([tokens[1, origin[1, k], :2], tokens[1, k, 2:]])[None]
        full = log_probs(m, src[1:, :3], history)[:, -1]
        torch.testing.assert_close(step_scores[:, k], full, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("changes", VARIANTS)
def test_padding_does_not_change_results(changes):
    m = model(**changes)
    src, prev = batch()
    padded = m(src, prev)
    alone = m(src[1:, :3], prev[1:, :2])
    torch.testing.assert_close(padded[1, :2], alone[0], rtol=1e-9, atol=1e-9)


def is_dropped(layer):
    """Tell whether no parameter of a layer has a gradient other than 0."""
    return without_gradient(layer) == gradients(layer).keys()


@pytest.mark.parametrize("recompute", [False, True])
def test_layers_are_dropped_in_training_only(recompute):
    settings = {"dropout": 0.0, "checkpoint_activations": recompute}
    plain = model(**settings).train()
    dropping = model(**settings, encoder_layerdrop=0.5, decoder_layerdrop=0.25).train()
    layers = [*dropping.encoder.layers, *dropping.decoder.layers]
    torch.manual_seed(1)
    number = 100
    dropped = torch.zeros(len(layers))
    for _ in range(number):
        dropping.zero_grad()
        dropping(*batch()).square().sum().backward()
        dropped += torch.tensor(list(map(is_dropped, layers)))
    assert torch.equal(dropping.eval()(*batch()), plain.eval()(*batch()))
    split = len(dropping.encoder.layers)
    assert (dropped[:split] / number).sub(0.5).abs().max() < 0.15
    assert (dropped[split:] / number).sub(0.25).abs().max() < 0.15


def test_a_stack_without_layers_is_its_embedding():
    dropping = model(dropout=0.0, encoder_layerdrop=1 - 1e-9, positions="none").train()
    src, _ = batch()
    states = dropping.encoder(src).states
    torch.testing.assert_close(states, dropping.encoder.embedding(src))


def test_the_output_may_have_a_bias():
    biased = model(output_bias=True)
    plain = model()
    src, prev = batch()
    bias = torch.randn(20, dtype=torch.float64)
    torch.testing.assert_close(biased.output_projection.bias, torch.zeros_like(bias))
    biased.load_state_dict(plain.state_dict() | {"output_projection.bias": bias})
    expected = plain.logits(plain(src, prev)) + bias.float()
    torch.testing.assert_close(biased.logits(biased(src, prev)), expected)


def test_the_decoder_may_start_with_another_symbol():
    other = model(decoder_start_symbol="<s>")
    plain = model()
    src, prev = batch()
    assert not torch.equal(other(src, prev), plain(src, prev))
    prev_from_bos = prev.masked_fill(prev == 2, 0)
    assert torch.equal(other(src, prev), plain(src, prev_from_bos))
    with pytest.raises(ConfigError, match="--decoder-start-symbol x: expected one of </s>, <s>"):
        config(decoder_start_symbol="x")


@pytest.mark.parametrize(
    ("arch", "non_embedding"), [("iwslt_de_en", 31_543_296), ("wmt_en_de", 44_138_496)]
)
@pytest.mark.parametrize(
    "family", ["transformer", "reluformer", "reluformer_hybrid", "reluformer_paper"]
)
def test_parameter_counts_of_the_paper(family, arch, non_embedding):
    shape = of_architecture(f"{family}_{arch}", share_all_embeddings=True)
    with torch.device("meta"):
        built = EncoderDecoder(shape, 1000, 1000, PAD)
    assert num_parameters(built) == non_embedding + 1000 * 512


def test_architectures_of_a_pair_differ_in_attention_only():
    for name, shape in architectures.items():
        if name.startswith("transformer"):
            for preset in ("reluformer", "reluformer_hybrid", "reluformer_paper"):
                twin = architectures[name.replace("transformer", preset, 1)]
                assert twin == {**shape, "attention_preset": preset}


def test_three_forms_of_tied_embeddings():
    def tables(**changes):
        m = model(**changes)
        parts = (m.encoder.embedding.tokens, m.decoder.embedding.tokens, m.output_projection)
        return len({part.weight.data_ptr() for part in parts})

    assert tables() == 3
    assert tables(share_decoder_input_output_embed=True) == 2
    assert tables(share_all_embeddings=True) == 1
    with pytest.raises(ConfigError, match="joined-dictionary"):
        EncoderDecoder(config(share_all_embeddings=True), 10, 12, PAD)


def test_learned_positions_name_their_flag():
    m = model(encoder_positions="learned", max_source_positions=4)
    with pytest.raises(DataError, match="--max-source-positions 4"):
        m.encoder(batch()[0])


def test_limits_of_length_come_from_positions_and_attentions():
    def limits(**changes):
        m = model(**changes)
        return m.most_tokens("source"), m.most_tokens("target")

    assert limits(attention="softmax", encoder_attention="cosformer:horizon=5") == (None, None)
    assert limits(decoder_attention="cosformer:horizon=5") == (None, 5)
    assert limits(decoder_attention="cosformer:reweight=false") == (None, None)
    assert limits(encoder_attention="linformer:length=7", cross_attention="linformer:length=6") == (
        6,
        None,
    )
    assert limits(positions="learned", max_source_positions=8, max_target_positions=9) == (8, 9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder_embed_dim": 32}, "must be equal"),
        ({"encoder_attention_heads": 3}, "multiple of --encoder-attention-heads 3"),
        ({"dropout": 1.0}, "--dropout 1: expected"),
        ({"decoder_layers": 0}, "--decoder-layers"),
    ],
)
def test_contradicting_settings_are_an_error(changes, message):
    with pytest.raises(ConfigError, match=message):
        config(**changes)


def test_building_a_model_does_not_import_sympy():
    code = (
        "import sys, torch; had = 'sympy' in sys.modules\n"
        "from relu_nmt.translation.config import TransformerConfig\n"
        "from relu_nmt.translation.encoder_decoder import EncoderDecoder\n"
        "EncoderDecoder(TransformerConfig(encoder_layers=1, decoder_layers=1), 9, 9, pad_index=1)\n"
        "sys.exit(not had and 'sympy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "changes, flag",
    [
        ({"attention": "reluformer:gama=2"}, "--attention reluformer"),
        ({"cross_attention": "reluformer:gama=2"}, "--cross-attention reluformer"),
        ({"attention": "linear", "positions": "alibi"}, ".*--attention linear"),
    ],
)
def test_an_error_in_an_attention_names_the_flag_given(changes, flag):
    config = TransformerConfig(encoder_layers=1, decoder_layers=1, **changes)
    with pytest.raises(ConfigError, match=f"^{flag}"):
        EncoderDecoder(config, 9, 9, pad_index=1)
