"""The number of visible keys against counting the mask."""

import pytest
import torch

from relu_nmt.attention.masks import TreeVisibility, Visibility


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
    # Hypotheses of the slots 0 1 4 and 0 2 5; slot 3 belongs to none.
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


def test_places_count_visible_keys_only():
    mask = torch.tensor([[0, 0, 1, 0, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]).bool()
    holed = Visibility(5, 5, key_mask=mask)
    assert holed.places().tolist() == [[0, 0, 0, 0, 1], [0, 1, 2, 2, 2], [0] * 5]
    assert Visibility(3, 3).places().tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (4, 9), (7, 3)])
def test_a_block_of_queries_sees_the_same_keys_as_in_the_full_visibility(
    queries, keys, causal, padded
):
    key_mask = torch.rand(2, keys, generator=torch.Generator().manual_seed(1)) < 0.6
    whole = Visibility(queries, keys, key_mask=key_mask if padded else None, causal=causal)
    everything = torch.ones(2, 1, queries, keys, dtype=torch.bool)
    expected = everything if whole.mask is None else everything & whole.mask
    for start in range(0, queries, 3):
        rows = slice(start, min(start + 3, queries))
        part = whole.block(rows)
        seen = expected[:, :, rows]
        assert not seen[..., part.num_keys :].any()
        found = torch.ones_like(seen[..., : part.num_keys])
        found = found if part.mask is None else found & part.mask
        assert torch.equal(found, seen[..., : part.num_keys])
        assert torch.equal(part.counts.expand(2, 1, rows.stop - start), seen.sum(-1).float())
