"""Visible keys against counting the mask. A bias of the scores against its definition."""

import itertools

import pytest
import torch

from relu_nmt.attention.base import Need
from relu_nmt.attention.masks import TreeVisibility, Visibility
from relu_nmt.attention.score_bias import ScoreBias
from relu_nmt.errors import ConfigError
from tests.attention.helpers import SLOTS, can, make_attention, make_bias, random_qkv, with_option

ALL = Need(statistics=True, telemetry=True, weights=True)
HEADS = 2


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 6), (5, 5), (3, 7), (7, 3)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_counts_equal_those_of_the_mask_and_make_none(queries, keys, causal, padded):
    key_mask = None
    if padded:
        key_mask = torch.rand(4, keys, generator=torch.Generator().manual_seed(keys)) < 0.6
    visibility = Visibility(queries, keys, key_mask=key_mask, causal=causal)
    counts = visibility.counts
    assert "mask" not in vars(visibility)
    mask = visibility.mask
    expected = torch.full((1, 1, 1), float(keys)) if mask is None else mask.sum(-1).float()
    assert torch.equal(counts, expected)


def test_counts_and_positions_of_a_tree():
    # Hypotheses of the slots 0 1 4 and 0 2 5. Slot 3 belongs to none.
    ancestry = torch.tensor([[[1, 1, 0, 0, 1, 0], [1, 0, 1, 0, 0, 1]]], dtype=torch.bool)
    tree = TreeVisibility(ancestry, length=3)
    assert tree.counts.item() == 3 and tree.longest == 3
    assert torch.equal(tree.mask.sum(-1).float(), tree.counts.expand(1, 1, 2))
    assert tree.key_positions().tolist() == [[0, 1, 1, 0, 2, 2]]
    assert tree.empty_rows is None
    assert torch.equal(tree.score_mask(torch.float32).exp(), tree.mask.float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_score_mask_hides_keys_except_in_rows_without_any(dtype):
    key_mask = torch.tensor([[1, 1, 0], [0, 0, 0]]).bool()
    visibility = Visibility(2, 3, key_mask=key_mask, causal=True)
    mask = visibility.score_mask(dtype)
    expected = torch.tensor([[[1, 1, 0], [1, 1, 0]], [[1, 1, 1], [1, 1, 1]]], dtype=dtype)
    assert mask.dtype == dtype and torch.equal(mask.exp()[:, 0], expected)
    assert visibility.score_mask(dtype) is mask  # made once, for all layers
    assert Visibility(2, 3).score_mask(dtype) is None


def test_all_sequences_have_the_same_positions_and_causal_queries_are_the_last():
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()
    padded = Visibility(4, 4, key_mask=mask, query_mask=mask)
    assert padded.key_positions().tolist() == [[0, 1, 2, 3]]
    assert torch.equal(padded.query_positions(), padded.key_positions())
    step = Visibility(1, 4, causal=True)
    assert step.causal and step.mask is None and step.query_positions().tolist() == [[3]]
    assert Visibility(2, 5, causal=True).query_positions().tolist() == [[3, 4]]
    assert Visibility(2, 5).query_positions().tolist() == [[0, 1]]


def test_positions_without_padding_count_visible_keys_only():
    mask = torch.tensor([[0, 0, 1, 0, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]).bool()
    holed = Visibility(5, 5, key_mask=mask)
    assert holed.positions_without_padding().tolist() == [[0, 0, 0, 0, 1], [0, 1, 2, 2, 2], [0] * 5]
    assert Visibility(3, 3).positions_without_padding().tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (4, 9), (7, 3)])
def test_a_block_of_queries_sees_the_same_keys_as_in_the_full_visibility(
    queries, keys, causal, padded
):
    key_mask = torch.rand(2, keys, generator=torch.Generator().manual_seed(1)) < 0.6
    full = Visibility(queries, keys, key_mask=key_mask if padded else None, causal=causal)
    everything = torch.ones(2, 1, queries, keys, dtype=torch.bool)
    expected = everything if full.mask is None else everything & full.mask
    for start in range(0, queries, 3):
        rows = slice(start, min(start + 3, queries))
        part = full.block(rows)
        visible = expected[:, :, rows]
        assert not visible[..., part.num_keys :].any()
        mask = torch.ones_like(visible[..., : part.num_keys])
        mask = mask if part.mask is None else mask & part.mask
        assert torch.equal(mask, visible[..., : part.num_keys])
        assert torch.equal(part.counts.expand(2, 1, rows.stop - start), visible.sum(-1).float())


def dense(bias):
    """The bias entry by entry."""
    batch, queries = bias.query_codes.shape
    keys = bias.key_codes.size(1)
    batch = max(batch, bias.key_codes.size(0))
    query_codes = bias.query_codes.expand(batch, queries)
    key_codes = bias.key_codes.expand(batch, keys)
    entries = bias.table.new_empty(batch, len(bias.table), queries, keys)
    for n, head, i, j in itertools.product(*map(range, entries.shape)):
        column = bias.zero + int(query_codes[n, i]) - int(key_codes[n, j])
        entries[n, head, i, j] = bias.table[head, column]
    return entries


def visibilities(causal):
    mask = torch.arange(6) < torch.tensor([4, 6])[:, None]
    yield Visibility(6, 6, causal=causal)
    yield Visibility(6, 6, key_mask=mask, query_mask=mask, causal=causal)
    if causal:
        yield Visibility(2, 6, causal=True)
        yield Visibility(1, 6, causal=True)


