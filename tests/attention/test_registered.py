"""Requirements of every registered attention. A registered name is tested here without more."""

import pytest
import torch

from relu_nmt.attention import attentions
from relu_nmt.attention.base import Need, build_attention
from relu_nmt.attention.kernels import tuned
from relu_nmt.attention.masks import TreeVisibility, Visibility
from relu_nmt.config.registry import Spec
from relu_nmt.errors import ConfigError
from tests.attention.helpers import (
    FORMS,
    SHORT_ONLY,
    SLOTS,
    VARIANTS,
    can,
    entropy_of,
    leaves,
    make_attention,
    needed_results,
    num_queries,
    random_qkv,
    with_length,
)
from tests.attention.oracle import assert_is_formula, by_formula

LENGTHS = [1, 9, 35]
HEAD = {"heads": 1, "dim": 8}


def prefix_mask(lengths, width):
    return torch.arange(width) < torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("spec", [*attentions.names(), *VARIANTS, *FORMS])
def test_every_back_end_agrees_with_the_formula(spec, length, monkeypatch):
    monkeypatch.setattr(tuned, "CPU_BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(tuned, "CPU_LEAST_ROWS", 16)
    monkeypatch.setattr(tuned, "ROWS_BLOCK_WEIGHTS", 64)
    monkeypatch.setattr(tuned, "ROWS_LEAST_ROWS", 8)
    for causal in (False, True)[: 1 + can(spec, "causal")]:
        attend = make_attention(spec, SLOTS[causal])
        for parameter in attend.parameters():
            parameter.data.add_(torch.linspace(-0.2, 0.3, parameter.numel()).view_as(parameter))
        mask = prefix_mask([max(1, length - 3), length], length)
        masked = Visibility(length, length, key_mask=mask, query_mask=mask, causal=causal)
        for visibility in (masked, Visibility(length, length, causal=causal)):
            qkv = random_qkv(2, length, length)
            expected = by_formula(attend, *qkv, visibility)
            for backend in ("reference", "blockwise"):
                if backend == "blockwise" and backend not in attend.backends:
                    continue
                attend.backend = backend
                weights = backend == "reference" and can(spec, "weights")
                for need in (Need(), Need(statistics=True, weights=weights)):
                    assert_is_formula(attend, *qkv, visibility, need, expected)


@pytest.mark.parametrize("recorded", [False, True])
def test_garbage_in_padding_changes_nothing(name, recorded):
    need = needed_results(name, recorded)
    attend = make_attention(name)
    q, k, v = random_qkv(2, 5, 5)
    plain = attend(q[:1, :, :3], k[:1, :, :3], v[:1, :, :3], Visibility(3, 3), need=need).values
    k[0, :, 3:] = 1e4
    v[0, :, 3:] = -1e4
    k.requires_grad_(), v.requires_grad_()
    mask = prefix_mask([3, 5], 5)
    padded = attend(q, k, v, Visibility(5, 5, key_mask=mask, query_mask=mask), need=need).values
    torch.testing.assert_close(padded[:1, :, :3], plain, rtol=1e-10, atol=1e-12)
    for grad in torch.autograd.grad(padded[:1, :, :3].square().sum(), (k, v)):
        assert not grad[0, :, 3:].any()


@pytest.mark.parametrize("recorded", [False, True])
def test_later_keys_are_hidden_and_steps_equal_the_full_pass(name, recorded):
    need = needed_results(name, recorded)
    if not can(name, "causal"):
        with pytest.raises(ConfigError, match="causal"):
            make_attention(name, "decoder")
        return
    attend = make_attention(name, "decoder")
    q, k, v = random_qkv(2, 7, 7)
    full = attend(q, k, v, Visibility(7, 7, causal=True), need=need).values
    for i in range(7):
        visible = slice(0, i + 1)
        visibility = Visibility(1, i + 1, causal=True)
        step = attend(q[:, :, i : i + 1], k[:, :, visible], v[:, :, visible], visibility, need=need)
        torch.testing.assert_close(step.values[:, :, 0], full[:, :, i], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("recorded", [False, True])
def test_hypotheses_of_a_tree_attend_to_their_own_tokens(name, recorded):
    if not can(name, "causal"):
        pytest.skip("has no causal form")
    need = needed_results(name, recorded)
    attend = make_attention(name, "decoder")
    q, k, v = random_qkv(2, 2, 6)
    paths = [[0, 1, 4], [0, 2, 5]]  # no hypothesis has slot 3
    ancestry = torch.nn.functional.one_hot(torch.tensor(paths), 6).any(1)
    visibility = TreeVisibility(ancestry.expand(2, 2, 6), length=3)
    attend.backend = "blockwise"  # cannot do it, so it must step aside
    together = attend(q, k, v, visibility, need=need)
    for i, path in enumerate(paths):
        step = Visibility(1, 3, causal=True)
        alone = attend(q[:, :, i : i + 1], k[:, :, path], v[:, :, path], step, need=need)
        torch.testing.assert_close(
            together.values[:, :, i], alone.values[:, :, 0], rtol=1e-10, atol=1e-12
        )
        if recorded and alone.statistics is not None:
            torch.testing.assert_close(
                together.statistics.total[..., i], alone.statistics.total[..., 0]
            )


def test_several_new_queries_over_cached_keys_are_the_last_ones(name):
    if not can(name, "causal"):
        pytest.skip("has no causal form")
    attend = make_attention(name, "decoder")
    q, k, v = random_qkv(1, 6, 6)
    full = attend(q, k, v, Visibility(6, 6, causal=True)).values
    tail = attend(q[:, :, 4:], k, v, Visibility(2, 6, causal=True)).values
    torch.testing.assert_close(tail, full[:, :, 4:], rtol=1e-10, atol=1e-12)


def test_permuting_keys_with_values_changes_nothing(name):
    if not can(name, "permutation_invariant"):
        pytest.skip("depends on the order of the keys")
    attend = make_attention(name)
    queries = num_queries(name, 3, 6)
    q, k, v = random_qkv(2, queries, 6)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(1))
    visibility = Visibility(queries, 6)
    torch.testing.assert_close(
        attend(q, k, v, visibility).values,
        attend(q, k[:, :, order], v[:, :, order], visibility).values,
        rtol=1e-10,
        atol=1e-12,
    )


@pytest.mark.parametrize("recorded", [False, True])
def test_a_row_without_visible_keys_has_output_0_and_no_gradient(name, recorded):
    need = needed_results(name, recorded)
    attend = make_attention(name)
    queries = num_queries(name, 3, 4)
    q, k, v = leaves(2, queries, 4)
    visibility = Visibility(queries, 4, key_mask=prefix_mask([0, 4], 4))
    values = attend(q, k, v, visibility, need=need).values
    assert not values[0].any() and values[1].any()
    for grad in torch.autograd.grad(values.sum(), (q, k, v)):
        assert grad.isfinite().all() and not grad[0].any()


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("keys", [1, 5])
def test_gradcheck(name, recorded, keys):
    need = needed_results(name, recorded)
    fast = keys > 1
    size = {"heads": 2, "dim": 4} if fast else {"heads": 1, "dim": 2}
    lengths = [1, keys] if fast else [1]
    attend = make_attention(name, **size)
    queries = num_queries(name, 3, keys)
    inputs = leaves(len(lengths), queries, keys, seed=3, **size)
    visibility = Visibility(queries, keys, key_mask=prefix_mask(lengths, keys))

    def outputs(q, k, v):
        result = attend(q, k, v, visibility, need=need)
        rows = (
            ()
            if result.statistics is None
            else (result.statistics.total, result.statistics.entropy)
        )
        return (result.values, *(row for row in rows if row is not None))

    # The larger Jacobian by random projections, the other one entry by entry.
    assert torch.autograd.gradcheck(outputs, inputs, fast_mode=fast)


@pytest.mark.parametrize(
    ("recorded", "fast"),
    [(False, True), (True, True), pytest.param(False, False, marks=pytest.mark.slow)],
)
def test_second_derivatives(name, recorded, fast):
    dim = 4 if fast else 2
    attend = make_attention(name, heads=1, dim=dim)
    if not attend.capabilities.double_backward:
        pytest.skip("has no second derivatives")
    attend.backend = "reference"  # the code that is written to be differentiated
    queries = num_queries(name, 2, 3)
    inputs = leaves(1, queries, 3, heads=1, dim=dim, seed=3)
    visibility = Visibility(queries, 3, causal=can(name, "causal"))
    need = needed_results(name, recorded)

    def values(q, k, v):
        return attend(q, k, v, visibility, need=need).values

    # By random projections, which take a quarter of the time, and entry by entry.
    assert torch.autograd.gradgradcheck(values, inputs, fast_mode=fast)


def test_statistics_equal_a_dense_recomputation(name):
    attend = make_attention(name)
    queries = num_queries(name, 5, 6)
    q, k, v = random_qkv(2, queries, 6, seed=4)
    lengths = [4, 6]
    visibility = Visibility(queries, 6, key_mask=prefix_mask(lengths, 6))
    if not can(name, "weights"):
        assert attend(q, k, v, visibility, need=needed_results(name)).statistics is None
        with pytest.raises(ConfigError, match="no weights"):
            attend(q, k, v, visibility, need=Need(weights=True))
        return
    signed = not attend.capabilities.non_negative
    output = attend(q, k, v, visibility, need=needed_results(name))
    for b, n in enumerate(lengths):
        for h in range(2):
            for i in range(5):
                weights = output.weights[b, h, i].tolist()
                assert not any(weights[n:])
                total = sum(weights)
                assert output.statistics.total[b, h, i].item() == pytest.approx(total, rel=1e-9)
                zeros = weights[:n].count(0) / n
                assert output.statistics.zero_fraction[b, h, i].item() == pytest.approx(
                    zeros, abs=1e-6
                )
                largest = max(map(abs, weights))
                assert output.statistics.largest[b, h, i].item() == pytest.approx(largest, rel=1e-9)
                if signed:
                    assert output.statistics.entropy is None
                    continue
                entropy = entropy_of(weights)
                assert output.statistics.entropy[b, h, i].item() == pytest.approx(entropy, abs=1e-9)


# bfloat16 has the range of float32, so that a short sequence shows as much.
@pytest.mark.parametrize(("dtype", "length"), [(torch.float16, 4096), (torch.bfloat16, 512)])
def test_half_precision_stays_finite_at_long_lengths(name, dtype, length):
    if name in SHORT_ONLY:
        pytest.skip("is made for short sequences")
    spec = Spec.parse(with_length(name, length))
    attend = build_attention(spec, "encoder", 0, 1, 8, 0.0)
    queries = num_queries(name, 64, length)
    q, k, v = leaves(1, queries, length, dtype=dtype, **HEAD)
    with torch.no_grad():
        scores = q[:, :, :64].float() @ k.float().transpose(-1, -2)
        q.mul_(30 * 8**0.5 / scores.abs().max())  # scores up to 30
    for need in (Need(), needed_results(name)) if can(name, "weights") else (Need(),):
        output = attend(q, k, v, Visibility(queries, length), need=need)
        grads = torch.autograd.grad(output.values.float().square().mean(), (q, k, v))
        assert output.values.isfinite().all()
        for grad in grads:
            assert grad.isfinite().all()


def test_unknown_names_and_options_are_one_line_errors():
    with pytest.raises(ConfigError, match="did you mean reluformer"):
        attentions.get("reluforner")
    with pytest.raises(ConfigError, match=r"unknown option 'gama': .*gamma"):
        make_attention("reluformer:gama=2")
    with pytest.raises(ConfigError, match="gamma=-1"):
        make_attention("reluformer:gamma=-1")
    with pytest.raises(ConfigError, match="expected NAME"):
        Spec.parse("reluformer:gamma")
    with pytest.raises(ConfigError, match="option 'gamma' is given twice"):
        Spec.parse("reluformer:gamma=2,gamma=8")
