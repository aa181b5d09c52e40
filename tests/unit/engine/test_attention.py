"""Kernels of decoding against PyTorch in float64, in every form that this processor can run."""

import math
import shutil
import subprocess
import sys

import pytest
import torch

from relu_nmt.attention.base import Need, build_attention
from relu_nmt.attention.masks import TreeVisibility, Visibility
from relu_nmt.attention.normalized import SoftmaxAttention
from relu_nmt.attention.reluformer import ReLUFormerAttention
from relu_nmt.attention.score_bias import ScoreBias
from relu_nmt.config.registry import Spec
from relu_nmt.engine import install, native
from tests.tiny import tiny_model, tiny_task

HEADS = 2
SPECS = [
    "softmax",
    "reluformer:gamma=2",
    "reluformer:centered=true",
    "reluformer:centered=true,power=2",
    "pointwise:h=relu,alpha=0,qk_norm=false",
    "rela",
]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}

needs_kernels = pytest.mark.skipif(
    shutil.which("g++") is None, reason="needs a compiler when the package is installed"
)


@pytest.fixture(autouse=True)
def one_thread_without_gradients():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def calls(monkeypatch):
    """The names of the kernels that are called."""
    names, call = [], native.call
    monkeypatch.setattr(native, "call", lambda *args: [names.append(args[0]), call(*args)])
    return names


each_form = pytest.mark.parametrize("kernel_form", native.forms(), indirect=True)


def make(spec, width, dtype=torch.float32):
    attention = build_attention(Spec.parse(spec), "decoder", 0, HEADS, width, 0.0)
    return attention.to(dtype).eval()


