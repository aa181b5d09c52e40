import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from relu_nmt.attention import attentions
from relu_nmt.attention.base import Need
from relu_nmt.attention.records import record_attention
from relu_nmt.config import to_dict
from relu_nmt.errors import ConfigError
from relu_nmt.vision.base import Grid, build_vision_model
from relu_nmt.vision.config import VisionTransformerConfig, architectures
from relu_nmt.vision.loading import fitted_weights
from relu_nmt.vision.swin import WindowAttention, Windows, joined_patches
from tests.tiny import num_parameters
from tests.unit.vision.families import without_decay

SMALL = {
    "family": "swin",
    "image_size": 24,
    "patch_size": (4,),
    "embed_dim": 8,
    "stage_layers": (2, 2),
    "stage_heads": (2, 4),
    "window_size": 3,
}


def small_config(**settings):
    return VisionTransformerConfig.of(**{**SMALL, **settings})


def small_model(num_classes=5, **settings):
    torch.manual_seed(0)
    return build_vision_model(small_config(**settings), num_classes)


def randomized(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return model.eval()


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("swin_tiny_patch4_window7_224", 28_288_354),
        ("swin_tiny", 28_288_354),
        ("swin_base_patch4_window7_224", 87_768_224),
    ],
)
def test_parameter_counts_match_the_paper(arch, expected):
    config = VisionTransformerConfig.of(**architectures[arch])
    with torch.device("meta"):
        model = build_vision_model(config, 1000)
        output = model(torch.zeros(1, 3, 224, 224), blocks=range(sum(config.stage_layers)))
    assert num_parameters(model) == expected
    assert model.num_tokens == 56**2
    areas = [picture.shape[2:].numel() for picture in output.intermediate.values()]
    assert areas == np.repeat([56**2, 28**2, 14**2, 7**2], config.stage_layers).tolist()


def test_the_rate_of_drop_path_grows_linearly_over_all_blocks():
    config = VisionTransformerConfig.of(**architectures["swin_tiny"])
    with torch.device("meta"):
        model = build_vision_model(config, 2)
    rates = [block.attention_residual.drop_path for block in itertools.chain(*model.stages)]
    assert rates == pytest.approx(np.linspace(0, 0.2, 12))


def regions_after_the_cyclic_shift(height, width, window):
    """Return which tokens see each other [N, N] in shifted windows, as in the paper."""
    shift = window // 2
    numbers = torch.arange(height * width).view(height, width)
    numbers = numbers.roll((-shift, -shift), (0, 1))
    regions = torch.zeros(height, width)
    cuts = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
    for i, rows in enumerate(cuts):
        for j, columns in enumerate(cuts):
            regions[rows, columns] = 3 * i + j
    visible = torch.zeros(height * width, height * width, dtype=torch.bool)
    for top in range(0, height, window):
        for left in range(0, width, window):
            part = slice(top, top + window), slice(left, left + window)
            tokens = numbers[part].flatten()
            ids = regions[part].flatten()
            visible[tokens[:, None], tokens[None]] = ids[:, None] == ids[None]
    return visible


def seen_by(windows, grid):
    """Return [N, N], which tokens see each other in these windows."""
    numbers = 1 + torch.arange(grid.height * grid.width).view(1, -1, 1)
    visible = torch.zeros(numbers.numel(), numbers.numel(), dtype=torch.bool)
    for row in windows.take(numbers)[..., 0]:
        tokens = row[row > 0] - 1
        visible[tokens[:, None], tokens[None]] = True
    return visible


