"""Feature pyramids: shapes and strides of the maps of each family, and unsupported patches."""

import itertools

import pytest
import torch

from relu_nmt.errors import ConfigError
from relu_nmt.vision.base import build_vision_model, map_of
from relu_nmt.vision.config import VisionTransformerConfig, architectures
from tests.example_modules import example_modules
from tests.tiny import num_parameters

with example_modules(
    "detection", ["boxes", "proposals", "mask_rcnn", "coco", "detector"]
) as example:
    FeaturePyramid = example.detector.FeaturePyramid

ALIKE = {"image_size": 32, "embed_dim": 16, "heads": 2, "layers": 3}
STAGED = {"embed_dim": 8, "stage_heads": (1, 2, 4, 8), "stage_layers": (1, 1, 1, 1)}
SMALL = {
    "vit": {**ALIKE, "patch_size": 16},
    "xcit": {**ALIKE, "patch_size": 8, "attention": "sima"},
    "swin": {**STAGED, "patch_size": 4, "window_size": 3},
    "cvt": {"embed_dim": 8, "stage_heads": (1, 2, 4), "stage_layers": (1, 1, 1)},
}


@pytest.mark.parametrize("family", SMALL)
def test_maps_have_strides_4_to_32_and_learn(family):
    torch.manual_seed(1)
    config = VisionTransformerConfig.of(family=family, **SMALL[family])
    pyramid = FeaturePyramid(build_vision_model(config, 7))
    maps = pyramid(torch.randn(2, 3, 64, 96))
    assert list(maps) == ["0", "1", "2", "3"][: len(pyramid.channels)]
    for features, stride, channels in zip(
        maps.values(), pyramid.strides, pyramid.channels, strict=True
    ):
        assert features.shape == (2, channels, 64 // stride, 96 // stride)
    assert pyramid.strides == [4, 8, 16, 32][: len(maps)]
    sum(feature_map.square().sum() for feature_map in maps.values()).backward()
    # With several processes every parameter must have a gradient.
    assert not [name for name, p in pyramid.named_parameters() if p.grad is None]


@pytest.mark.parametrize("family", SMALL)
def test_weight_decay_spares_norms_and_biases_of_the_levels(family):
    config = VisionTransformerConfig.of(family=family, **SMALL[family])
    pyramid = FeaturePyramid(build_vision_model(config, 7))
    for name, parameter in pyramid.levels.named_parameters():
        assert getattr(parameter, "no_weight_decay", False) == (parameter.dim() < 2), name


@pytest.mark.parametrize("family", SMALL)
def test_the_maps_are_those_of_the_blocks(family):
    torch.manual_seed(1)
    config = VisionTransformerConfig.of(family=family, **SMALL[family])
    model = build_vision_model(config, 7).eval()
    images = torch.randn(1, 3, 64, 96)
    expected = model(images, blocks=range(config.num_blocks)).intermediate
    pyramid = FeaturePyramid(model).eval()
    states = itertools.islice(pyramid.model.encode(images), pyramid.blocks[-1] + 1)
    maps = [map_of(x, grid) for x, grid in states]
    for block in pyramid.blocks:
        assert torch.equal(maps[block], expected[block])


def test_the_backbone_of_xcit_small_has_the_published_parameter_count():
    """With FPN and heads these are the 44.3 million of the papers, see examples/detection."""
    config = VisionTransformerConfig.of(**architectures["xcit_small_12_p16_224"])
    pyramid = FeaturePyramid(build_vision_model(config, 1))
    assert pyramid.blocks == [3, 5, 7, 11]
    blocks = 12 * (12 * 384**2 + 40 * 384 + 8) + 65 * 384
    stem = 9 * (3 * 48 + 48 * 96 + 96 * 192 + 192 * 384) + 2 * (48 + 96 + 192 + 384)
    finer = 3 * (4 * 384**2 + 384) + 2 * 384
    assert num_parameters(pyramid) == blocks + stem + finer


@pytest.mark.parametrize("sides", [(16, 8), (2, 2), (64, 64)])
def test_other_patch_sizes_are_refused(sides):
    model = build_vision_model(VisionTransformerConfig.of(**ALIKE, patch_size=sides), 1)
    with pytest.raises(
        ConfigError, match=f"--patch-size {sides[0]}.*: a feature pyramid needs square"
    ):
        FeaturePyramid(model)