def heads_of(batch, num_tokens, width, seed):
    """Return heads [B, H, N, d] in the memory layout of a projection: tokens, then heads."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, num_tokens, HEADS, width, generator=generator).transpose(1, 2)


def padded(batch, num_queries, num_keys):
    lengths = torch.arange(batch) * num_keys // max(1, batch - 1)  # of none of the first's keys
    return Visibility(num_queries, num_keys, key_mask=torch.arange(num_keys) < lengths[:, None])


def tree(batch, num_queries, num_keys):
    generator = torch.Generator().manual_seed(1)
    ancestry = torch.rand(batch, num_queries, num_keys + 3, generator=generator) < 0.6
    ancestry[:, :, num_keys - 1] = True
    return TreeVisibility(ancestry[:, :, :num_keys])


def bias_of(num_queries, num_keys):
    table = torch.randn(HEADS, num_keys + num_queries, generator=torch.Generator().manual_seed(2))
    queries, keys = torch.arange(num_queries)[None], torch.arange(num_keys)[None]
    return ScoreBias(table, queries, keys, zero=num_keys)


def with_backend(spec, name, q, k, v, visibility, **options):
    attention = make(spec, q.size(3), q.dtype if name == "reference" else torch.float32)
    native.use_attention_kernel(attention)
    attention.backend = name
    return attention(q, k, v, visibility, **options).values


@needs_kernels
def test_the_kernels_are_compiled():
    assert native.library() is not None


@needs_kernels
@each_form
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("see", [padded, tree])
@pytest.mark.parametrize("spec", SPECS)
def test_agrees_with_the_reference_in_float64(kernel_form, spec, see, dtype, calls):
    for number, (num_queries, num_keys, width) in enumerate(
        [(1, 1, 16), (5, 3, 64), (5, 16, 32), (3, 17, 80), (16, 63, 64), (2, 100, 128)]
    ):
        q, k, v = (
            heads_of(3, n, width, seed).to(dtype)
            for seed, n in ((1, num_queries), (2, num_keys), (3, num_keys))
        )
        bias = bias_of(num_queries, num_keys) if number % 2 else None
        visibility = see(3, num_queries, num_keys)
        output = with_backend(spec, "native", q, k, v, visibility, bias=bias)
        assert len(calls) == number + 1
        exact = (x.double() for x in (q, k, v))
        expected = with_backend(spec, "reference", *exact, visibility, bias=bias)
        assert output.dtype == dtype
        scale = max(1.0, float(expected.abs().max()))
        error = (output.double() - expected).abs().max() / scale
        assert error < TOLERANCE[dtype], (num_queries, num_keys, width)


@needs_kernels
@pytest.mark.parametrize("spec", ["softmax", "reluformer"])
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_values_that_are_not_finite_stay_so(spec, wrong):
    q, k, v = (heads_of(1, n, 16, seed).abs() for seed, n in ((1, 2), (2, 4), (3, 4)))
    k[0, 0, 1, 0] = wrong
    values = with_backend(spec, "native", q, k, v, Visibility(2, 4))
    assert not values[:, 0].isfinite().any()
    assert values[:, 1].isfinite().all()


class Flat(SoftmaxAttention):
    """A mechanism of a user, with another map."""

    def normalize(self, scores):
        return (scores / 100).softmax(-1)


class Plain(ReLUFormerAttention):
    """A mechanism of a user, with the same map."""


@needs_kernels
@pytest.mark.parametrize("kind", [Flat, Plain])
def test_subclasses_of_a_mechanism_do_not_use_its_kernel(kind, calls):
    q, k, v = (heads_of(2, n, 16, seed) for seed, n in ((1, 2), (2, 4), (3, 4)))
    attention = kind(kind.Config(), HEADS, 16, 0.0).eval()
    bias = bias_of(2, 4)
    attention.backend = "reference"
    expected = attention(q, k, v, Visibility(2, 4), bias=bias).values
    native.use_attention_kernel(attention)
    attention.backend = "auto"
    assert torch.equal(attention(q, k, v, Visibility(2, 4), bias=bias).values, expected)
    assert not calls


@needs_kernels
def test_shared_keys_and_traces_use_other_back_ends():
    attention = make("softmax", 16)
    native.use_attention_kernel(attention)
    q, k, v = (heads_of(3, n, 16, seed) for seed, n in ((1, 2), (2, 4), (3, 4)))
    shared, visibility = (k[:1], v[:1]), Visibility(2, 4)
    expected = attention(q, *(x.expand(3, -1, -1, -1) for x in shared), visibility).values
    torch.testing.assert_close(attention(q, *shared, visibility).values, expected)
    traced = torch.jit.trace(lambda *x: attention(*x, visibility).values, (q, k, v))
    torch.testing.assert_close(traced(q + 1, k, v), attention(q + 1, k, v, visibility).values)


@needs_kernels
def test_weights_gradients_threads_and_odd_widths_use_other_back_ends(calls):
    q, k, v = (heads_of(1, n, 16, seed) for seed, n in ((1, 2), (2, 4), (3, 4)))
    attention, visibility = make("softmax", 16), Visibility(2, 4)
    native.use_attention_kernel(attention)
    assert attention(q, k, v, visibility, need=Need(weights=True)).weights is not None
    with torch.enable_grad():
        q.requires_grad_()
        assert attention(q, k, v, visibility).values.requires_grad
    torch.set_num_threads(native.MAX_THREADS + 1)
    attention(q.detach(), k, v, visibility)
    odd = heads_of(1, 2, 24, 1)
    assert with_backend("softmax", "native", odd, odd, odd, Visibility(2, 2)).isfinite().all()
    assert not calls


def test_results_are_the_same_without_kernels(monkeypatch):
    q, k, v = (heads_of(1, n, 16, seed) for seed, n in ((1, 2), (2, 4), (3, 4)))
    monkeypatch.setattr(native, "library", lambda: None)
    attention = make("softmax", 16)
    native.use_attention_kernel(attention)
    expected = with_backend(
        "softmax", "reference", *(x.double() for x in (q, k, v)), Visibility(2, 4)
    )
    torch.testing.assert_close(attention(q, k, v, Visibility(2, 4)).values, expected.float())


def test_importing_the_engine_leaves_the_mechanisms_as_they_are():
    code = "from relu_nmt.attention.normalized import SoftmaxAttention as kind\n"
    code += "before = dict(kind.backends)\nimport relu_nmt.engine\n"
    code += "assert dict(kind.backends) == before and 'native' not in before"
    subprocess.run([sys.executable, "-c", code], check=True)


@needs_kernels
def test_an_installed_model_has_the_kernel_and_others_have_not():
    task = tiny_task(["a", "b", "c"])
    fast, plain = (tiny_model(task, attention="softmax") for _ in range(2))
    install(fast)
    for model, has_kernel in ((fast, True), (plain, False)):
        uses_kernel = [
            "native" in m.added_backends for m in model.modules() if isinstance(m, SoftmaxAttention)
        ]
        assert uses_kernel == [has_kernel] * 3