@pytest.mark.parametrize("window", [2, 3, 4, 7])
@pytest.mark.parametrize("across", [2, 3])
def test_shifted_windows_match_the_masks_of_the_paper(window, across):
    grid = Grid(2 * window, across * window)
    windows = Windows(grid, window, True, torch.zeros(1, grid.height * grid.width, 1))
    expected = regions_after_the_cyclic_shift(grid.height, grid.width, window)
    assert torch.equal(seen_by(windows, grid), expected)
    counts = windows.visibility.counts[:, 0].expand(-1, window**2)
    padded = windows.take(torch.ones(1, grid.height * grid.width, 1))[..., 0] == 0
    counts = windows.put(counts.masked_fill(padded, 0)[..., None])[0, :, 0]
    assert torch.equal(counts, expected.sum(1).float())


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("grid", [Grid(1, 1), Grid(5, 8), Grid(7, 3), Grid(2, 10), Grid(6, 6)])
def test_every_token_is_in_one_window_of_maps_of_any_size(grid, shifted):
    x = torch.randn(2, grid.height * grid.width, 3)
    windows = Windows(grid, 3, shifted, x)
    assert torch.equal(windows.put(windows.take(x)), x)
    # Without padding every window has a token.
    assert windows.visibility.counts.min() >= 1
    ys = torch.arange(grid.height)
    xs = torch.arange(grid.width)

    def window_of(positions, length):
        return (positions + (2 if shifted and length > 3 else 0)) // 3

    ids = window_of(ys, grid.height)[:, None] * 100 + window_of(xs, grid.width)
    assert torch.equal(seen_by(windows, grid), ids.flatten()[:, None] == ids.flatten()[None])


@pytest.mark.parametrize(
    "name", ["softmax", "reluformer", "polynomial:power=3", "pointwise:h=softplus"]
)
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("grid", [Grid(6, 6), Grid(4, 7)])
def test_window_attention_matches_dense_attention_with_masks(name, shifted, grid):
    torch.manual_seed(0)
    attend = WindowAttention(small_config(attention=name), 0, 0).double()
    torch.nn.init.normal_(attend.position_bias)
    x = torch.randn(2, grid.height * grid.width, 8, dtype=torch.float64, requires_grad=True)
    windows = Windows(grid, 3, shifted, x)
    output = attend(x, windows)

    visible = seen_by(windows, grid)
    q, k, v = attend.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    q = attend.attention.map_queries(q)
    k = attend.attention.map_keys(k)
    scores = q @ k.transpose(-1, -2) / 2
    patches = torch.cartesian_prod(torch.arange(grid.height), torch.arange(grid.width))
    ys, xs = patches.unbind(1)
    for i, j in visible.nonzero().tolist():
        offset = (ys[i] - ys[j] + 2) * 5 + xs[i] - xs[j] + 2
        scores[:, :, i, j] = scores[:, :, i, j] + attend.position_bias[offset]
    n = visible.sum(1, keepdim=True).double()
    if name == "softmax":
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    elif name == "reluformer":
        weights = scores.relu() * visible / (n / 2).sqrt()
    elif name.startswith("polynomial"):
        weights = scores.pow(3) * visible / n.sqrt()
    else:
        weights = F.softplus(scores) * visible / n
    values = (weights @ v).transpose(1, 2).flatten(2)
    expected = attend.out_proj(values)
    torch.testing.assert_close(output, expected)
    [ours] = torch.autograd.grad(output.square().sum(), x, retain_graph=True)
    [theirs] = torch.autograd.grad(expected.square().sum(), x)
    torch.testing.assert_close(ours, theirs)


def test_a_token_depends_only_on_its_window():
    torch.manual_seed(0)
    grid = Grid(6, 6)
    attend = WindowAttention(small_config(), 0, 0)
    windows = Windows(grid, 3, True, torch.zeros(1, 36, 8))
    jacobian = torch.autograd.functional.jacobian(
        lambda x: attend(x, windows)[0].sum(1), torch.randn(1, 36, 8)
    )
    depends = jacobian[:, 0].abs().sum(-1) > 0
    assert torch.equal(depends, regions_after_the_cyclic_shift(6, 6, 3))


def test_a_map_no_larger_than_the_window_is_one_window_without_padding():
    windows = Windows(Grid(3, 2), 7, True, torch.zeros(1, 6, 1))
    assert windows.visibility.mask is None
    assert windows.visibility.counts.item() == 6
    table = torch.arange(169.0)[None]
    bias = windows.bias(table).values()[0, 0]
    # One row down is 13 places on, one column right is one. 84 is no difference.
    assert bias[0].tolist() == [84, 83, 71, 70, 58, 57]


