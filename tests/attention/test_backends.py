"""Every back end of pointwise attention against the reference, in outputs and gradients."""

import itertools
import runpy
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from relu_nmt.attention import naive
from relu_nmt.attention.base import AttentionProblem, Need
from relu_nmt.attention.kernels import blockwise, reference, tuned
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.pointwise import pointwise_maps, power_map
from relu_nmt.errors import ConfigError
from tests.attention.helpers import leaves, make_attention, make_bias, random_qkv

MAPS = [*map(pointwise_maps.get, pointwise_maps.names()), *map(power_map, range(1, 7))]
LENGTHS = [(1, 1), (2, 2), (63, 63), (64, 64), (65, 65), (3, 70), (70, 3)]
STATISTICS = Need(statistics=True, telemetry=True)


def make_problem(map, qkv, *, causal=False, lengths=None, need=STATISTICS, dropout=0.0, bias=False):
    q, k, v = qkv
    mask = None
    if lengths is not None:
        mask = torch.arange(k.size(2)) < torch.tensor(lengths)[:, None]
    visibility = Visibility(q.size(2), k.size(2), key_mask=mask, causal=causal)
    scale = visibility.counts.double().clamp_min(1).rsqrt()
    some = make_bias(visibility, heads=q.size(1)) if bias else None
    attention = SimpleNamespace(map=map, shifted_inputs=lambda q, k, _: (q, k))
    return AttentionProblem(attention, q, k, v, visibility, some, dropout, need, scale)


def results(backend, problem):
    """Outputs and sums, then the gradients of a sum of all with fixed random factors."""
    answer = backend(problem)
    outputs = [answer.values]
    if answer.sums is not None:
        outputs += [x for x in answer.sums[:2] if x is not None]
    generator = torch.Generator().manual_seed(0)
    loss = 0.0
    for x in outputs:
        loss += (x * torch.randn(x.shape, generator=generator, dtype=torch.float64)).sum()
    inputs = [problem.q, problem.k, problem.v]
    inputs += [] if problem.bias is None else [problem.bias.table]
    grads = torch.autograd.grad(loss, inputs)
    if answer.sums is not None:
        outputs += map(torch.Tensor.double, answer.sums[2:])
    return [*outputs, *grads]


def compare(problem, rtol=1e-10):
    ours = results(blockwise.pointwise, problem)
    theirs = results(reference.pointwise, problem)
    for mine, expected in zip(ours, theirs, strict=True):
        size = expected.detach().abs().max().clamp_min(1)
        torch.testing.assert_close(mine / size, expected / size, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("map", MAPS, ids=lambda m: f"{m.name}{m.power}")
def test_agrees_with_the_reference_for_every_map_and_form(map):
    for lengths, causal in itertools.product([None, [5, 0]], [False, True]):
        for bias in (False, True):
            compare(make_problem(map, leaves(2, 9, 9), causal=causal, lengths=lengths, bias=bias))


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
def test_agrees_with_the_reference_at_odd_lengths(queries, keys, causal, monkeypatch):
    monkeypatch.setattr(tuned, "CPU_BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(tuned, "CPU_LEAST_ROWS", 32)
    padded = [keys, max(0, keys - 40)]
    for name, lengths, bias in itertools.product(["relu", "softplus"], [None, padded], [0, 1]):
        map = pointwise_maps.get(name)
        qkv = leaves(2, queries, keys)
        problem = make_problem(map, qkv, causal=causal, lengths=lengths, bias=bias)
        compare(problem)


@pytest.mark.skipif(find_spec("triton") is None, reason="the map has Triton functions, too")
def test_a_map_from_outside_the_package(monkeypatch):
    monkeypatch.setattr(pointwise_maps, "_entries", dict(pointwise_maps._entries))
    with pytest.raises(ConfigError, match="h=squareplus"):
        make_attention("pointwise:h=squareplus")
    runpy.run_path(str(Path(__file__).with_name("own_map.py")))
    compare(make_problem(pointwise_maps.get("squareplus"), leaves(2, 9, 9), lengths=[5, 9]))
    attend = make_attention("pointwise:h=squareplus,qk_norm=false,alpha=0")
    q, k, v = random_qkv(1, 3, 4)
    mask = torch.ones(3, 4, dtype=torch.bool)
    h = pointwise_maps.get("squareplus").value
    expected = naive.pointwise_attention(q, k, v, mask, h, alpha=0)
    torch.testing.assert_close(attend(q, k, v, Visibility(3, 4)).values, expected)
    assert attend.capabilities.non_negative


@pytest.mark.parametrize("name", ["softmax", "entmax15"])
def test_blocks_of_whole_rows_have_second_derivatives(name, monkeypatch):
    monkeypatch.setattr(tuned, "ROWS_BLOCK_WEIGHTS", 8)
    monkeypatch.setattr(tuned, "ROWS_LEAST_ROWS", 2)
    attend = make_attention(name)
    attend.backend = "blockwise"
    inputs = leaves(1, 5, 5)
    visibility = Visibility(5, 5)
    assert torch.autograd.gradgradcheck(
        lambda q, k, v: attend(q, k, v, visibility).values, inputs, fast_mode=True
    )
