"""The Triton kernels against the dense reference in float64.

``test_triton.py`` runs this file in a separate process: on the CPU with TRITON_INTERPRET=1, which
must be set before Triton is imported and would change every other test, and on a GPU without it.
"""

import contextlib
import dataclasses
import os
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from relu_nmt.attention.base import AttentionOutput, AttentionProblem, Need
from relu_nmt.attention.kernels import reference, tuned
from relu_nmt.attention.kernels import triton as backend
from relu_nmt.attention.kernels.tuned import INTERPRETED, BlockSizes, candidates
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.pointwise import pointwise_maps, power_map, rectified_power
from relu_nmt.attention.score_bias import ScoreBias
from relu_nmt.errors import ConfigError
from tests.attention.helpers import as_leaves

ON_CPU = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if ON_CPU else "cuda")
RELU = pointwise_maps.get("relu")
SUMS = Need(statistics=True)
TELEMETRY = Need(statistics=True, telemetry=True)
MAPS = [
    *map(pointwise_maps.get, pointwise_maps.names()),
    *map(power_map, (1, 2, 3, 6)),
    *map(rectified_power, (3, 4)),
]
TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def first_sizes(monkeypatch):
    """Take the first block sizes that fit: to measure all takes minutes, and has its own test."""

    def first(key, tried, launch, measure):
        return tuned.choose(("unmeasured", *key), tried, launch, measure=False)

    monkeypatch.setattr(backend, "choose", first)


def case_of(queries, keys, *, map=RELU, batch=None, heads=1, dim=16, value_dim=None, **options):
    """Return a problem with inputs of the layout that a multi-head module makes."""
    dtype = options.pop("dtype", torch.float32)
    visibility = Visibility(
        queries,
        keys,
        key_mask=options.pop("key_mask", None),
        causal=options.pop("causal", False),
        device=DEVICE,
    )
    if batch is None:
        batch = 1 if visibility.key_mask is None else 2
    generator = torch.Generator().manual_seed(queries + 1000 * keys)
    q, k, v = (
        torch.randn(batch, n, heads, width, generator=generator).to(DEVICE, dtype).transpose(1, 2)
        for n, width in ((queries, dim), (keys, dim), (keys, value_dim or dim))
    )
    scale = (visibility.counts.clamp_min(1) / 2).rsqrt()
    bias = make_bias(visibility, heads) if options.pop("bias", False) else None
    attention = SimpleNamespace(map=map, shifted_inputs=lambda q, k, _: (q, k), shift_channels=0)
    q = q / dim**0.5
    problem = AttentionProblem(attention, q, k, v, visibility, bias, 0.0, Need(), scale)
    return dataclasses.replace(problem, **options)


def make_bias(visibility, heads):
    """A learned bias whose codes differ from sample to sample where there is padding."""
    size = visibility.num_keys + visibility.num_queries
    table = torch.randn(heads, 2 * size, generator=torch.Generator().manual_seed(size))
    queries, keys = visibility.query_positions(), visibility.key_positions()
    return ScoreBias(table.to(DEVICE), queries, keys, zero=size)


def solved(solve, problem, dtype, slopes_at=None):
    """Return the outputs, sums and gradients, in float64.

    The loss has the slopes of tanh at the sums in ``slopes_at``, by default at its own. Own ones
    turn rounding in the last digits of a sum near 1,000 into errors of the gradients.
    """
    inputs = as_leaves([problem.q, problem.k, problem.v], dtype)
    names = "qkv"
    bias = problem.bias
    if bias is not None:
        names += "b"
        inputs.append(bias.table.detach().to(torch.promote_types(dtype, torch.float32)))
        bias = dataclasses.replace(bias, table=inputs[3].requires_grad_())
    result = solve(dataclasses.replace(problem, q=inputs[0], k=inputs[1], v=inputs[2], bias=bias))
    values = result.values.double()
    slopes = torch.linspace(-1, 1, values.numel(), dtype=torch.float64, device=values.device)
    loss = (values * slopes.view_as(values)).sum()
    answers = {"values": values}
    if result.sums is not None:
        named = zip(("total", "weighted_logs", "nonzero", "largest"), result.sums, strict=True)
        answers |= {name: s.double() for name, s in named if s is not None}
        for name in ("total", "weighted_logs"):
            if name in answers:
                at = (slopes_at or answers)[name].detach()
                loss = loss + ((1 - at.tanh().square()) * answers[name]).sum()
    grads = torch.autograd.grad(loss, inputs)
    return answers | {f"gradient of {x}": g.double() for x, g in zip(names, grads, strict=True)}