def test_merging_joins_four_patches_column_by_column():
    x = torch.randn(1, 15, 8)
    joined, grid = joined_patches(x, Grid(3, 5))
    assert grid == (2, 3)
    last = torch.cat([x[:, 14], torch.zeros(1, 24)], 1)
    assert torch.equal(joined[:, 5], last)
    first = torch.cat([x[:, 0], x[:, 5], x[:, 1], x[:, 6]], 1)
    assert torch.equal(joined[:, 0], first)


@pytest.mark.parametrize("name", attentions.names())
def test_scores_have_a_position_bias_that_learns(name):
    model = small_model(attention=name).train()
    # 23 x 30 pixels are 6 x 8 patches, 3 x 4 in the second stage.
    model(torch.randn(3, 3, 23, 30)).logits.square().sum().backward()
    for block in itertools.chain(*model.stages):
        bias = block.attention.position_bias
        assert (bias is not None) == attentions.get(name).capabilities.scores
        assert bias is None or bias.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["softmax", "reluformer", "sima", "xca"])
def test_bfloat16_is_close_to_float32(name):
    model = randomized(small_model(attention=name))
    images = torch.randn(2, 3, 25, 31)
    expected = model(images).logits
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(images).logits
    assert logits.dtype == torch.float32
    # bfloat16 has 8 bits. Errors of some roundings in four blocks.
    assert (logits - expected).norm() < 0.1 * expected.norm()


def test_images_of_a_batch_do_not_attend_to_each_other():
    model = randomized(small_model())
    images = torch.randn(3, 3, 21, 40)
    logits = model(images).logits
    torch.testing.assert_close(model(images[1:2]).logits[0], logits[1])


def test_records_have_the_counts_of_shifted_windows():
    model = small_model(attention="reluformer")
    with record_attention(model, Need(telemetry=True)) as records:
        model(torch.randn(2, 3, 24, 24))
    assert [r.layer for r in records] == [0, 1, 2, 3]
    plain = records[0].visibility
    shifted = records[1].visibility
    assert plain.counts.unique().tolist() == [9]
    # 6 = 1 + 3 + 2 rows and columns: windows of shifted regions.
    assert shifted.counts.unique().tolist() == [1, 2, 3, 4, 6, 9]
    assert shifted.real_rows(2 * 9).sum() == 2 * 36


def test_weight_decay_spares_norms_biases_and_the_position_biases():
    exempt = without_decay(small_model())
    assert "stages.0.0.attention.position_bias" in exempt
    assert "patches_norm.weight" in exempt
    assert not {"mergings.0.reduction.weight", "stages.0.0.attention.qkv.weight"} & exempt


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stage_heads": (2,)}, "--stage-heads 2: expected as many numbers as in --stage-layers"),
        ({"embed_dim": 9}, "--embed-dim 9 must be a multiple of the first of --stage-heads 2,4"),
        ({"window_size": 0}, "--window-size 0: expected 1 to 1000000"),
        ({"stage_layers": (2, 0)}, "--stage-layers 2,0: expected 1 to 10000"),
    ],
)
def test_contradicting_settings_are_errors(settings, message):
    with pytest.raises(ConfigError, match=message):
        small_config(**settings)


def test_position_biases_are_interpolated_to_another_window():
    trained = small_model()
    model = small_model(window_size=4)
    metadata = {"task": {"classes": list("abcde")}, "model_config": to_dict(trained.config)}
    checkpoint = SimpleNamespace(model_tensors=trained.state_dict(), metadata=metadata)
    notes = []
    weights = fitted_weights(model, checkpoint, list("abcde"), notes.append)
    size = trained.config.window_size
    assert notes == [f"its position biases of windows of {size} patches are interpolated"]
    model.load_state_dict(weights)
    notes.clear()
    fitted_weights(trained, checkpoint, list("abcde"), notes.append)
    assert not notes
