"""Linformer, Nystromformer and SOFT against their formulas."""

import math

import pytest
import torch

from relu_nmt.attention.base import build_attention
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.nystromformer import pseudo_inverse
from relu_nmt.attention.soft import newton_inverse
from relu_nmt.attention.spec import AttentionSpec
from relu_nmt.errors import ConfigError
from relu_nmt.modules.multihead import SelfAttention
from tests.attention.helpers import HOLED, make_attention, random_qkv


def softmax(scores):
    return (scores - scores.amax(-1, keepdim=True)).exp() / (
        scores - scores.amax(-1, keepdim=True)
    ).exp().sum(-1, keepdim=True)


def test_linformer_is_the_printed_formula():
    attend = make_attention("linformer:length=7,rank=3", "cross")
    q, k, v = random_qkv(1, 4, 6)
    mask = torch.tensor([[True] * 5 + [False]])
    values = attend(q, k, v, Visibility(4, 6, key_mask=mask)).values
    e, f = attend.keys_projection, attend.values_projection
    for h in range(2):
        keys = torch.stack([sum(e[r, j] * k[0, h, j] for j in range(5)) for r in range(3)])
        mixtures = torch.stack([sum(f[r, j] * v[0, h, j] for j in range(5)) for r in range(3)])
        expected = softmax(q[0, h] @ keys.T / 2) @ mixtures
        torch.testing.assert_close(values[0, h], expected, rtol=1e-10, atol=1e-14)


def test_linformer_beyond_its_length_names_the_option():
    attend = make_attention("linformer:length=3")
    with pytest.raises(ConfigError, match=r"4 keys.*length=3; train .* length=4"):
        attend(*random_qkv(1, 4, 4), Visibility(4, 4))


def means(x, size):
    return torch.stack([x[i : i + size].mean(0) for i in range(0, len(x), size)])


