import pytest
import torch
import torch.nn.functional as F

from relu_nmt.attention import attentions
from relu_nmt.attention.base import Need
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.records import record_attention
from relu_nmt.errors import ConfigError
from relu_nmt.jobs.vision_train.settings import ImageTrainingSettings
from relu_nmt.modules.config import TransformerOptions
from relu_nmt.modules.transformer_layer import drop_path
from relu_nmt.vision.base import Grid, build_vision_model, resize_positions
from relu_nmt.vision.config import VisionTransformerConfig, architectures
from relu_nmt.vision.vision_transformer import PatchEmbedding, VisionTransformer
from tests.tiny import num_parameters, slots_of
from tests.unit.vision.families import without_decay

QK_NORM = {"attention": "pointwise:h=relu"}
LARGER = {**QK_NORM, "num_classes": 21_843}
SMALL = {"image_size": 8, "patch_size": 4, "embed_dim": 16, "layers": 2, "heads": 2}


def small_model(**settings):
    torch.manual_seed(0)
    return VisionTransformer(VisionTransformerConfig(**{**SMALL, **settings}), num_classes=5)


def count(arch, num_classes=1000, **settings):
    config = VisionTransformerConfig.of(**{**architectures[arch], **settings})
    with torch.device("meta"):
        model = VisionTransformer(config, num_classes)
    return num_parameters(model)


@pytest.mark.parametrize(
    ("arch", "settings", "expected"),
    [
        ("vit_ti", {}, 5_717_416),
        ("deit_ti", {}, 5_717_416),
        ("vit_s", {}, 22_050_664),
        ("deit_b", {}, 86_567_656),
        ("vit_s", {"patch_size": 32}, 22_878_952),
        ("vit_s", {"patch_size": 8}, 22_055_272),
        ("vit_b", {"patch_size": 32}, 88_224_232),
        ("vit_l", {}, 304_326_632),
        ("vit_ti", {"image_size": 64, "patch_size": 4, "num_classes": 200}, 5_436_296),
        ("vit_ti", {"image_size": 64, "patch_size": 8, "num_classes": 200}, 5_427_080),
        ("vit_ti", {"image_size": 64, "patch_size": 16, "num_classes": 200}, 5_528_456),
        # Big Vision, with norms of queries and keys, on ImageNet-1k and on ImageNet-21k.
        ("vit_small_bigvision_i1k_patch32_224", QK_NORM, 23_027_944),
        ("vit_small_bigvision_i1k_patch16_224", QK_NORM, 22_199_656),
        ("vit_small_bigvision_i1k_patch8_224", QK_NORM, 22_204_264),
        ("vit_base_bigvision_i1k_patch32_224", QK_NORM, 88_815_592),
        ("vit_base_bigvision_i1k", QK_NORM, 87_159_016),
        ("vit_large_bigvision_i1k", QK_NORM, 305_378_280),
        ("vit_small_bigvision_i21k_patch32_224", LARGER, 30_904_275),
        ("vit_small_bigvision_i21k_patch16_224", LARGER, 30_075_987),
        ("vit_small_bigvision_i21k_patch8_224", LARGER, 30_080_595),
        ("vit_base_bigvision_i21k_patch32_224", LARGER, 104_252_499),
        ("vit_base_bigvision_i21k", LARGER, 102_595_923),
        ("vit_large_bigvision_i21k", LARGER, 325_691_731),
        # Without the class token there is neither it nor its position.
        ("vit_ti", {"pooling": "mean"}, 5_717_416 - 2 * 192),
    ],
)
def test_parameter_counts_match_the_paper(arch, settings, expected):
    assert count(arch, **settings) == expected


def test_every_preset_gives_a_model_and_an_unknown_one_is_an_error():
    for values in architectures.values():
        VisionTransformerConfig.of(**values)
    with pytest.raises(ConfigError, match=r"--arch vit_x: expected one of .* did you mean vit_s"):
        ImageTrainingSettings(data="x", arch="vit_x")


def test_shared_options_have_the_flags_of_translation():
    config = VisionTransformerConfig.of(
        activation_fn="silu", relu_dropout=0.2, encoder_attention="reluformer"
    )
    assert isinstance(config, TransformerOptions)
    assert (config.feed_forward, config.activation_dropout) == ("silu", 0.2)
    assert (config.attention, config.dropout) == ("reluformer", 0.0)


@pytest.mark.parametrize(("sides", "size"), [((4, 4), (8, 12)), ((4, 2), (8, 6)), ((4, 4), (7, 9))])
def test_the_patch_embedding_is_a_convolution_of_the_padded_image(sides, size):
    torch.manual_seed(0)
    embedding = PatchEmbedding(sides, embed_dim=6)
    images = torch.randn((2, 3, *size))
    patches, grid = embedding(images)
    padded = torch.zeros(2, 3, grid.height * sides[0], grid.width * sides[1])
    padded[:, :, : size[0], : size[1]] = images
    weight = embedding.projection.weight.view((6, 3, *sides))
    expected = F.conv2d(padded, weight, embedding.projection.bias, stride=sides)
    assert tuple(grid) == tuple(expected.shape[2:])
    torch.testing.assert_close(patches, expected.flatten(2).transpose(1, 2))