def assert_agrees(problem, least_score=0.0):
    """Compare with the exact answers.

    The gradients of queries and keys with a score nearer to 0 than ``least_score`` are left out:
    the slope of w log w has no limit there.
    """
    assert backend.supports(problem)
    dtype = problem.q.dtype
    exact = solved(reference.pointwise, problem, torch.float64)
    ours = solved(backend.pointwise, problem, dtype, slopes_at=exact)
    assert ours.keys() == exact.keys()
    near = (problem.q.double() @ problem.k.double().mT).abs() < least_score
    left_out = {"gradient of q": near.any(3), "gradient of k": near.any(2)}
    for name, theirs in exact.items():
        if name == "nonzero" and dtype != torch.float32:
            continue  # rounding decides whether a score near 0 is positive
        assert ours[name].isfinite().all(), name
        limit = TOLERANCE[dtype] * theirs.abs().max().clamp_min(1e-3)
        errors = (ours[name] - theirs).abs()
        if name in left_out:
            errors = errors.masked_fill(left_out[name][..., None], 0.0)
        error = errors.max()
        assert error <= limit, f"{name}: error {error:.2e} above {limit:.2e}"


if not ON_CPU:  # first, as they take longest, and processes share all tests in this order

    @pytest.mark.gpu
    @pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
    @pytest.mark.parametrize("dim", [64, 128])
    @pytest.mark.parametrize("causal", [False, True])
    def test_long_inputs_on_the_device(dtype, dim, causal):
        options = {"dim": dim, "causal": causal, "dtype": dtype, "need": SUMS if causal else Need()}
        for length in (1024, 2048):
            problem = case_of(length, length, **options)
            assert_agrees(problem, least_score=1e-4 if causal else 0.0)

    @pytest.mark.gpu
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_measured_block_sizes_on_the_device(monkeypatch, dtype):
        chosen_for = {}

        def measured(key, *options):
            chosen_for[key[0]] = tuned.choose(("of this test", *key), *options)
            return chosen_for[key[0]]

        monkeypatch.setattr(backend, "choose", measured)
        monkeypatch.setattr(backend, "_any_order", lambda: True)  # tests are deterministic
        assert_agrees(case_of(1024, 1024, dim=64, causal=True, dtype=dtype))
        assert set(chosen_for) == {"forward", "rows", "columns", "fused"}
        for kernel, (blocks, milliseconds) in chosen_for.items():
            assert blocks in candidates(kernel, 64, dtype, True, True)
            assert 0 < milliseconds < 100

    @pytest.mark.gpu
    @pytest.mark.parametrize("kernel", ["forward", "fused", "rows", "columns"])
    @pytest.mark.parametrize("dim", [64, 128, 256])
    def test_all_block_sizes_on_the_device(monkeypatch, dim, kernel):
        from triton.runtime.errors import OutOfResources

        chosen = backend._blocks
        fitting = []
        monkeypatch.setattr(backend, "_any_order", lambda: kernel == "fused")

        for blocks in candidates(kernel, dim, torch.bfloat16, True, True):

            def forced(name, *options, blocks=blocks):
                sizes = blocks if name == kernel else chosen(name, *options)[0]
                return sizes, 1.0 if name == "fused" else 2.0

            monkeypatch.setattr(backend, "_blocks", forced)
            problem = case_of(300, 300, dim=dim, causal=True, dtype=torch.bfloat16)
            with contextlib.suppress(OutOfResources):  # larger than the memory of the device
                assert_agrees(problem)
                fitting.append(blocks)
        assert fitting


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["relu", "softplus"])
def test_bias_of_the_scores(name, masked, causal):
    map = pointwise_maps.get(name)
    key_mask = some_hidden(40) if masked else None
    for queries, need in ((20, Need()), (40, TELEMETRY)):
        options = {"key_mask": key_mask, "causal": causal, "need": need, "bias": True}
        assert_agrees(case_of(queries, 40, map=map, heads=2, batch=2, **options))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_bias_in_half_precision(dtype):
    assert_agrees(case_of(65, 65, causal=True, dtype=dtype, need=SUMS, bias=True))


