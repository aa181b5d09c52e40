"""XCiT: published sizes, and its parts against their formulas. test_timm.py compares the whole."""

import math

import pytest
import torch
from torch import nn

from relu_nmt.attention.masks import Visibility
from relu_nmt.errors import ConfigError
from relu_nmt.jobs.vision_train.settings import ImageTrainingSettings
from relu_nmt.vision.base import Grid, build_vision_model
from relu_nmt.vision.config import VisionTransformerConfig, architectures
from relu_nmt.vision.xcit import XCiT, fourier_positions
from tests.tiny import num_parameters
from tests.unit.vision.families import without_decay

SIMA = {"attention": "sima", "class_attention": "sima"}


def count(arch, **settings):
    config = VisionTransformerConfig.of(**{**architectures[arch], **settings})
    assert config.family == "xcit"
    with torch.device("meta"):
        return num_parameters(XCiT(config, 1000))


def small_model(**settings):
    torch.manual_seed(0)
    shape = {"image_size": 16, "patch_size": 4, "embed_dim": 16, "layers": 2, "heads": 2}
    values = {"family": "xcit", "attention": "xca", "layer_scale": 0.5, **shape, **settings}
    model = build_vision_model(VisionTransformerConfig.of(**values), num_classes=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.mark.parametrize(
    ("arch", "with_xca", "with_sima"),
    [
        ("xcit_nano_12_p16_224", 3_053_224, 3_053_176),
        ("xcit_tiny_12_p16_224", 6_716_272, 6_716_224),
        ("xcit_tiny_12_p8_224", 6_706_504, 6_706_456),
        ("xcit_tiny_24", 12_116_896, 12_116_800),
        ("xcit_small_12_p16_384", 26_253_304, 26_253_208),
        ("xcit_small_12_p8", 26_213_032, 26_212_936),
        ("xcit_small_24", 47_671_384, 47_671_384 - 192),
        ("xcit_medium_24", 84_395_752, 84_395_752 - 192),
        ("xcit_large_24", 189_096_136, 189_096_136 - 384),
    ],
)
def test_parameter_counts_match_the_paper(arch, with_xca, with_sima):
    assert (count(arch), count(arch, **SIMA)) == (with_xca, with_sima)


def test_xcit_without_local_patch_interaction_has_the_parameter_count_of_the_ablation():
    assert count("xcit_small_12", **SIMA, local_patch_interaction=False) == 26_138_008


@pytest.mark.parametrize("grid", [Grid(3, 5), Grid(1, 1), Grid(14, 14)])
def test_fourier_positions_match_the_formula(grid):
    positions = fourier_positions(grid, torch.device("cpu"))
    positions = positions.view(grid.height, grid.width, 2, 32)
    for row in range(grid.height):
        for column in range(grid.width):
            angles = 2 * math.pi * (row + 1) / grid.height, 2 * math.pi * (column + 1) / grid.width
            for axis, position in enumerate(angles):
                for pair in (0, 1, 7, 15):
                    angle = position / 10000 ** (2 * pair / 32)
                    pairs = positions[row, column, axis, 2 * pair : 2 * pair + 2].tolist()
                    assert pairs == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-5)


def test_class_attention_of_sima_is_the_first_row_of_self_attention():
    block = small_model(**SIMA, class_layers=1).double().class_blocks[0]
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    output = block.attention(x, Grid(2, 2))
    q, k, v = map(block.attention.split, block.attention.qkv(x).chunk(3, -1))
    q = q / q.abs().sum(2, keepdim=True)
    k = k / k.abs().sum(2, keepdim=True)
    values = (q @ k.transpose(2, 3) @ v)[:, :, :1].transpose(1, 2).flatten(2)
    torch.testing.assert_close(output, block.attention.out_proj(values))


