"""Statistics of the weights need memory linear in the length, in every mechanism."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from relu_nmt.attention.base import Need, build_attention
from relu_nmt.attention.kernels import tuned
from relu_nmt.attention.masks import Visibility
from relu_nmt.config.registry import Spec
from tests.attention.helpers import can, leaves, make_bias, num_queries, random_qkv, with_length

TELEMETRY = Need(telemetry=True)
REGULARIZER = Need(statistics=True, telemetry=True)
LENGTHS = (160, 320)
"""Tokens. A matrix of weights of the second would be 400 KiB."""


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of all tensors that operations make, as long as they live."""

    def __init__(self):
        super().__init__()
        self.live = {}
        self.live_bytes = 0
        self.peak = 0
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                if storage._cdata not in self.live:
                    self.live[storage._cdata] = storage.nbytes()
                    self.live_bytes += storage.nbytes()
                    weakref.finalize(storage, self.forget, storage._cdata)
                    self.largest = max(self.largest, storage.nbytes())
        self.peak = max(self.peak, self.live_bytes)
        return result

    def forget(self, address):
        self.live_bytes -= self.live.pop(address)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of at most 16 queries, and none of a short sequence kept."""
    monkeypatch.setattr(tuned, "ROWS_BLOCK_WEIGHTS", 1 << 12)
    monkeypatch.setattr(tuned, "CPU_BLOCK_BYTES", 1 << 12)
    monkeypatch.setattr(tuned, "CPU_LEAST_ROWS", 16)
    monkeypatch.setattr(tuned, "KEPT_BYTES", 0)


def measured(name, length, need, slot="encoder", biased=False, backend="auto"):
    """Return the memory of a training step of one attention."""
    spec = Spec.parse(with_length(name, length))
    attend = build_attention(spec, slot, 0, 1, 4, dropout=0.0)
    attend.backend = backend
    q, k, v = leaves(1, length, length, heads=1, dtype=torch.float32)
    visibility = Visibility(length, length, causal=slot == "decoder")
    bias = make_bias(visibility, heads=1) if biased else None
    with PeakMemory() as memory:
        output = attend(q, k, v, visibility, bias=bias, need=need)
        loss = output.values.square().sum()
        if need.statistics and output.statistics is not None:
            loss = loss + output.statistics.total.square().sum()
            if output.statistics.entropy is not None:
                loss = loss + output.statistics.entropy.sum()
        loss.backward()
    assert q.grad.isfinite().all()
    return memory


def assert_linear(name, *arguments, **options):
    """Check for linear memory: twice as many tokens would quadruple a matrix."""
    short, long = (measured(name, length, *arguments, **options) for length in LENGTHS)
    assert long.largest < LENGTHS[1] ** 2 * 4
    assert long.peak < 2.5 * short.peak


@pytest.mark.parametrize("need", [TELEMETRY, REGULARIZER], ids=["telemetry", "regularizer"])
def test_statistics_need_no_matrix_of_weights(name, need):
    if not can(name, "weights"):
        pytest.skip("has no weights")
    for slot in ("encoder", "decoder") if can(name, "causal") else ("encoder",):
        assert_linear(name, need, slot)


def test_a_bias_needs_no_matrix(name):
    if can(name, "scores"):
        assert_linear(name, TELEMETRY, "decoder", biased=True)


def test_the_memory_measurement_detects_a_matrix():
    with pytest.raises(AssertionError):
        assert_linear("softmax", TELEMETRY, backend="reference")
    with PeakMemory() as memory:
        x = torch.ones(1000)
        assert sum(memory.live.values()) == 4000
        del x
        torch.ones(1)
    assert memory.peak == 4004 or memory.peak == 4000


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax:alpha=1.3"])
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_of_rows_agree_with_the_reference(name, causal, monkeypatch):
    monkeypatch.setattr(tuned, "ROWS_BLOCK_WEIGHTS", 1)
    monkeypatch.setattr(tuned, "ROWS_LEAST_ROWS", 3)
    mask = torch.arange(10) < torch.tensor([4, 10, 0])[:, None]
    attend = build_attention(Spec.parse(name), "encoder", 0, 2, 4, 0.0).double()
    for visibility in (
        Visibility(10, 10, causal=causal),
        Visibility(10, 10, key_mask=mask, query_mask=mask, causal=causal),
        Visibility(5, 10, key_mask=mask, causal=causal),
    ):
        q, k, v = leaves(3, visibility.num_queries, 10)
        bias = make_bias(visibility)
        answers = []
        for backend in ("blockwise", "reference"):
            attend.backend = backend
            output = attend(q, k, v, visibility, bias=bias, need=REGULARIZER)
            tensors = [output.values, *vars(output.statistics).values()]
            loss = sum((x * torch.linspace(-1, 1, x.numel()).view_as(x)).sum() for x in tensors[:3])
            answers.append([*tensors, *torch.autograd.grad(loss, (q, k, v, bias.table))])
        torch.testing.assert_close(*answers, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["softmax", "entmax15", "linear", "sima"])
def test_dropout_is_the_same_when_a_block_is_computed_again(name, monkeypatch):
    monkeypatch.setattr(tuned, "ROWS_BLOCK_WEIGHTS", 1)
    monkeypatch.setattr(tuned, "ROWS_LEAST_ROWS", 3)
    attend = build_attention(Spec.parse(name), "encoder", 0, 1, 4, 0.5).double()
    q, k, v = random_qkv(1, num_queries(name, 7, 7), 7, heads=1)
    v.requires_grad_()
    output = attend(q, k, v, Visibility(7, 7), need=TELEMETRY).values
    (gradient,) = torch.autograd.grad(output[0, 0, :, 0].sum(), v)
    # Linear in v, whose gradient is made from the same dropped weights.
    assert torch.allclose((gradient[..., 0] * v[..., 0]).sum(), output[..., 0].sum())