def test_a_fixed_bias_may_be_computed_in_one_pass_and_a_learned_one_only_in_any_order(monkeypatch):
    problem = case_of(70, 70, causal=True, bias=True)
    blocks = BlockSizes(32, 32, 4, 1)
    monkeypatch.setattr(backend, "_blocks", lambda kernel, *_: (blocks, 1.0))
    inputs = as_leaves([problem.q, problem.k, problem.v])
    fixed = dataclasses.replace(problem, **dict(zip("qkv", inputs, strict=True)))
    grads = []
    for any_order in (True, False):
        monkeypatch.setattr(backend, "_any_order", lambda answer=any_order: answer)
        values = backend.pointwise(fixed).values
        grads.append(torch.autograd.grad(values.square().sum(), inputs))
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-5)
    assert backend.supports(problem)
    learned = dataclasses.replace(problem.bias, table=problem.bias.table.clone().requires_grad_())
    assert not backend.supports(dataclasses.replace(problem, bias=learned))


def test_a_map_from_outside_the_package(monkeypatch):
    monkeypatch.setattr(pointwise_maps, "_entries", dict(pointwise_maps._entries))
    runpy.run_path(str(Path(__file__).with_name("own_map.py")))
    square = pointwise_maps.get("squareplus")
    for causal in (False, True):
        assert_agrees(
            case_of(33, 40, map=square, causal=causal, key_mask=some_hidden(40), need=SUMS)
        )
    assert not backend.supports(case_of(5, 5, map=dataclasses.replace(square, kernels=None)))