@pytest.mark.parametrize("pooling", ["class", "mean"])
@pytest.mark.parametrize("block", ["transformer", "gau"])
def test_positions_are_interpolated_for_images_of_any_size(block, pooling):
    attention = "pointwise:h=relu2" if block == "gau" else "softmax"
    model = small_model(block=block, attention=attention, pooling=pooling, patch_size=(4, 2)).eval()
    assert model.grid == Grid(2, 4)
    for size, grid in [((8, 8), (2, 4)), ((8, 12), (2, 6)), ((17, 5), (5, 3)), ((1, 1), (1, 1))]:
        output = model(torch.randn((2, 3, *size)), blocks=[0])
        assert output.logits.isfinite().all()
        assert output.intermediate[0].shape == (2, 16, *grid)
    # The class token's position stays, and a linear slope stays one where it is read twice as fine.
    positions = torch.arange(8.0).view(2, 4, 1).expand(2, 4, 16).flatten(0, 1)
    with torch.no_grad():
        model.positions[-8:] = positions
    resized = resize_positions(model.positions, model.grid, Grid(2, 8))
    assert torch.equal(resized[:-16], model.positions[:-8])
    row = resized[-16:].view(2, 8, 16)[0, :, 0]
    torch.testing.assert_close(row[3:5], torch.tensor([1.25, 1.75]), atol=0.02, rtol=0)


def test_positions_of_a_coarser_grid_are_means():
    """With antialiasing a checkerboard averages out."""
    board = torch.tensor([[1.0, -1.0] * 4, [-1.0, 1.0] * 4] * 4).flatten()[:, None]
    small = resize_positions(board, Grid(8, 8), Grid(2, 2))
    assert small.abs().max() < 0.2


@pytest.mark.parametrize("pooling", ["class", "mean"])
def test_big_vision_has_its_initial_weights_and_no_position_of_the_class_token(pooling):
    torch.manual_seed(0)
    values = {
        **architectures["vit_base_bigvision_i1k"],
        **SMALL,
        "embed_dim": 64,
        "pooling": pooling,
    }
    model = build_vision_model(VisionTransformerConfig.of(**values), 5).eval()
    assert model.positions.shape == (4, 64)
    assert model.positions.std().item() == pytest.approx(1 / 8, rel=0.15)
    weights = model.state_dict()
    assert not weights["head.weight"].any() and torch.all(weights["head.bias"] == -6.9)
    first = "blocks.0.layer.self_attention.qkv.weight"
    assert weights[first].std().item() == pytest.approx(1 / 8, rel=0.05)  # Xavier, D to D
    inner = "blocks.1.layer.feed_forward.inner"
    assert weights[f"{inner}.weight"].std().item() == pytest.approx((2 / 320) ** 0.5, rel=0.05)
    assert weights[f"{inner}.bias"].std().item() == pytest.approx(1e-6, rel=0.2)
    for name in ("patches.projection", "tanh_layer"):
        weight = weights[f"{name}.weight"]
        assert weight.std().item() == pytest.approx(weight.size(1) ** -0.5, rel=0.05), name
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    images = torch.randn(2, 3, 8, 8)
    block_inputs = []
    model.blocks[0].register_forward_pre_hook(lambda _, inputs: block_inputs.append(inputs[0]))
    output = model(images)
    x = model.patches(images)[0] + model.positions
    if pooling == "class":
        x = torch.cat([model.class_token.expand(2, 1, 64), x], 1)
    torch.testing.assert_close(block_inputs[0], x)
    for block in model.blocks:
        x = block(x, Visibility(x.size(1), x.size(1)), Grid(2, 2))
    x = model.norm(x)
    features = model.tanh_layer(x[:, 0] if pooling == "class" else x.mean(1)).tanh()
    torch.testing.assert_close(output.features, features)
    torch.testing.assert_close(output.logits, model.head(features))
    # Images of another size, too, have positions for their patches only.
    assert model(torch.randn(2, 3, 12, 16)).logits.isfinite().all()
    assert resize_positions(model.positions, model.grid, Grid(3, 4)).shape == (12, 64)


def test_names_can_end_with_patch_and_image_sizes():
    small = architectures["vit_small"]
    assert architectures["vit_small_patch16_224"] == {**small, "patch_size": 16, "image_size": 224}
    assert architectures["vit_small_p8"] == {**small, "patch_size": 8}
    assert architectures["deit_tiny_patch16x8_64"]["patch_size"] == (16, 8)
    assert architectures["vit_s_384"] == {**small, "image_size": 384}
    for name in ("vit_small_patch", "vit_small_patch16_window7_224", "vit_small_x", "vit", ""):
        assert name not in architectures
    settings = ImageTrainingSettings.of(data="d", arch="vit_small_patch32_384", patch_size="16x8")
    assert (settings.model.patch_size, settings.model.image_size) == ((16, 8), (384,))
    assert settings.model.embed_dim == 384
    # An attention's preset goes with every shape, in any order.
    settings = ImageTrainingSettings.of(data="d", attention_preset="reluformer", arch="vit_s_32")
    assert (settings.model.attention, settings.model.image_size) == ("reluformer:gamma=8", (32,))


