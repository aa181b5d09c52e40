"""Models without exponentials: every operator that runs is looked at."""

import pytest
import torch
from torch._decomp import core_aten_decompositions
from torch.utils._python_dispatch import TorchDispatchMode

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


DECOMPOSITIONS = core_aten_decompositions()


class OperatorNames(TorchDispatchMode):
    """Collect the names of the core ATen operators that run, of which the others are made."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = NotImplemented
        if operator in DECOMPOSITIONS:
            with self:
                result = DECOMPOSITIONS[operator](*args, **(kwargs or {}))
        if result is NotImplemented:
            self.names.add(operator.overloadpacket.__name__)
            result = operator(*args, **(kwargs or {}))
        return result


def operators(model):
    """Return the names of the ATen operators that the model makes logits of images with."""
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad(), OperatorNames() as mode:
        model(images)
    return mode.names | {EXPONENTIALS_INSIDE.get(name, name) for name in mode.names}


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