def some_hidden(keys):
    """Padding on the right in the first sample, one key in the middle in the second."""
    mask = torch.arange(keys, device=DEVICE) < torch.tensor([[keys // 2], [keys]], device=DEVICE)
    mask[1, keys // 3] = False
    return mask


@pytest.mark.parametrize("length", [1, 2, 15, 64, 65])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths(length, causal):
    assert_agrees(case_of(length, length, causal=causal, need=TELEMETRY))


@pytest.mark.parametrize(("queries", "keys"), [(1, 65), (15, 70), (65, 33), (70, 15)])
def test_more_or_fewer_keys_than_queries(queries, keys):
    assert_agrees(case_of(queries, keys, need=TELEMETRY))


@pytest.mark.parametrize(("queries", "keys"), [(2, 65), (33, 70), (64, 96)])
@pytest.mark.parametrize("masked", [False, True])
def test_new_queries_over_cached_keys(queries, keys, masked):
    key_mask = some_hidden(keys) if masked else None
    assert_agrees(case_of(queries, keys, causal=True, key_mask=key_mask, need=TELEMETRY))


@pytest.mark.parametrize("map", MAPS, ids=lambda m: f"{m.name}{m.power}")
@pytest.mark.parametrize("causal", [False, True])
def test_maps_with_padding(map, causal):
    need = TELEMETRY if causal else Need()
    assert_agrees(case_of(35, 35, map=map, causal=causal, key_mask=some_hidden(35), need=need))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_half_precision(dtype, causal):
    assert_agrees(case_of(65, 65, causal=causal, dtype=dtype, need=SUMS))
    assert_agrees(case_of(65, 65, causal=causal, dtype=dtype))


@pytest.mark.parametrize(("dim", "value_dim"), [(64, 64), (20, 48), (3, 16), (128, 32)])
def test_head_widths(dim, value_dim):
    assert_agrees(case_of(34, 35, dim=dim, value_dim=value_dim))


@pytest.mark.parametrize("lengths", [(0, 40), (40, 0), (7, 39)])
def test_samples_without_visible_keys(lengths):
    mask = torch.arange(40, device=DEVICE) < torch.tensor(lengths, device=DEVICE)[:, None]
    problem = case_of(33, 40, map=pointwise_maps.get("softplus"), key_mask=mask, need=TELEMETRY)
    assert_agrees(problem)
    empty = backend.pointwise(problem).values[mask.logical_not().all(1)]
    assert not empty.any()


def test_hidden_keys_may_hold_garbage():
    mask = some_hidden(40)
    problem = case_of(33, 40, map=pointwise_maps.get("softplus"), key_mask=mask, need=SUMS)
    clean = solved(backend.pointwise, problem, torch.float32)
    hidden = ~mask[:, None, :, None]
    k = problem.k.masked_fill(hidden, torch.nan)
    v = problem.v.masked_fill(hidden, torch.nan)
    dirty = solved(backend.pointwise, dataclasses.replace(problem, k=k, v=v), torch.float32)
    for name, answer in clean.items():
        assert torch.equal(answer, dirty[name]), name
    for name in "kv":
        assert not dirty[f"gradient of {name}"][hidden.expand_as(k)].any()


def test_gradients_of_the_sums_alone():
    problem = case_of(33, 33, causal=True, need=SUMS)
    grads = []
    for solve, dtype in ((backend.pointwise, torch.float32), (reference.pointwise, torch.float64)):
        q, k = as_leaves([problem.q, problem.k], dtype)
        converted = dataclasses.replace(problem, q=q, k=k, v=problem.v.to(dtype))
        total, weighted_logs, *_ = solve(converted).sums
        grads.append(torch.autograd.grad((total + weighted_logs).sum(), (q, k)))
    for ours, exact in zip(*grads, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-4)


def test_inputs_of_every_memory_layout():
    problem = case_of(20, 20, batch=2, heads=3)
    q, k, v = map(torch.Tensor.contiguous, (problem.q, problem.k, problem.v))
    strange = q.transpose(2, 3).contiguous().transpose(2, 3)
    assert strange.stride(3) != 1
    expected = backend.pointwise(dataclasses.replace(problem, q=q, k=k, v=v)).values
    strided = dataclasses.replace(problem, q=strange, k=k[:, :1].expand_as(k))
    two = dataclasses.replace(problem, q=q, k=k[:, :1].contiguous().expand_as(k).contiguous())
    assert torch.equal(backend.pointwise(problem).values, expected)
    assert torch.equal(backend.pointwise(strided).values, backend.pointwise(two).values)


def test_skipping_zero_blocks_changes_nothing(monkeypatch):
    problem = case_of(70, 70, causal=True, need=TELEMETRY)
    q = problem.q.abs()
    k = problem.k.abs()
    k[:, :, :40] *= -1  # the first key blocks have no positive score
    problem = dataclasses.replace(problem, q=q, k=k)
    skipping = solved(backend.pointwise, problem, torch.float32)
    plain = BlockSizes(INTERPRETED.rows, INTERPRETED.columns, 4, 1, skip=False)
    monkeypatch.setattr(backend, "_blocks", lambda *_: (plain, 0.0))
    computing = solved(backend.pointwise, problem, torch.float32)
    assert (computing["nonzero"] < 31).all()
    torch.testing.assert_close(skipping, computing, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("need", [Need(), SUMS])
def test_the_fused_backward_pass_equals_two_passes(monkeypatch, need):
    problem = case_of(70, 70, causal=True, key_mask=some_hidden(70), need=need)
    blocks = BlockSizes(32, 32, 4, 1)
    monkeypatch.setattr(backend, "_blocks", lambda *_: (blocks, 0.0))
    two = solved(backend.pointwise, problem, torch.float32)
    monkeypatch.setattr(
        backend, "_blocks", lambda kernel, *_: (blocks, 1.0 if kernel == "fused" else 2.0)
    )
    monkeypatch.setattr(backend, "_any_order", lambda: True)
    in_two_passes = solved(backend.pointwise, problem, torch.float32)
    torch.testing.assert_close(two, in_two_passes, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [16, 64])
@pytest.mark.parametrize("columns", [16, 64])
@pytest.mark.parametrize("shift", [0, 21])
def test_block_sizes(monkeypatch, rows, columns, shift):
    monkeypatch.setattr(backend, "_blocks", lambda *_: (BlockSizes(rows, columns, 4, 1), 0.0))
    key_mask = some_hidden(67 + shift) if shift else None
    assert_agrees(case_of(67, 67 + shift, causal=True, key_mask=key_mask, need=SUMS))


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_is_the_same_in_both_directions(causal):
    """The output is linear in v and the mask is known from it: W dropped = the Jacobian."""
    size = 33
    problem = case_of(size, size, heads=2, dim=size, causal=causal, dropout=0.25)
    eye = torch.eye(size, device=DEVICE).expand_as(problem.v)
    torch.manual_seed(5)
    weights = backend.pointwise(dataclasses.replace(problem, v=eye)).values.double()
    full = backend.pointwise(dataclasses.replace(problem, v=eye, dropout=0.0)).values.double()
    nonzero = (weights != 0).double()
    torch.testing.assert_close(weights, full * nonzero / 0.75, rtol=1e-5, atol=1e-6)
    share = nonzero.sum() / (full != 0).sum()
    assert 0.70 < share < 0.80
    assert not torch.equal(nonzero[:, 0], nonzero[:, 1])

    def masked(p):
        scores = (p.q @ p.k.transpose(-1, -2)).relu()
        if causal:
            scores = scores.tril()
        return AttentionOutput(scores * nonzero / 0.75 * p.row_scale[..., None] @ p.v)

    torch.manual_seed(5)
    ours = solved(backend.pointwise, problem, torch.float32)
    for name, answer in solved(masked, problem, torch.float64).items():
        torch.testing.assert_close(ours[name], answer, rtol=1e-4, atol=1e-4)


def test_dropout_follows_the_global_seed_and_leaves_the_sums():
    problem = case_of(33, 33, dropout=0.5, need=SUMS)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(backend.pointwise(problem))
    assert torch.equal(results[0].values, results[1].values)
    assert not torch.equal(results[0].values, results[2].values)
    exact = reference.pointwise(dataclasses.replace(problem, dropout=0.0)).sums[0]
    torch.testing.assert_close(results[0].sums[0], exact, rtol=1e-5, atol=1e-5)


def test_autocast_computes_in_half_precision():
    problem = case_of(33, 33)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        assert backend.supports(problem)
        rounded = backend.pointwise(problem).values
    exact = backend.pointwise(problem).values
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).abs().max() < 0.1


def test_a_second_derivative_is_an_error():
    problem = case_of(5, 5)
    q = problem.q.detach().requires_grad_()
    values = backend.pointwise(dataclasses.replace(problem, q=q)).values
    with pytest.raises(ConfigError, match="choose reference"):
        torch.autograd.grad(values.sum(), q, create_graph=True)


def test_unsupported_problems():
    problem = case_of(5, 5)
    assert not backend.supports(dataclasses.replace(problem, need=Need(weights=True)))
    assert not backend.supports(case_of(5, 5, dtype=torch.float64))
    assert not backend.supports(case_of(5, 5, dim=300))
    widest = case_of(5, 5, dim=256)
    assert backend.supports(widest)
    widest.attention.shift_channels = 1
    assert not backend.supports(widest)
    assert not backend.supports(case_of(6, 5, causal=True))
    assert not backend.supports(case_of(5, 5, batch=0))
