"""The normalization and entropy-margin terms against a plain recomputation."""

import math

import pytest
import torch

from relu_nmt.attention.base import Need
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.regularizer import regularizer_terms
from relu_nmt.errors import ConfigError
from relu_nmt.modules.config import AttentionRegularizerConfig
from tests.attention.helpers import leaves, make_attention, random_qkv

ALL = Need(statistics=True, telemetry=True, weights=True)


def plain_terms(weights, lengths, query_lengths, margin):
    norm = 0.0
    excess = 0.0
    rows = 0
    for b, (n, m) in enumerate(zip(lengths, query_lengths, strict=True)):
        for h in range(weights.size(1)):
            for i in range(m):
                rows += 1
                row = [w for w in weights[b, h, i].tolist() if w > 0]
                total = sum(row)
                if total <= 1e-6:
                    continue
                norm += abs(math.log(total))
                entropy = -sum(w / total * math.log(w / total) for w in row)
                excess += max(entropy - margin * math.log(n), 0.0)
    return norm / rows, excess / rows


@pytest.mark.parametrize("name", ["softmax", "reluformer", "reluformer:gamma=3"])
@pytest.mark.parametrize("margin", [0.7, 0.3])
def test_terms_equal_a_plain_recomputation(name, margin):
    attend = make_attention(name)
    q, k, v = random_qkv(3, 4, 6, seed=7)
    lengths = [2, 6, 1]
    query_lengths = [4, 3, 1]
    visibility = Visibility(
        4,
        6,
        key_mask=torch.arange(6) < torch.tensor(lengths)[:, None],
        query_mask=torch.arange(4) < torch.tensor(query_lengths)[:, None],
    )
    output = attend(q, k, v, visibility, need=ALL)
    terms = regularizer_terms(output.statistics, visibility, margin)
    expected = plain_terms(output.weights, lengths, query_lengths, margin)
    assert torch.stack(terms).tolist() == pytest.approx(expected, rel=1e-6)


def test_gradcheck_of_both_terms():
    attend = make_attention("reluformer")
    inputs = leaves(1, 3, 12, seed=8)
    visibility = Visibility(3, 12)

    def terms(q, k, v):
        return regularizer_terms(attend(q, k, v, visibility, need=ALL).statistics, visibility, 0.7)

    assert torch.autograd.gradcheck(terms, inputs)


def test_entropy_does_not_push_the_row_sum():
    attend = make_attention("reluformer")
    q, k, v = random_qkv(1, 3, 20, seed=9)
    gain = torch.ones((), dtype=torch.float64, requires_grad=True)
    rows = attend(q * gain, k, v, Visibility(3, 20), need=ALL).statistics
    (slope,) = torch.autograd.grad(rows.entropy.sum(), gain)
    assert slope.item() == pytest.approx(0.0, abs=1e-12)


def test_entropy_of_half_normal_weights_is_log_n_minus_a_constant():
    attend = make_attention("reluformer", dim=1)
    q = torch.ones(500, 2, 1, 1, dtype=torch.float64)
    _, k, v = random_qkv(500, 1, 400, dim=1, seed=10)
    entropy = attend(q, k, v, Visibility(1, 400), need=ALL).statistics.entropy.mean().item()
    assert entropy == pytest.approx(math.log(400) - 0.9769, abs=0.01)


def test_weights_and_margin_are_checked():
    with pytest.raises(ConfigError, match="--attention-norm-weight -1"):
        AttentionRegularizerConfig(attention_norm_weight=-1)
    assert not AttentionRegularizerConfig().active
