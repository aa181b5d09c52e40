"""cosFormer on a grid of patches: what test_registered.py asks of every other attention.

The variants there cannot hold it, as without a grid, so also in causal use, it is an error.
"""

import pytest
import torch

from relu_nmt.attention.base import Need
from relu_nmt.attention.masks import Visibility
from relu_nmt.errors import ConfigError
from relu_nmt.vision.config import VisionTransformerConfig
from relu_nmt.vision.vision_transformer import VisionTransformer
from tests.attention.helpers import as_leaves, make_attention, random_qkv
from tests.attention.oracle import assert_is_formula, formula

NAME = "cosformer:grid=true"
ROWS, COLUMNS = GRID = (2, 3)
ALL = Need(statistics=True, telemetry=True, weights=True)
some_with_class_token = pytest.mark.parametrize("prefix", [0, 1])


def masked(prefix):
    """Return what three samples see: all, the first tokens and the last, and nothing."""
    count = prefix + ROWS * COLUMNS
    mask = torch.ones(3, count, dtype=torch.bool)
    mask[1, 1:3] = mask[2] = False
    return Visibility(count, count, key_mask=mask, query_mask=mask, grid=GRID)


@some_with_class_token
@pytest.mark.parametrize("need", [Need(), ALL], ids=["values", "all"])
def test_hidden_tokens_do_not_change_the_result_of_the_formula(prefix, need):
    visibility = masked(prefix)
    q, k, v = random_qkv(3, visibility.num_keys, visibility.num_keys)
    hidden = ~visibility.key_mask[:, None, :, None]
    for x in (q, k, v):
        x.masked_fill_(hidden, 1e4).requires_grad_()
    attend = make_attention(NAME)
    values = attend(q, k, v, visibility, need=need).values * ~hidden
    for gradient in torch.autograd.grad(values.square().sum(), (q, k, v)):
        assert gradient[:2].any() and not gradient.masked_select(hidden).any()
    assert_is_formula(attend, q, k, v, visibility, need)


def test_a_token_without_visible_keys_gets_0():
    visibility = masked(1)
    q, k, v = random_qkv(3, visibility.num_keys, visibility.num_keys)
    for need in (Need(), ALL):
        values = make_attention(NAME)(q, k, v, visibility, need=need).values
        assert values[:2].any() and not values[2].any()


@some_with_class_token
@pytest.mark.parametrize("need", [Need(), ALL], ids=["values", "all"])
def test_first_and_second_derivatives(prefix, need):
    visibility = masked(prefix)
    attend = make_attention(NAME)
    q, k, v = random_qkv(3, visibility.num_keys, visibility.num_keys, seed=3)
    inputs = as_leaves([q, k, v])

    def outputs(q, k, v):
        output = attend(q, k, v, visibility, need=need)
        rows = (
            ()
            if output.statistics is None
            else (output.statistics.total, output.statistics.entropy)
        )
        return (output.values, *rows)

    assert torch.autograd.gradcheck(outputs, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda *qkv: outputs(*qkv)[0], inputs, fast_mode=True)


@some_with_class_token
def test_statistics_equal_those_of_the_weights(prefix):
    count = prefix + ROWS * COLUMNS
    visibility = Visibility(count, count, grid=GRID)
    q, k, v = random_qkv(2, count, count, seed=4)
    q[0, 0, 1] = -1.0  # so that a row has no weights
    rows = make_attention(NAME)(q, k, v, visibility, need=ALL).statistics
    units = torch.eye(count, dtype=torch.float64).expand(2, 2, -1, -1)
    weights = formula(make_attention(NAME), q, k, units, visibility)
    total = weights.sum(-1)
    shares = weights / total[..., None].clamp_min(1e-300)
    entropy = -torch.xlogy(shares, shares).sum(-1)
    torch.testing.assert_close(rows.total.double(), total)
    torch.testing.assert_close(rows.entropy.double(), entropy)
    torch.testing.assert_close(rows.largest.double(), weights.amax(-1))
    zeros = (weights == 0).double().mean(-1)
    torch.testing.assert_close(rows.zero_fraction.double(), zeros, rtol=0, atol=1e-6)
    assert not rows.total[0, 0, 1] and rows.zero_fraction.max() == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("need", [Need(), ALL], ids=["values", "all"])
def test_half_precision_is_close_at_2001_tokens(dtype, need):
    visibility = Visibility(2001, 2001, grid=(40, 50))
    q, k, v = random_qkv(1, 2001, 2001, heads=1, dim=8, dtype=dtype)
    q, k, v = ((20 * q).requires_grad_(), k.requires_grad_(), v.requires_grad_())
    values = make_attention(NAME, heads=1, dim=8).float()(q, k, v, visibility, need=need).values
    assert values.dtype == dtype
    gradients = torch.autograd.grad(values.float().square().mean(), (q, k, v))
    for gradient in gradients:
        assert gradient.isfinite().all()
    attend = make_attention(NAME, heads=1, dim=8)
    expected = formula(attend, q.double(), k.double(), v.double(), visibility)
    assert (values.double() - expected).norm() < 0.01 * expected.norm()


def test_a_vision_transformer_passes_the_grid_of_its_patches():
    torch.manual_seed(0)
    config = VisionTransformerConfig(attention=NAME, image_size=8, patch_size=4, layers=1)
    model = VisionTransformer(config, 2)
    grids = []
    model.blocks[0].layer.self_attention.attention.register_forward_hook(
        lambda module, args, output: grids.append(args[3].grid)
    )
    assert model(torch.randn(1, 3, 8, 8)).logits.isfinite().all()
    assert grids == [(2, 2)]


def test_grid_without_patches_is_an_error():
    attend = make_attention(NAME)
    with pytest.raises(ConfigError, match="grid=true is for the patches of images"):
        attend(*random_qkv(1, 4, 4), Visibility(4, 4))
    with pytest.raises(ConfigError, match="grid"):
        make_attention(f"{NAME},reweight=false")
