"""The landmarks, inverses and options of Linformer, Nystromformer and SOFT."""

import pytest
import torch

from relu_nmt.attention.base import build_attention
from relu_nmt.attention.landmarks import newton_inverse, pseudo_inverse
from relu_nmt.attention.masks import Visibility
from relu_nmt.config.registry import Spec
from relu_nmt.errors import ConfigError
from relu_nmt.modules.multihead import SelfAttention
from tests.attention.helpers import HOLED, as_leaves, is_real, make_attention, random_qkv


def test_linformer_beyond_its_length_names_the_option():
    attend = make_attention("linformer:length=3")
    with pytest.raises(ConfigError, match=r"4 keys.*length=3; train .* length=4"):
        attend(*random_qkv(1, 4, 4), Visibility(4, 4))


@pytest.mark.parametrize(
    "name", ["nystromformer:landmarks=3,conv=3", "soft:stride=2,conv=3", "soft:stride=4"]
)
@pytest.mark.parametrize("length", [2, 3, 5, 7])
def test_each_sample_places_its_own_landmarks(name, length):
    attend = make_attention(name)
    q, k, v = random_qkv(2, 9, 9)
    mask = torch.arange(9) < torch.tensor([[length], [9]])
    padded = attend(q, k, v, Visibility(9, 9, key_mask=mask, query_mask=mask)).values
    for sample, n in ((0, length), (1, 9)):
        rows = (slice(sample, sample + 1), slice(None), slice(n))
        alone = attend(q[rows], k[rows], v[rows], Visibility(n, n)).values
        torch.testing.assert_close(padded[rows], alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kernel", ["softmax", "polynomial"])
@pytest.mark.parametrize("mask", HOLED)
def test_landmarks_of_nystromformer_skip_padding_at_any_position(kernel, mask):
    attend = make_attention(f"nystromformer:landmarks=3,kernel={kernel}")
    q, k, v = random_qkv(1, 12, 12)
    real = is_real(mask)
    padded = attend(q, k, v, Visibility(12, 12, key_mask=real, query_mask=real)).values
    count = int(real.sum())
    q, k, v = q[:, :, real[0]], k[:, :, real[0]], v[:, :, real[0]]
    alone = attend(q, k, v, Visibility(count, count)).values
    torch.testing.assert_close(padded[:, :, real[0]], alone, rtol=1e-9, atol=1e-12)
    assert alone.any()


def test_a_constant_scale_of_nystromformer_is_that_of_its_length():
    """Outputs have the factor of the scale once, whatever the padding."""
    attend = make_attention("nystromformer:landmarks=3,kernel=polynomial")
    constant = make_attention("nystromformer:landmarks=3,kernel=polynomial,length=2000")
    q, k, v = random_qkv(2, 12, 12)
    mask = torch.arange(12) < torch.tensor([[7], [12]])
    visibility = Visibility(12, 12, key_mask=mask, query_mask=mask)
    counts = mask.sum(-1).double()[:, None, None, None]
    expected = attend(q, k, v, visibility).values * (counts / 2000).sqrt()
    torch.testing.assert_close(constant(q, k, v, visibility).values, expected)


@pytest.mark.parametrize("size", [1e-2, 1e-4, 1e-6])
def test_cubes_of_small_scores_have_gradients_in_float32(size):
    """The norms of their matrix, 1e-12 and less, have a product whose square is 0 in float32."""
    results = []
    for dtype in (torch.float32, torch.float64):
        attend = make_attention("nystromformer:landmarks=3,kernel=polynomial").to(dtype)
        q, k, v = random_qkv(2, 9, 9, dtype=dtype)
        q, k = as_leaves([q * size**0.5, k * size**0.5])
        mask = torch.arange(9) < torch.tensor([[2], [9]])
        values = attend(q, k, v, Visibility(9, 9, key_mask=mask, query_mask=mask)).values
        loss = (values / values.detach().norm()).square().sum()
        results.append([values, *torch.autograd.grad(loss, (q, k))])
    for rough, exact in zip(*results, strict=True):
        assert (rough - exact).norm() < 0.01 * exact.norm()


def test_pseudo_inverse_converges_and_keeps_empty_rows():
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(5, 5, generator=generator, dtype=torch.float64).softmax(-1)
    a[3] = 0.0
    a[:, 3] = 0.0
    torch.testing.assert_close(pseudo_inverse(a, 25), torch.linalg.pinv(a), rtol=1e-6, atol=1e-8)


def test_newton_inverse_converges_also_for_equal_landmarks():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    a = (-torch.cdist(x, x).square() / 2).exp()
    torch.testing.assert_close(newton_inverse(a, 40), a.inverse(), rtol=1e-6, atol=1e-8)
    equal = torch.ones(3, 3, dtype=torch.float64)
    torch.testing.assert_close(newton_inverse(equal, 20), equal / 9)


def test_normalized_queries_and_keys_of_soft_stay_the_same_in_training():
    torch.manual_seed(0)
    attention = SelfAttention(8, make_attention("soft:stride=2,qk_norm=true").float()).train()
    inputs = []
    attention.attention.register_forward_pre_hook(lambda module, args: inputs.append(args[:2]))
    optimizer = torch.optim.Adam(attention.parameters(), 0.1)
    x = torch.randn(2, 6, 8)
    for _ in range(2):
        attention(x, Visibility(6, 6)).square().sum().backward()
        optimizer.step()
    assert not torch.equal(inputs[0][0], inputs[1][0])
    for q, k in inputs:
        assert torch.equal(q, k)


@pytest.mark.parametrize("name", ["xca", "linformer", "nystromformer", "soft"])
def test_without_weights_there_is_no_dropout_of_them(name):
    with pytest.raises(ConfigError, match="no weights to drop"):
        build_attention(Spec(name), "encoder", 0, 2, 4, dropout=0.1)


@pytest.mark.parametrize(
    "spec",
    [
        *("nystromformer:conv=4", "nystromformer:kernel=relu", "nystromformer:length=9"),
        *("soft:stride=0", "linformer:rank=0"),
    ],
)
def test_wrong_options_are_errors_that_name_them(spec):
    with pytest.raises(ConfigError, match=spec.split(":")[1]):
        make_attention(spec)
