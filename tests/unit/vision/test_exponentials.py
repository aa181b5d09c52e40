"""Models without exponentials: every operator of the graph is looked at."""

import pytest
import torch
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from tests.unit.vision.families import small_model

EXPONENTIALS = {"exp", "exp2", "expm1", "erf", "tanh", "sigmoid", "log", "log1p"}
"""Operators in softmax, GELU and other activations. No operator here contains another."""
FREE = {
    "vit": {"attention": "sima", "feed_forward": "relu"},
    "xcit": {
        **{"attention": "sima", "class_attention": "sima"},
        **{"feed_forward": "relu", "conv_activation": "relu"},
    },
    "swin": {"attention": "sima", "feed_forward": "relu"},
    "cvt": {"attention": "sima", "feed_forward": "relu"},
}


EXPONENTIALS_INSIDE = {"gelu": "erf", "_softmax": "exp", "_log_softmax": "exp"}
"""GELU and softmax may stay whole, as they are operators of their own."""


def operators(model):
    """Return the names of the ATen operators that the model makes logits of images with."""
    table = core_aten_decompositions()
    with torch.no_grad():
        graph = make_fx(lambda images: model(images).logits, table)(torch.randn(2, 3, 16, 16))
    names = set()
    for node in graph.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            names.add(node.target.overloadpacket.__name__)
    return names | {EXPONENTIALS_INSIDE.get(name, name) for name in names}


@pytest.mark.parametrize("attention", ["sima", "pointwise:h=relu", "polynomial:power=3"])
@pytest.mark.parametrize("family", FREE)
def test_sima_or_pointwise_attention_with_relu_has_no_exponential(family, attention):
    names = operators(small_model(family, **{**FREE[family], "attention": attention}).eval())
    assert {"relu", "bmm"} <= names
    assert not names & EXPONENTIALS


@pytest.mark.parametrize(
    ("family", "part", "value"),
    [
        ("vit", "attention", "softmax"),
        ("vit", "feed_forward", "gelu"),
        ("vit", "feed_forward", "gelu-tanh"),
        ("vit", "tanh_layer", "true"),
        ("xcit", "attention", "xca"),
        ("xcit", "class_attention", "softmax"),
        ("xcit", "conv_activation", "gelu"),
        ("xcit", "feed_forward", "silu"),
        ("cvt", "feed_forward", "quick-gelu"),
        ("swin", "attention", "softmax"),
    ],
)
def test_each_part_with_an_exponential_is_found(family, part, value):
    assert operators(small_model(family, **{**FREE[family], part: value}).eval()) & EXPONENTIALS
