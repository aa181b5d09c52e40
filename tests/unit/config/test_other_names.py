"""Advice on common names of registered parts."""

import pytest

from relu_nmt.attention import attentions
from relu_nmt.attention.base import build_attention
from relu_nmt.attention.pointwise import pointwise_maps
from relu_nmt.config.registry import OTHER_NAMES, Registry, Spec
from relu_nmt.config.yaml_text import parse_yaml
from relu_nmt.errors import ConfigError
from relu_nmt.modules import feed_forwards, norms, position_schemes
from relu_nmt.tokenization.base import subword_models
from relu_nmt.training import OPTIMIZERS, SCHEDULES
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.search import scorers
from relu_nmt.vision import vision_models
from relu_nmt.vision.config import VisionTransformerConfig

REGISTRIES: list[Registry] = [
    *(attentions, pointwise_maps, feed_forwards, norms, position_schemes, subword_models),
    *(OPTIMIZERS, SCHEDULES, scorers, vision_models),
]
KNOWN = {registry.kind: registry for registry in REGISTRIES}
ADVICE = []
for kind, table in parse_yaml(OTHER_NAMES.read_text("utf-8")).items():
    for advice, other_names in table.items():
        if advice:
            ADVICE.append(pytest.param(KNOWN[kind], advice, other_names, id=f"{kind}-{advice}"))


@pytest.mark.parametrize(("registry", "advice", "other_names"), ADVICE)
def test_advice_on_a_common_name_can_be_typed(registry, advice, other_names):
    for other in other_names.split():
        assert other not in advice.split(" or "), "a name needs no advice to take itself"
        if other not in registry.names():
            with pytest.raises(ConfigError, match=f"did you mean {advice}"):
                registry.check(other)
    for suggestion in advice.split(" or "):
        registry.check(suggestion)
        if registry is attentions:
            build_attention(Spec.parse(suggestion), "encoder", 0, 2, 8, 0.0, "--attention")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("relu", "did you mean reluformer or pointwise:h=relu?"),
        ("ReLU-attention", "did you mean reluformer or pointwise:h=relu?"),
        ("ReLU²", "did you mean reluformer:power=2 or pointwise:h=relu2?"),
        ("squared_relu", "did you mean reluformer:power=2 or pointwise:h=relu2?"),
        ("Nyström", "did you mean nystromformer?"),
        ("entmax-1.5", "did you mean entmax15?"),
        ("SoftMax", "did you mean softmax?"),
        ("longformer", "choose one of:"),
    ],
)
def test_an_unknown_attention_gets_the_name_that_is_meant(name, advice):
    with pytest.raises(ConfigError) as caught:
        attentions.check(name)
    assert f"; {advice}" in str(caught.value)


@pytest.mark.parametrize("config", [TransformerConfig, VisionTransformerConfig])
def test_settings_of_text_and_images_give_the_same_advice(config):
    with pytest.raises(ConfigError, match="did you mean reluformer or pointwise:h=relu"):
        config(attention="relu")
