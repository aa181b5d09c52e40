"""Features of the blockwise back end alone: skipped blocks, kept scores, repeated dropout."""

import dataclasses
import itertools

import pytest
import torch

from relu_nmt.attention.base import Need
from relu_nmt.attention.kernels import blockwise, reference, tuned
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.pointwise import pointwise_maps
from relu_nmt.errors import ConfigError
from tests.attention.helpers import as_leaves
from tests.attention.test_backends import compare, leaves, make_problem, results

STATISTICS = Need(statistics=True)
RELU = pointwise_maps.get("relu")


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 4 queries of one head, tiles of 2 keys, nothing kept."""
    monkeypatch.setattr(tuned, "CPU_BLOCK_BYTES", 1)
    monkeypatch.setattr(tuned, "CPU_LEAST_ROWS", 4)
    monkeypatch.setattr(tuned, "SKIP_TILE", 2)
    monkeypatch.setattr(tuned, "PROBED_ROWS", 1)
    monkeypatch.setattr(tuned, "KEPT_BYTES", 0)


@pytest.mark.parametrize("name", ["relu", "relu2", "softplus", "gelu"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradcheck_with_statistics_and_a_learned_bias(name, causal, dropout, small_blocks):
    map = pointwise_maps.get(name)
    qkv = leaves(2, 5, 6, heads=2, dim=2, seed=3)
    setup = {"causal": causal, "lengths": [3, 6], "need": STATISTICS, "dropout": dropout}
    bias = make_problem(map, qkv, bias=True, **setup).bias

    def outputs(q, k, v, table):
        torch.manual_seed(7)
        problem = make_problem(map, (q, k, v), **setup)
        problem = dataclasses.replace(problem, bias=dataclasses.replace(bias, table=table))
        answer = blockwise.pointwise(problem)
        total, logs, *_ = answer.sums
        return answer.values, total, *(() if logs is None else (logs,))

    # Check random projections of the Jacobian. test_backends.py compares every entry.
    assert torch.autograd.gradcheck(outputs, (*qkv, bias.table), fast_mode=True)


@pytest.mark.parametrize("length", [500, 1000])
def test_agrees_with_the_reference_at_long_lengths(length):
    for causal in (False, True):
        compare(make_problem(RELU, leaves(1, length, length, heads=3), causal=causal))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["relu", "relu6", "sigmoid"])
def test_padding_anywhere(causal, name, small_blocks):
    q, k, v = leaves(2, 9, 9)
    mask = torch.tensor([[0, 1, 1, 0, 1, 1, 0, 1, 0], [1, 0, 0, 0, 0, 0, 0, 0, 1]]).bool()
    problem = make_problem(pointwise_maps.get(name), (q, k, v))
    visibility = Visibility(9, 9, key_mask=mask, causal=causal)
    scale = visibility.positive_counts.double().rsqrt()
    compare(dataclasses.replace(problem, visibility=visibility, row_scale=scale))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_short_samples_are_computed_together(causal, bias, monkeypatch):
    q, k, v = leaves(5, 9, 9, heads=2)
    setup = {"causal": causal, "lengths": [9, 3, 5, 7, 4], "bias": bias}
    problem = make_problem(RELU, (q, k, v), **setup)
    # Twice what two samples have of weights.
    monkeypatch.setattr(tuned, "CPU_BLOCK_BYTES", 2 * 2 * 2 * 9 * 9 * q.element_size())
    parts = blockwise.make_parts(problem.visibility, q, k)
    assert [part.num_keys for part in parts] == [9, 7, 4]
    compare(problem)


@pytest.mark.parametrize("name", ["relu", "relu2", "relu6"])
@pytest.mark.parametrize("causal", [False, True])
def test_zero_blocks_are_skipped_and_change_nothing(name, causal, small_blocks, monkeypatch):
    # Queries 0-3 of both heads see positive scores at keys 4-5 only. Queries 4-7 see none.
    q, k = torch.ones(1, 2, 8, 1).double(), -torch.ones(1, 2, 8, 1).double()
    k[..., :2, :] = 0.5
    q[..., 4:, :] = 0.0
    v = torch.randn(1, 2, 8, 1, dtype=torch.float64)
    qkv = as_leaves([q, k, v])
    problem = make_problem(pointwise_maps.get(name), qkv, causal=causal)
    widths = []
    plain = torch.matmul

    def matmul(a, b, out):
        widths.append((a.size(-1), b.size(-1)))
        return plain(a, b, out=out)

    monkeypatch.setattr(torch, "matmul", matmul)
    answer = blockwise.pointwise(problem)
    scores = [w for w in widths if w[0] == 1]
    products = [w for w in widths if w[0] > 1]
    assert len(scores) == 4
    assert products == [(2, 1)] * 2, "one block a head has weights, at two keys"
    widths.clear()
    torch.autograd.grad(answer.values.sum(), qkv)
    assert len(widths) == 2 * 5, "the five products of one block a head"
    monkeypatch.undo()
    compare(problem)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_scores_are_kept_up_to_the_limit_in_bytes(name, causal, small_blocks, monkeypatch):
    problem = make_problem(pointwise_maps.get(name), leaves(2, 12, 12, heads=2), causal=causal)
    num_bytes = 4 * 12 * 8  # of 4 queries and all keys, in float64
    shares = {False: [1, 1, 1], True: [1 / 3, 2 / 3, 1]}[causal]  # of the keys, by block
    monkeypatch.setattr(tuned, "KEPT_BYTES", int(sum(shares) * num_bytes) + num_bytes // 2)
    parts = blockwise.pointwise(problem).values.grad_fn.parts
    blocks = list(itertools.chain.from_iterable(part.blocks for part in parts))
    fourth = {False: 0, True: num_bytes // 3}[
        causal
    ]  # of the second head, which fits if it is short
    sizes = [
        0 if block.scores is None else block.scores.untyped_storage().nbytes() for block in blocks
    ]
    assert sizes == [int(share * num_bytes) for share in shares] + [fourth] + [0] * 8
    compare(problem)


def test_dropout_is_the_same_in_both_directions_and_repeats_with_the_seed(small_blocks):
    qkv = leaves(2, 9, 9)
    problem = make_problem(RELU, qkv, causal=True, dropout=0.5, need=STATISTICS)
    torch.manual_seed(1)
    first = results_without_telemetry(problem)
    torch.manual_seed(1)
    again = results_without_telemetry(problem)
    other = results_without_telemetry(problem)
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert not torch.equal(first[0], other[0])
    # The output is linear in v: its product with the gradient gives it back.
    torch.manual_seed(1)
    values = blockwise.pointwise(problem).values
    (grad,) = torch.autograd.grad(values.sum(), problem.v)
    assert (grad * problem.v).sum().item() == pytest.approx(values.sum().item(), rel=1e-10)


def results_without_telemetry(problem):
    answer = blockwise.pointwise(problem)
    grads = torch.autograd.grad(answer.values.square().sum(), (problem.q, problem.k, problem.v))
    return [answer.values, answer.sums[0], *grads]


def test_dropout_keeps_the_mean():
    q = torch.ones(1, 1, 400, 1)
    k = torch.ones(1, 1, 300, 1)
    v = torch.ones(1, 1, 300, 1)
    problem = make_problem(RELU, (q, k, v), dropout=0.25, need=Need())
    values = blockwise.pointwise(problem).values
    assert values.mean().item() == pytest.approx(300**0.5, rel=0.01)
    assert values.std().item() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_half_precision_is_as_close_as_the_reference(dtype, causal, monkeypatch):
    monkeypatch.setattr(tuned, "CPU_BLOCK_BYTES", 1)
    monkeypatch.setattr(tuned, "CPU_LEAST_ROWS", 32)
    monkeypatch.setattr(tuned, "KEPT_BYTES", 0)
    exact = leaves(2, 100, 100, dim=16, seed=1)
    rough = as_leaves(exact, dtype)
    # The exact inputs are the rounded ones, so that only the computation differs.
    exact = as_leaves(rough, torch.float64)
    need = Need(statistics=True, telemetry=True)
    truth = results(reference.pointwise, make_problem(RELU, exact, causal=causal, need=need))
    dense = results(reference.pointwise, make_problem(RELU, rough, causal=causal, need=need))
    ours = results(blockwise.pointwise, make_problem(RELU, rough, causal=causal, need=need))
    for our, reference_result, exact_result in zip(ours, dense, truth, strict=True):
        reference_error = (reference_result.double() - exact_result).norm()
        error = (our.double() - exact_result).norm()
        assert error <= 1.5 * reference_error + 1e-6 * exact_result.norm()


def test_autocast_computes_in_its_dtype_and_keeps_that_of_the_values():
    q, k, v = leaves(1, 9, 9, dtype=torch.float32)
    problem = make_problem(RELU, (q, k, v), need=Need())
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = blockwise.pointwise(problem).values, reference.pointwise(problem).values
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("square", [False, True])
def test_second_derivatives_are_refused(square):
    # For a loss that is linear in the outputs they would be wrong without an error.
    q, k, v = leaves(1, 3, 3)
    values = blockwise.pointwise(make_problem(RELU, (q, k, v), need=Need())).values
    loss = values.square().sum() if square else values.sum()
    with pytest.raises(ConfigError, match="blockwise has no second derivatives; choose reference"):
        torch.autograd.grad(loss, q, create_graph=True)