def test_softmax_has_one_query_in_class_attention():
    block = small_model(class_layers=1).double().class_blocks[0]
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    q, k, v = map(block.attention.split, block.attention.qkv(x).chunk(3, -1))
    weights = (q[:, :, :1] @ k.transpose(2, 3) / 8**0.5).softmax(-1)
    values = (weights @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(block.attention(x, Grid(2, 2)), block.attention.out_proj(values))
    queries = []
    block.attention.attention.register_forward_pre_hook(lambda _, inputs: queries.append(inputs[0]))
    block.attention(x, Grid(2, 2))
    assert queries[0].shape == (2, 2, 1, 8)


@pytest.mark.parametrize("norm_patches", [True, False])
def test_class_attention_changes_patches_as_the_public_code(norm_patches):
    block = small_model(class_layers_norm_patches=norm_patches).double().class_blocks[0]
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    first = block.attention_residual
    second = block.feed_forward_residual
    normed = first.norm(x)
    patches = x[:, 1:] + first.gain * normed[:, 1:]
    patches = second.norm(patches) if norm_patches else patches
    token = second.norm(x[:, :1] + first.gain * block.attention(normed, Grid(2, 2)))
    token = token + second.gain * block.feed_forward(token)
    torch.testing.assert_close(block(x, Grid(2, 2)), torch.cat([token, 2 * patches], 1))


@pytest.mark.parametrize("local", [True, False])
def test_a_block_is_attention_then_convolutions_then_the_feed_forward_network(local):
    block = small_model(local_patch_interaction=local).double().eval().blocks[1]
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    visibility = Visibility(6, 6)
    grid = Grid(2, 3)
    residual = block.attention_residual
    y = x + residual.gain * block.attention(residual.norm(x), visibility)
    if local:
        residual = block.local_residual
        picture = residual.norm(y).transpose(1, 2).reshape(2, 16, 2, 3)
        picture = nn.functional.gelu(block.local.first(picture))
        picture = block.local.second(block.local.norm(picture))
        y = y + residual.gain * picture.flatten(2).transpose(1, 2)
    residual = block.feed_forward_residual
    y = y + residual.gain * block.feed_forward(residual.norm(y))
    torch.testing.assert_close(block(x, visibility, grid), y)


def test_stochastic_depth_has_one_rate_and_skips_no_class_attention():
    model = small_model(drop_path=0.2)
    rates = [block.local_residual.drop_path for block in model.blocks]
    rates += [block.attention_residual.drop_path for block in model.blocks]
    assert rates == [0.2] * 4
    assert [block.attention_residual.drop_path for block in model.class_blocks] == [0, 0]


def test_intermediate_features_are_outputs_of_the_blocks():
    model = small_model().eval()
    outputs = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, inputs, output: outputs.append(output))
    features = model(torch.randn(2, 3, 16, 24), blocks=(0, 1)).intermediate
    for index, output in enumerate(outputs):
        assert features[index].shape == (2, 16, 4, 6)
        assert torch.equal(features[index][:, :, 1, 2], output[:, 8])


def test_patches_may_be_non_square_and_relu_replaces_every_gelu():
    relu = {"feed_forward": "relu", "conv_activation": "relu"}
    model = small_model(patch_size="8x2", **relu).eval()
    assert model(torch.randn(2, 3, 16, 16), blocks=[0]).intermediate[0].shape == (2, 16, 2, 8)
    assert not any(isinstance(module, nn.GELU) for module in model.modules())


def test_weight_decay_spares_the_class_token_and_vectors():
    exempt = without_decay(small_model())
    assert {"class_token", "blocks.0.attention.attention.temperature", "norm.weight"} <= exempt
    assert not {"positions.weight", "stem.layers.0.weight", "head.weight"} & exempt


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patch_size": 6}, "--patch-size 6x6: --family xcit needs sides that are powers of 2"),
        ({"patch_size": 1}, "--family xcit halves sides and width 0 times, at least once"),
        ({"patch_size": 64}, "--embed-dim 16 with patches of 64 pixels"),
        ({"embed_dim": 18, "heads": 4}, "--embed-dim 18 must be a multiple of --heads 4"),
        ({"pooling": "mean"}, "--pooling mean does nothing with --family xcit; it needs"),
        ({"attention_dropout": 0.1}, "xca has no weights to drop"),
        ({"class_attention": "softmaxx"}, "did you mean softmax"),
    ],
)
def test_contradicting_settings_are_errors(settings, message):
    with pytest.raises(ConfigError, match=message):
        small_model(**settings)


def test_options_of_xcit_are_refused_in_other_families():
    with pytest.raises(ConfigError, match="--no-local-patch-interaction does nothing with"):
        ImageTrainingSettings.of(data="d", local_patch_interaction=False)
    settings = ImageTrainingSettings.of(data="d", arch="xcit_nano_12_p8", attention="sima")
    assert (settings.model.attention, settings.model.patch_size) == ("sima", (8,))
    assert not settings.model.class_layers_norm_patches
