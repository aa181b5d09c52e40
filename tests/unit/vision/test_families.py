"""Every family of vision transformers. With every attention: test_pairs.py."""

import copy

import pytest
import torch

from relu_nmt.attention.base import Need
from relu_nmt.attention.records import record_attention
from relu_nmt.config import from_dict, to_dict
from relu_nmt.errors import ConfigError
from relu_nmt.vision import vision_models
from relu_nmt.vision.base import build_vision_model
from relu_nmt.vision.config import VisionTransformerConfig
from tests.tiny import gradients, slots_of
from tests.unit.vision.families import pictures, small_model

every_family = pytest.mark.parametrize("family", vision_models.names())


@every_family
@pytest.mark.parametrize("size", [(9, 9), (17, 11), (5, 30), (33, 8)])
def test_families_take_images_of_odd_sizes(family, size):
    model = small_model(family).train()
    output = model(pictures(*size), blocks=[1])
    output.logits.square().sum().backward()
    assert output.logits.isfinite().all()
    [features] = output.intermediate.values()
    assert features.shape[0] == 3 and features.isfinite().all()
    # Patches of part of an image count as whole ones.
    if family in ("vit", "xcit"):
        assert features.shape == (3, 16, -(-size[0] // 4), -(-size[1] // 4))


@every_family
@pytest.mark.parametrize("sides", [(16, 8), (9, 14), (3, 20)])
def test_models_of_non_square_images(family, sides):
    model = small_model(family, image_size="x".join(map(str, sides)))
    assert model.config.image_sides == sides
    with record_attention(model, Need(statistics=True)) as records:
        output = model(pictures(*sides))
        model(pictures(*sides[::-1]))  # another size is taken, too
    output.logits.square().sum().backward()
    assert output.logits.isfinite().all()
    if family != "swin":  # whose windows are sequences
        rows = records[0].statistics
        assert model.num_tokens == (0 if rows is None else rows.total.size(2))


@every_family
def test_the_last_class_token_is_the_input_of_the_classifier(family):
    model = small_model(family).eval()
    count = model.config.num_blocks
    output = model(pictures(16, 16), blocks=range(count))
    assert output.intermediate.keys() | output.class_tokens.keys() == set(range(count))
    expected = {"vit": {0, 1}, "xcit": {2, 3}, "cvt": {1, 2}, "swin": set()}[family]
    assert output.class_tokens.keys() == expected
    if expected:
        torch.testing.assert_close(model.norm(output.class_tokens[count - 1]), output.features)


@every_family
def test_settings_and_weights_make_the_same_model_again(family):
    model = small_model(family, feed_forward="relu", drop_path=0.1).train()
    model(pictures())  # BatchNorm takes it in
    again = build_vision_model(from_dict(VisionTransformerConfig, to_dict(model.config)), 5)
    assert again.config == model.config
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.eval()(pictures()).logits, model.eval()(pictures()).logits)


@every_family
def test_a_batch_of_one_image_with_a_single_patch_trains(family):
    model = small_model(family).train()
    model(pictures(4, 4))
    statistics = copy.deepcopy(dict(model.named_buffers()))
    image = pictures(4, 4)[:1]
    logits = model(image).logits
    logits.square().sum().backward()
    grads = gradients(model).values()
    assert all(grad.isfinite().all() for grad in grads if grad is not None)
    if family == "cvt":  # whose maps are all 1 x 1
        torch.testing.assert_close(dict(model.named_buffers()), statistics, rtol=0, atol=0)
        torch.testing.assert_close(model.eval()(image).logits, logits)


@every_family
def test_activation_checkpointing_changes_nothing(family):
    """Neither gradients nor the statistics of BatchNorm, which sees every batch twice."""
    results = []
    for again in (False, True):
        model = small_model(family, checkpoint_activations=again, drop_path=0.3).train()
        torch.manual_seed(3)
        for _ in range(2):
            model(pictures()).logits.square().sum().backward()
        buffers = {n: b for n, b in model.named_buffers() if "num_batches" not in n}
        results.append(gradients(model) | buffers)
    torch.testing.assert_close(*results, rtol=0, atol=0)


@every_family
def test_every_attention_module_has_a_record_of_its_own(family):
    model = small_model(family)
    with record_attention(model, Need(statistics=True)) as records:
        model(pictures(16, 16))
    slots = slots_of(records)
    assert slots and len(set(slots)) == len(slots)


@pytest.mark.parametrize("family", [*vision_models.names(), "gau"])
def test_an_unknown_option_of_the_attention_is_reported_with_the_flag(family):
    with pytest.raises(ConfigError, match=r"^--attention pointwise:foo=1: unknown option 'foo'"):
        small_model(family, attention="pointwise:foo=1")


def test_an_unknown_option_of_class_attention_is_reported_with_the_flag():
    with pytest.raises(ConfigError, match=r"^--class-attention sima:foo=1: unknown option 'foo'"):
        small_model("xcit", class_attention="sima:foo=1")
