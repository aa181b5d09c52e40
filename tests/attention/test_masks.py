"""The number of visible keys against counting the mask."""

import pytest
import torch

from relu_nmt.attention.masks import TreeVisibility, Visibility


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 6), (5, 5), (3, 7), (7, 3)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_counts_are_those_of_the_mask_without_making_one(queries, keys, causal, padded):
    key_mask = None
    if padded:
        key_mask = torch.rand(4, keys, generator=torch.Generator().manual_seed(keys)) < 0.6
    visibility = Visibility(queries, keys, key_mask=key_mask, causal=causal)
    counts = visibility.counts
    assert "mask" not in vars(visibility)
    mask = visibility.mask
    expected = torch.full((1, 1, 1), float(keys)) if mask is None else mask.sum(-1).float()
    assert torch.equal(counts, expected)


def test_a_tree_counts_and_places_the_tokens_of_its_hypotheses():
    # Hypotheses of the slots 0 1 4 and 0 2 5; slot 3 belongs to none.
    ancestry = torch.tensor([[[1, 1, 0, 0, 1, 0], [1, 0, 1, 0, 0, 1]]], dtype=torch.bool)
    tree = TreeVisibility(ancestry, length=3)
    assert tree.counts.item() == 3 and tree.longest == 3
    assert torch.equal(tree.mask.sum(-1).float(), tree.counts.expand(1, 1, 2))
    assert tree.positions.tolist() == [[0, 1, 1, 0, 2, 2]]
    assert tree.empty_rows is None and tree.normalizable_mask is tree.mask