def test_the_bias_is_the_entry_of_the_table_at_the_difference_of_the_codes():
    mask = torch.tensor([[0, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 1]]).bool()
    bias = make_bias(Visibility(6, 6, key_mask=mask, query_mask=mask))
    torch.testing.assert_close(bias.values(), dense(bias), rtol=0, atol=0)
    part = bias.block(slice(2, 4), slice(5)).values()
    torch.testing.assert_close(part, dense(bias)[:, :, 2:4, :5], rtol=0, atol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_scores_plus_bias_give_the_weights(name, causal):
    """With the width of the scores as one more channel, q k is z + b for a mechanism of scores."""
    if causal and not can(name, "causal"):
        pytest.skip("has no causal form")
    if "centered" in name or "thresholded" in name:
        pytest.skip("shifted scores have their own tests, where they are shifted")
    attend = make_attention(name, "decoder" if causal else "encoder", HEADS, dim=4)
    if not can(name, "scores"):
        visibility = Visibility(6, 6)
        with pytest.raises(ConfigError, match="no scores to add a position bias"):
            attend(*random_qkv(2, 6, 6), visibility, bias=make_bias(visibility))
        return
    for visibility in visibilities(causal):
        queries = visibility.num_queries
        bias = make_bias(visibility)
        q, k, v = (x.requires_grad_() for x in random_qkv(2, queries, 6))
        inputs = (q, k, v, bias.table)
        with_bias = attend(q, k, v, visibility, bias=bias, need=ALL)
        # Keys that are unit vectors read the scores z + b off the queries.
        scores = q @ k.transpose(-1, -2) + 2.0 * dense(bias)
        wide = make_attention(name, SLOTS[causal], HEADS, dim=6)
        units = torch.eye(6, dtype=torch.float64).expand(2, HEADS, 6, 6)
        truth = wide(
            scores * 6**0.5 / 2.0, units, v @ torch.eye(4, 6).double(), visibility, need=ALL
        )
        torch.testing.assert_close(with_bias.weights, truth.weights, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(with_bias.values, truth.values[..., :4], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(
            with_bias.statistics.total, truth.statistics.total, rtol=1e-9, atol=1e-11
        )
        gradients = []
        for result in (with_bias, truth):
            loss = result.weights.square().sum() + result.statistics.total.sum()
            gradients.append(torch.autograd.grad(loss, inputs, allow_unused=True))
        ours, theirs = gradients
        for mine, expected in zip(ours, theirs, strict=True):
            if expected is not None:
                torch.testing.assert_close(mine, expected, rtol=1e-8, atol=1e-10)


def test_the_bias_of_steps_and_trees_equals_that_of_the_full_pass(name):
    if not (can(name, "causal") and can(name, "scores")):
        pytest.skip("has no causal form or no scores")
    attend = make_attention(name, "decoder")
    q, k, v = random_qkv(1, 6, 6)
    whole_sees = Visibility(6, 6, causal=True)
    table = make_bias(whole_sees).table
    zero = 12
    assert make_bias(whole_sees).zero == zero

    def bias_of(visibility):
        return ScoreBias(table, visibility.query_positions(), visibility.key_positions(), zero)

    full = attend(q, k, v, whole_sees, bias=bias_of(whole_sees)).values
    for i in range(6):
        sees = Visibility(1, i + 1, causal=True)
        assert sees.causal
        part = attend(
            q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], sees, bias=bias_of(sees)
        )
        torch.testing.assert_close(part.values, full[:, :, i : i + 1], rtol=1e-10, atol=1e-12)
    paths = [[0, 1, 4], [0, 2, 5]]
    ancestry = torch.nn.functional.one_hot(torch.tensor(paths), 6).any(1)
    tree = TreeVisibility(ancestry[None], length=3)
    assert tree.causal and tree.query_positions().tolist() == [[2, 2]]
    together = attend(q[:, :, 4:], k, v, tree, bias=bias_of(tree)).values
    for i, path in enumerate(paths):
        sees = Visibility(1, 3, causal=True)
        alone = attend(
            q[:, :, 4 + i : 5 + i], k[:, :, path], v[:, :, path], sees, bias=bias_of(sees)
        )
        torch.testing.assert_close(together[:, :, i], alone.values[:, :, 0], rtol=1e-10, atol=1e-12)


def test_qk_norm_normalizes_queries_and_keys(name):
    if "qk_norm" in name:
        pytest.skip("is normalized already")
    attend = make_attention(with_option(name, "qk_norm=true"))
    gains = {"query_gain"} if attend.shares_queries_and_keys else {"query_gain", "key_gain"}
    assert gains == attend.state_dict().keys() & {"query_gain", "key_gain"}
    q, _, _ = random_qkv(1, 3, 3)
    mapped = attend.map_queries(q * 100)
    torch.testing.assert_close(mapped.mean(-1), torch.zeros_like(mapped[..., 0]), atol=1e-9, rtol=0)
    torch.testing.assert_close(mapped.norm(dim=-1), 2.0 * torch.ones_like(mapped[..., 0]))
    torch.testing.assert_close(attend.map_keys(q), attend.map_keys(7 * q), rtol=1e-4, atol=1e-4)