@pytest.mark.parametrize("kernel", ["softmax", "polynomial"])
@pytest.mark.parametrize("tokens", [6, 7])
def test_nystromformer_is_the_printed_formula(kernel, tokens):
    attend = make_attention(f"nystromformer:landmarks=3,kernel={kernel}")
    q, k, v = random_qkv(1, tokens, tokens)
    values = attend(q, k, v, Visibility(tokens, tokens)).values
    for h in range(2):
        queries, keys = q[0, h] / 4**0.25, k[0, h] / 4**0.25
        size = math.ceil(tokens / 3)
        few_q, few_k = means(queries, size), means(keys, size)

        def weigh(x, y):
            scores = x @ y.T
            return softmax(scores) if kernel == "softmax" else scores**3 / tokens**0.5

        a = weigh(few_q, few_k)
        z = a.T / (a.abs().sum(0).max() * a.abs().sum(1).max())
        one = torch.eye(3, dtype=torch.float64)
        for _ in range(6):
            z = z @ (13 * one - a @ z @ (15 * one - a @ z @ (7 * one - a @ z))) / 4
        expected = weigh(queries, few_k) @ z @ weigh(few_q, keys) @ v[0, h]
        torch.testing.assert_close(values[0, h], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("landmarks", [6, 64])
@pytest.mark.parametrize("kernel", ["softmax", "polynomial"])
def test_nystromformer_with_a_landmark_per_token_is_full_attention(landmarks, kernel):
    attend = make_attention(f"nystromformer:landmarks={landmarks},kernel={kernel}")
    q, k, v = random_qkv(1, 6, 6)
    scores = q @ k.transpose(-1, -2) / 2
    weights = softmax(scores) if kernel == "softmax" else scores**3 / 6**0.5
    values = attend(q, k, v, Visibility(6, 6)).values
    torch.testing.assert_close(values, weights @ v, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("landmarks", [3, 9])
def test_the_scale_of_the_polynomial_is_one_factor_of_the_output(landmarks):
    spec = f"nystromformer:landmarks={landmarks},kernel=polynomial"
    q, k, v = random_qkv(1, 9, 9)
    fixed = make_attention(spec)(q, k, v, Visibility(9, 9)).values
    none = make_attention(f"{spec},scale=none")(q, k, v, Visibility(9, 9)).values
    torch.testing.assert_close(none, 3 * fixed, rtol=1e-9, atol=1e-12)
    dynamic = make_attention(f"{spec},scale=dynamic")
    assert dynamic.scale.tolist() == [1.0] and dynamic.scale.no_weight_decay
    torch.testing.assert_close(dynamic(q, k, v, Visibility(9, 9)).values, fixed)
    with torch.no_grad():
        dynamic.scale.fill_(-2.0)
    values = dynamic(q, k, v, Visibility(9, 9)).values
    torch.testing.assert_close(values, -2 * fixed, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "name", ["nystromformer:landmarks=3,conv=3", "soft:stride=2,conv=3", "soft:stride=4"]
)
@pytest.mark.parametrize("length", [2, 3, 5, 7])
def test_each_sample_places_its_own_landmarks(name, length):
    attend = make_attention(name)
    q, k, v = random_qkv(2, 9, 9)
    mask = torch.arange(9) < torch.tensor([[length], [9]])
    padded = attend(q, k, v, Visibility(9, 9, key_mask=mask, query_mask=mask)).values
    alone = attend(*(x[:1, :, :length] for x in (q, k, v)), Visibility(length, length)).values
    torch.testing.assert_close(padded[:1, :, :length], alone, rtol=1e-9, atol=1e-12)
    whole = attend(*(x[1:] for x in (q, k, v)), Visibility(9, 9)).values
    torch.testing.assert_close(padded[1:], whole, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kernel", ["softmax", "polynomial"])
@pytest.mark.parametrize("mask", HOLED)
def test_landmarks_of_nystromformer_skip_padding_wherever_it_stands(kernel, mask):
    attend = make_attention(f"nystromformer:landmarks=3,kernel={kernel}")
    q, k, v = random_qkv(1, 12, 12)
    real = torch.tensor([[c == "1" for c in mask]])
    padded = attend(q, k, v, Visibility(12, 12, key_mask=real, query_mask=real)).values
    count = int(real.sum())
    alone = attend(*(x[:, :, real[0]] for x in (q, k, v)), Visibility(count, count)).values
    torch.testing.assert_close(padded[:, :, real[0]], alone, rtol=1e-9, atol=1e-12)
    assert alone.any()


@pytest.mark.parametrize("size", [1e-2, 1e-4, 1e-6])
def test_cubes_of_small_scores_have_gradients_in_float32(size):
    """The norms of their matrix, 1e-12 and less, have a product whose square is 0 in float32."""
    found = []
    for dtype in (torch.float32, torch.float64):
        attend = make_attention("nystromformer:landmarks=3,kernel=polynomial").to(dtype)
        q, k, v = random_qkv(2, 9, 9, dtype=dtype)
        q, k = ((x * size**0.5).requires_grad_() for x in (q, k))
        mask = torch.arange(9) < torch.tensor([[2], [9]])
        values = attend(q, k, v, Visibility(9, 9, key_mask=mask, query_mask=mask)).values
        loss = (values / values.detach().norm()).square().sum()
        found.append([values, *torch.autograd.grad(loss, (q, k))])
    for rough, exact in zip(*found, strict=True):
        assert (rough - exact).norm() < 0.01 * exact.norm()


def test_pseudo_inverse_converges_and_keeps_empty_rows():
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(5, 5, generator=generator, dtype=torch.float64).softmax(-1)
    a[3], a[:, 3] = 0.0, 0.0
    torch.testing.assert_close(pseudo_inverse(a, 25), torch.linalg.pinv(a), rtol=1e-6, atol=1e-8)


def test_newton_inverse_converges_also_for_equal_landmarks():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    a = (-torch.cdist(x, x).square() / 2).exp()
    torch.testing.assert_close(newton_inverse(a, 40), a.inverse(), rtol=1e-6, atol=1e-8)
    ones = torch.ones(3, 3, dtype=torch.float64)
    torch.testing.assert_close(newton_inverse(ones, 20), ones / 9)


@pytest.mark.parametrize("normalized", [False, True])
def test_soft_is_the_printed_formula(normalized):
    attend = make_attention(f"soft:stride=2,normalized={str(normalized).lower()},iterations=40")
    q, _, v = random_qkv(1, 6, 6)
    assert attend.shares_queries_and_keys
    values = attend(q, q, v, Visibility(6, 6)).values
    for h in range(2):
        x = q[0, h] / 4**0.25
        landmarks = []
        for start in range(0, 6, 2):
            kernel, bias = attend.window.weight.unflatten(1, (2, 4)), attend.window.bias
            y = bias + sum(kernel[:, t] @ x[start + t] for t in range(2))
            y = (y - y.mean()) / (y.var(unbiased=False) + 1e-5).sqrt()
            landmarks.append(y * (1 + torch.erf(y / 2**0.5)) / 2)
        few = torch.stack(landmarks)
        k1 = (-torch.cdist(x, few).square() / 2).exp()
        k2 = (-torch.cdist(few, few).square() / 2).exp()
        inverse = k2.inverse()
        if normalized:
            roots = k2.sum(-1).rsqrt().diag()
            inverse = roots @ inverse @ roots
        expected = k1 @ inverse @ k1.T @ v[0, h]
        torch.testing.assert_close(values[0, h], expected, rtol=1e-5, atol=1e-7)


def test_normalised_queries_and_keys_of_soft_stay_the_same_in_training():
    torch.manual_seed(0)
    attention = SelfAttention(8, make_attention("soft:stride=2,qk_norm=true").float()).train()
    seen = []
    attention.attention.register_forward_pre_hook(lambda module, args: seen.append(args[:2]))
    optimizer = torch.optim.Adam(attention.parameters(), 0.1)
    x = torch.randn(2, 6, 8)
    for _ in range(2):
        attention(x, Visibility(6, 6)).square().sum().backward()
        optimizer.step()
    assert not torch.equal(seen[0][0], seen[1][0])
    assert all(torch.equal(q, k) for q, k in seen)


@pytest.mark.parametrize("name", ["xca", "linformer", "nystromformer", "soft"])
def test_without_weights_there_is_no_dropout_of_them(name):
    with pytest.raises(ConfigError, match="no weights to drop"):
        build_attention(AttentionSpec(name), "encoder", 0, 2, 4, dropout=0.1)


@pytest.mark.parametrize(
    "spec",
    ["nystromformer:conv=4", "nystromformer:kernel=relu", "soft:stride=0", "linformer:rank=0"],
)
def test_wrong_options_are_errors_that_name_them(spec):
    with pytest.raises(ConfigError, match=spec.split(":")[1]):
        make_attention(spec)
