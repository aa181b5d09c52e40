"""The norm and gate of ReLA on the joined heads."""

import pytest
import torch

from relu_nmt.attention import naive
from relu_nmt.attention.masks import Visibility
from relu_nmt.errors import ConfigError
from relu_nmt.modules.multihead import SelfAttention
from tests.attention.helpers import make_attention, random_qkv
from tests.tiny import num_parameters


def randomized(spec):
    attend = make_attention(spec)
    generator = torch.Generator().manual_seed(1)
    for parameter in attend.parameters():
        parameter.data.normal_(generator=generator)
    return attend


@pytest.mark.parametrize("gated", ["false", "true"])
def test_norm_spans_the_heads(gated):
    attend = randomized(f"rela:gated={gated}")
    (joined,) = random_qkv(2, 3, 1, heads=1, dim=8)[:1]
    expected = naive.rela_norm(joined[:, 0], attend.norm_gain, attend.gate_weight)
    torch.testing.assert_close(attend.finish(joined[:, 0], joined[:, 0]), expected)


def test_parameters_and_initial_gain():
    assert num_parameters(make_attention("rela")) == 8
    gated = make_attention("rela:gated=true,gain=0.1")
    assert num_parameters(gated) == 16
    assert gated.norm_gain.tolist() == pytest.approx([0.1] * 8)
    with pytest.raises(ConfigError, match="gain=nan: expected a number"):
        make_attention("rela:gain=nan")
    with pytest.raises(ConfigError, match="gated=maybe: expected true or false"):
        make_attention("rela:gated=maybe")


def test_output_does_not_change_with_the_scale_unless_it_is_gated():
    (o,) = random_qkv(1, 4, 1, heads=1, dim=8)[:1]
    for scale in (10.0, 1e4):
        plain, gated = make_attention("rela"), make_attention("rela:gated=true")
        torch.testing.assert_close(
            plain.finish(o * scale, o), plain.finish(o, o), rtol=1e-4, atol=0
        )
        assert (gated.finish(o * scale, o) - gated.finish(o, o)).abs().max() > 0.1


@pytest.mark.parametrize("gated", ["false", "true"])
def test_zero_stays_zero_with_finite_gradients_and_half_precision_is_exact_inside(gated):
    attend = make_attention(f"rela:gated={gated}").float()
    o = torch.zeros(1, 2, 8, requires_grad=True)
    output = attend.finish(o, o)
    (grad,) = torch.autograd.grad(output.sum(), o)
    assert not output.any() and grad.isfinite().all() and grad.max() <= 1000.01
    large = torch.full((1, 1, 8), 3e4, dtype=torch.float16)  # its square overflows float16
    finished = attend.finish(large, large)
    assert finished.dtype == torch.float16
    assert (finished - 1).abs().max() < 1e-3


def test_gradcheck_of_the_whole_module():
    attend = randomized("rela:gated=true")
    torch.manual_seed(0)
    module = SelfAttention(8, attend).double()
    x = random_qkv(1, 4, 1, heads=1, dim=8)[0][:, 0].requires_grad_()

    def values(x):
        return module(x, Visibility(4, 4))

    assert torch.autograd.gradcheck(values, x)
    assert torch.autograd.gradgradcheck(values, x)
