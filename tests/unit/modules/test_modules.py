import pytest
import torch
from torch import nn

from relu_nmt.attention.base import build_attention
from relu_nmt.attention.dropout import dropout
from relu_nmt.attention.masks import Visibility
from relu_nmt.config.registry import Spec
from relu_nmt.modules.multihead import CrossAttention, SelfAttention
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from tests.stepping import Stepping
from tests.tiny import both_sides


@pytest.mark.parametrize("shape", [(1,), (7, 3), (100, 1001)])
def test_dropout_keeps_the_expectation_and_never_repeats(shape):
    torch.manual_seed(1)
    x = torch.ones(shape)
    y = dropout(x, 0.3)
    nonzero = y[y != 0]
    torch.testing.assert_close(nonzero, torch.full_like(nonzero, 1 / 0.7), rtol=1e-4, atol=0)
    if x.numel() > 1000:
        assert y.mean().item() == pytest.approx(1.0, abs=0.01)
        assert (y == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)
        assert not torch.equal(y, dropout(x, 0.3))


def test_dropout_gradient_follows_the_mask():
    x = torch.ones(50, 40, requires_grad=True)
    y = dropout(x, 0.5)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, y.detach())


def self_attention(embed_dim, heads):
    spec = Spec.parse("softmax")
    return SelfAttention(
        embed_dim, build_attention(spec, "encoder", 0, heads, embed_dim // heads, 0.0)
    )


def cross_attention(embed_dim, heads):
    spec = Spec.parse("softmax")
    return CrossAttention(
        embed_dim, build_attention(spec, "cross", 0, heads, embed_dim // heads, 0.0)
    )


def pytorchs_own(weight, bias, out_proj):
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    tensors = {"in_proj_weight": weight, "in_proj_bias": bias}
    theirs.load_state_dict(
        tensors | {"out_proj.weight": out_proj.weight, "out_proj.bias": out_proj.bias}
    )
    return theirs


def test_multihead_softmax_equals_pytorchs_own():
    torch.manual_seed(2)
    x = torch.randn(3, 4, 8, dtype=torch.float64)
    memory = torch.randn(3, 5, 8, dtype=torch.float64)
    mask = torch.arange(5) < torch.tensor([[5], [2], [4]])
    cross = cross_attention(8, 2).double()
    attention = self_attention(8, 2).double()
    weight = torch.cat([cross.q.weight, cross.kv.weight])
    theirs = pytorchs_own(weight, torch.cat([cross.q.bias, cross.kv.bias]), cross.out_proj)
    output = cross(x, Visibility(4, 5, key_mask=mask), memory)
    torch.testing.assert_close(output, theirs(x, memory, memory, key_padding_mask=~mask)[0])
    theirs = pytorchs_own(attention.qkv.weight, attention.qkv.bias, attention.out_proj)
    torch.testing.assert_close(attention(x, Visibility(4, 4)), theirs(x, x, x)[0])


def test_initial_weights_have_the_variance_of_fairseq():
    cross = cross_attention(256, 4)
    attention = self_attention(256, 4)
    for weight in (attention.qkv.weight, cross.q.weight, cross.kv.weight):
        assert weight.var().item() == pytest.approx(0.5 / 256, rel=0.05)
    for module in (attention, cross):
        assert module.out_proj.weight.var().item() == pytest.approx(1 / 256, rel=0.05)
        assert not any(p.any() for name, p in module.named_parameters() if "bias" in name)


def test_every_projection_and_the_logits_go_through_plain_linear_modules():
    """Quantization and adapters look for them by this type and act when they are called."""
    small = {"embed_dim": 8, "ffn_embed_dim": 8, "layers": 1, "attention_heads": 2}
    config = TransformerConfig(**both_sides(small))
    model = EncoderDecoder(config, 9, 9, 1).eval()
    called = set()
    matrices = set()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            matrices.add(id(parameter))
    for name, module in model.named_modules():
        if type(module) is nn.Linear:
            module.register_forward_hook(lambda *_, name=name: called.add(name))
            matrices.discard(id(module.weight))
    assert len(matrices) == 2  # the embeddings
    Stepping(model, torch.tensor([[4, 5, 2]])).step(torch.tensor([[2]]))
    assert called == {
        "encoder.layers.0.self_attention.qkv",
        "encoder.layers.0.self_attention.out_proj",
        "encoder.layers.0.feed_forward.inner",
        "encoder.layers.0.feed_forward.outer",
        "decoder.layers.0.self_attention.qkv",
        "decoder.layers.0.self_attention.out_proj",
        "decoder.layers.0.cross_attention.q",
        "decoder.layers.0.cross_attention.kv",
        "decoder.layers.0.cross_attention.out_proj",
        "decoder.layers.0.feed_forward.inner",
        "decoder.layers.0.feed_forward.outer",
        "output_projection",
    }
