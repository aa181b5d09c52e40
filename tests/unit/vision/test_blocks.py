"""Every registered vision block: registered means tested."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from relu_nmt.attention.base import Need
from relu_nmt.attention.records import record_attention
from relu_nmt.errors import ConfigError
from relu_nmt.vision import vision_blocks
from relu_nmt.vision.base import Grid
from relu_nmt.vision.config import VisionTransformerConfig, architectures
from relu_nmt.vision.vision_transformer import VisionTransformer
from tests.tiny import gradients, num_parameters, slots_of

SMALL = {"image_size": 8, "patch_size": 4, "embed_dim": 16, "layers": 3, "heads": 2}
ATTENTION = {"gau": "pointwise:h=relu2"}


def make_model(block="transformer", **settings):
    torch.manual_seed(0)
    settings = {"attention": ATTENTION.get(block, "softmax"), "block": block, **SMALL, **settings}
    return VisionTransformer(VisionTransformerConfig(**settings), num_classes=5)


@pytest.mark.parametrize("pooling", ["class", "mean"])
@pytest.mark.parametrize("block", vision_blocks.names())
def test_shapes_gradients_and_records(block, pooling):
    model = make_model(block, pooling=pooling, layer_scale=0.5).train()
    with record_attention(model, Need(statistics=True)) as records:
        output = model(torch.randn(2, 3, 8, 8))
    assert output.logits.shape == (2, 5)
    slots = slots_of(records)
    assert slots and len(set(slots)) == len(slots)
    output.logits.square().sum().backward()
    # The keys' bias moves all scores of a row alike, to which softmax is blind.
    grads = gradients(model)
    assert all(grad.isfinite().all() for grad in grads.values())
    assert all(grad.any() for grad in grads.values() if grad.dim() > 1)


@pytest.mark.parametrize("pooling", ["class", "mean"])
@pytest.mark.parametrize("block", vision_blocks.names())
def test_features_of_blocks_have_the_shape_of_the_grid(block, pooling):
    model = make_model(block, pooling=pooling).eval()
    calls = []
    for layer in model.blocks:
        layer.register_forward_hook(lambda module, inputs, output: calls.append((inputs, output)))
    output = model(torch.randn(2, 3, 8, 8), blocks=(0, 2))
    assert all(inputs[2] == Grid(2, 2) for inputs, _ in calls)
    assert sorted(output.intermediate) == [0, 2]
    for index, features in output.intermediate.items():
        assert features.shape == (2, 16, 2, 2)
        patches = calls[index][1][:, -4:]
        assert torch.equal(features[:, :, 1, 0], patches[:, 2])
    assert not model(torch.randn(2, 3, 8, 8)).intermediate


def test_two_gated_units_have_about_the_weights_of_a_transformer_block():
    def count(block):
        blocks = make_model(block, embed_dim=256, heads=4).blocks
        return num_parameters(blocks)

    # The base is 128 wide in the paper, however wide heads would be.
    unit = 6 * 256**2 + 256 * 128 + 4 * 128 + 2 * 128  # with the norms of queries and keys
    assert count("gau") == 3 * 2 * (unit + 2 * 256)
    assert 1 < count("gau") / count("transformer") < 1.2


@pytest.mark.parametrize("name", ["vit_small_bigvision_i1k", "vit_small_bigvision_i21k"])
def test_gated_units_get_the_initial_weights_of_big_vision(name):
    """The block accepts the GELU of the shape, which it does not use, but no other activation."""
    shape = {**architectures[name], **SMALL, "embed_dim": 64}
    config = VisionTransformerConfig.of(**shape, block="gau", attention=ATTENTION["gau"])
    torch.manual_seed(0)
    [unit, _] = VisionTransformer(config, 5).blocks[0].units
    for weight, width in zip(unit.matrices(), (128, 128, 128, 64), strict=True):
        assert weight.size(0) == width
        xavier = (2 / sum(weight.shape)) ** 0.5
        assert weight.std().item() == pytest.approx(xavier, rel=0.05)
    with pytest.raises(ConfigError, match="no feed-forward network"):
        VisionTransformer(replace(config, feed_forward="relu"), 5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": "softmax"}, "works with --attention pointwise:h=relu2 .* not with"),
        ({"attention": "pointwise:gate=silu"}, "has a gate of its own"),
        ({"attention": "pointwise:output_norm=true"}, "no joined heads; leave out output_norm"),
        ({"activation_dropout": 0.1}, "no feed-forward network; leave out --activation-dropout"),
        ({"feed_forward": "swiglu"}, "no feed-forward network"),
    ],
)
def test_settings_that_gated_units_cannot_use_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        make_model("gau", **settings)


@pytest.mark.parametrize("settings", [{"feed_forward": "swiglu"}, {"norm": "rms"}])
def test_feed_forward_networks_and_norms_come_from_the_registries(settings):
    model = make_model(**settings)
    kinds = {type(module).__name__ for module in model.modules()}
    assert "RMSNorm" in kinds or all(block.layer.feed_forward.gated for block in model.blocks)
    assert ("RMSNorm" in kinds) != any(isinstance(m, nn.LayerNorm) for m in model.modules())