@pytest.mark.parametrize("pooling", ["class", "mean"])
def test_the_forward_pass_matches_the_formula(pooling):
    model = small_model(layers=1, pooling=pooling).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    x, _ = model.patches(images)
    if pooling == "class":
        x = torch.cat([model.class_token.expand(2, 1, 16), x], 1)
    x = x + model.positions
    layer = model.blocks[0].layer

    def norm(module, y):
        y = y - y.mean(-1, keepdim=True)
        return y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * module.weight + module.bias

    y = norm(layer.self_attention_residual.norm, x)
    qkv = layer.self_attention.qkv(y)
    heads = []
    for head in range(2):
        q, k, v = qkv.unflatten(-1, (3, 2, 8))[:, :, :, head].unbind(2)
        heads.append((q @ k.transpose(1, 2) / 8**0.5).softmax(-1) @ v)
    x = x + layer.self_attention.out_proj(torch.cat(heads, -1))
    y = layer.feed_forward.inner(norm(layer.feed_forward_residual.norm, x))
    x = x + layer.feed_forward.outer(0.5 * y * (1 + torch.erf(y / 2**0.5)))
    x = norm(model.norm, x)
    features = x[:, 0] if pooling == "class" else x.mean(1)
    output = model(images)
    torch.testing.assert_close(output.features, features)
    torch.testing.assert_close(output.logits, model.head(features).float())


@pytest.mark.parametrize("name", attentions.names())
@pytest.mark.parametrize("pooling", ["class", "mean"])
def test_every_attention_works_in_a_vit(name, pooling):
    model = small_model(attention=name, pooling=pooling).train()
    output = model(torch.randn(3, 3, 8, 8))
    assert output.logits.shape == (3, 5)
    F.cross_entropy(output.logits, torch.tensor([0, 1, 2])).backward()
    assert torch.isfinite(output.logits).all()
    for parameter_name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert torch.isfinite(parameter.grad).all(), parameter_name
    assert model.blocks[0].layer.self_attention.qkv.weight.grad.abs().sum() > 0


def test_initial_weights_follow_vit():
    model = small_model(embed_dim=128, layers=1)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            # 5 x 128 positions are the fewest: 3 standard errors of a deviation are 8 %.
            assert parameter.std().item() == pytest.approx(0.02, rel=0.25), name
        else:
            assert torch.all(parameter == float("norm" in name and "weight" in name)), name


def test_weight_decay_spares_norms_biases_positions_and_the_class_token():
    exempt = without_decay(small_model())
    assert {"class_token", "positions", "norm.weight", "head.bias"} <= exempt
    matrices = {"head.weight", "patches.projection.weight"}
    matrices.add("blocks.0.layer.self_attention.qkv.weight")
    assert not matrices & exempt


def test_every_block_has_a_record_if_requested():
    model = small_model()
    images = torch.randn(3, 3, 8, 8)
    with record_attention(model, Need(statistics=True, weights=True)) as records:
        model(images)
    assert slots_of(records) == [("encoder", 0), ("encoder", 1)]
    for record in records:
        torch.testing.assert_close(record.statistics.total, torch.ones(3, 2, 5))
        assert record.weights.shape == (3, 2, 5, 5)
        assert record.visibility.counts.item() == 5


def test_drop_path_skips_images_and_keeps_the_mean():
    torch.manual_seed(0)
    output = drop_path(torch.ones(4000, 2, 3), 0.25)
    assert output.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert torch.all(output == output[:, :1, :1])
    # Standard error of the mean: sqrt(.25 * .75 / 4000) * 4/3 = .009.
    assert output.mean().item() == pytest.approx(1, abs=0.04)


def test_the_rate_of_drop_path_grows_linearly_over_the_blocks():
    model = small_model(layers=3, drop_path=0.2)
    rates = [block.layer.self_attention_residual.drop_path for block in model.blocks]
    assert rates == pytest.approx([0, 0.1, 0.2])
    [only] = small_model(layers=1, drop_path=0.2).blocks  # in a CvT, say, whose last stage is short
    assert only.layer.self_attention_residual.drop_path == 0.2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patch_size": (4, 4, 4)}, "--patch-size 4x4x4: expected one number, or height and width"),
        ({"image_size": "5x"}, "--image-size: '5x': expected one number, or height and width"),
        ({"image_size": "24,18"}, "--image-size: '24,18': expected one number, or height and"),
        ({"image_size": ""}, "--image-size: '': expected one number, or height and width"),
        ({"image_size": "9x0"}, "--image-size 9x0: expected 1 to 100000"),
        ({"embed_dim": 100, "heads": 3}, "--embed-dim 100 must be a multiple of --heads 3"),
        ({"layers": 0}, "--layers 0: expected 1 to 10000"),
        ({"drop_path": 1.0}, "--drop-path 1: expected 0 to below 1"),
    ],
)
def test_contradicting_settings_are_errors(settings, message):
    with pytest.raises(ConfigError, match=message):
        VisionTransformerConfig(**settings)
