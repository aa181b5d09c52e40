"""The attention maps of image classifiers."""

import numpy as np
import pytest
import torch
from PIL import Image

from relu_nmt import ImageClassifier
from relu_nmt.errors import ConfigError
from relu_nmt.vision.base import build_vision_model
from relu_nmt.vision.config import PreprocessingConfig, VisionTransformerConfig
from relu_nmt.vision.transforms import ImageTransform
from tests.unit.vision.families import SMALL

SIZE = (12, 20)
PATCH = 4
GRID = (3, 5)
SHAPE = {"layers": 2, "embed_dim": 16, "heads": 2, "image_size": SIZE, "patch_size": PATCH}


def tiny_classifier(**settings):
    torch.manual_seed(0)
    shape = {} if "family" in settings else SHAPE
    config = VisionTransformerConfig(**{**shape, **settings})
    transform = ImageTransform(PreprocessingConfig(), config.image_size)
    return ImageClassifier(build_vision_model(config, 2), ("cat", "dog"), transform, "cpu")


@pytest.fixture(scope="module")
def photo():
    pixels = np.random.default_rng(1).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_weights_of_the_first_layer_are_softmax_of_its_queries_and_keys(photo):
    classifier = tiny_classifier(pooling="class")
    model = classifier.model
    attention = classifier.attention(photo, layer=0)
    # Compute them from the parameters, in float64.
    view = torch.from_numpy(classifier.transform.evaluation(photo))[None]
    patches, _ = model.patches(view)
    x = torch.cat([model.class_token, patches], dim=1) + model.positions
    layer = model.blocks[0].layer
    normed = layer.self_attention_residual.before(x)
    q, k, _ = layer.self_attention.qkv(normed)[0].double().chunk(3, dim=-1)
    for head, part in enumerate((slice(0, 8), slice(8, 16))):
        expected = (q[:, part] @ k[:, part].T / 8**0.5).softmax(-1)
        assert attention.weights[head] == pytest.approx(expected.detach().numpy(), abs=1e-6)
    # The map is the row of the class token, without its own key.
    expected_map = attention.weights[:, 0, 1:].reshape((2, *GRID))
    assert attention.over_image() == pytest.approx(expected_map)
    assert (attention.layer, attention.head, attention.grid) == (0, None, GRID)


def test_a_model_without_class_token_shows_the_mean_of_its_queries(photo):
    classifier = tiny_classifier(pooling="mean", attention="reluformer")
    attention = classifier.attention(photo, head=1)
    assert attention.layer == 1
    assert attention.weights.shape == (15, 15)
    assert (attention.weights == 0).any()
    expected = attention.weights.mean(0).reshape(GRID)
    assert attention.over_image() == pytest.approx(expected)


def test_pixels_are_those_of_the_view(photo):
    attention = tiny_classifier().attention(photo)
    assert np.abs(attention.pixels.astype(int) - np.asarray(photo).astype(int)).max() <= 1


def test_class_attention_of_xcit_has_a_map_and_channels_have_none(photo):
    classifier = tiny_classifier(family="xcit", attention="xca", **SHAPE)
    attention = classifier.attention(photo)
    assert attention.weights.shape[1] == 1
    assert attention.over_image().shape == (2, *attention.grid)
    assert attention.weights.sum(-1) == pytest.approx(1, abs=1e-5)
    with pytest.raises(ConfigError, match="attention layer 0: it has no matrix of weights"):
        classifier.attention(photo, layer=0)


def test_the_keys_of_cvt_are_a_quarter_of_its_patches(photo):
    classifier = tiny_classifier(family="cvt", **SMALL["cvt"])
    first = classifier.attention(photo, layer=0)
    assert first.weights.shape == (1, 16, 4)
    assert first.over_image().shape == (1, 2, 2)
    # The last stage has a class token and 2 x 2 patches, of which one key is left.
    last = classifier.attention(photo)
    assert last.weights.shape == (2, 5, 2)
    assert last.over_image().shape == (2, 1, 1)
    # One key is left of 1 x 2 patches. With the class token there are as many keys as patches.
    wide = tiny_classifier(family="cvt", **{**SMALL["cvt"], "image_size": (8, 16)})
    assert wide.attention(photo).over_image().shape == (2, 1, 1)


def test_windows_have_no_map_over_the_image(photo):
    classifier = tiny_classifier(family="swin", **SMALL["swin"])
    with pytest.raises(ConfigError, match="attention layer 0: it attends inside windows"):
        classifier.attention(photo, layer=0)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"layer": 2}, "attention layer 2: the layers are 0 to 1"),
        ({"layer": -3}, "attention layer -3: the layers are 0 to 1"),
        ({"head": 2}, "attention layer 1, head 2: its heads are 0 to 1"),
    ],
)
def test_a_missing_layer_or_head_is_refused(photo, place, message):
    with pytest.raises(ConfigError, match=message):
        tiny_classifier().attention(photo, **place)


def test_a_picture_has_a_panel_for_the_image_and_each_head(photo, tmp_path):
    attention = tiny_classifier(attention="reluformer").attention(photo)
    attention.save(tmp_path / "photo.svg")
    text = (tmp_path / "photo.svg").read_text("utf-8")
    assert text.count("<image") == 3
    assert "image" in text and "layer 1, head 0" in text and "layer 1, head 1" in text
    with pytest.raises(ConfigError, match=r"photo.png: maps are drawn as SVG"):
        attention.save(tmp_path / "photo.png")
