"""Which back end is chosen, and what is said when one cannot serve."""

import importlib.util

import pytest
import torch

from relu_nmt.attention.backends import blockwise, choice, reference
from relu_nmt.attention.backends.choice import choose_backend, set_attention_backend
from relu_nmt.attention.base import Need
from relu_nmt.attention.pointwise_maps import PointwiseMap
from relu_nmt.errors import ConfigError, MissingExtraError
from tests.attention.helpers import make_attention, random_qkv
from tests.attention.test_backends import make_problem


def problem_of(length, weights=False):
    qkv = random_qkv(1, length, length, heads=1, dim=2)
    return make_problem(PointwiseMap("relu"), qkv, need=Need(weights=weights))


def test_auto_takes_the_reference_for_sentences_and_blocks_for_documents():
    assert choose_backend("auto", problem_of(60)) is reference.pointwise
    assert choose_backend("auto", problem_of(600)) is blockwise.pointwise
    assert choose_backend("reference", problem_of(600)) is reference.pointwise
    assert choose_backend("blockwise", problem_of(3)) is blockwise.pointwise


@pytest.mark.parametrize("name", ["auto", "blockwise", "triton"])
def test_whoever_asks_for_weights_gets_them(name):
    problem = problem_of(600, weights=True)
    assert choose_backend(name, problem)(problem).weights.shape == (1, 1, 600, 600)


def test_every_attention_of_a_model_gets_the_back_end():
    model = torch.nn.ModuleList([make_attention("reluformer"), torch.nn.Linear(1, 1)])
    set_attention_backend(model, "blockwise")
    assert model[0].backend == "blockwise"
    assert not any("backend" in name for name in model.state_dict())
    with pytest.raises(ConfigError, match="--attention-backend fast: choose one of auto"):
        set_attention_backend(model, "fast")


def test_triton_that_is_not_installed_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for call in (
        lambda: set_attention_backend(make_attention("reluformer"), "triton"),
        lambda: choose_backend("triton", problem_of(3)),
    ):
        with pytest.raises(MissingExtraError, match=r"relu-nmt\[triton\]"):
            call()


def test_triton_without_a_gpu_is_a_clear_error(monkeypatch):
    monkeypatch.setattr(choice, "_has_triton", lambda: True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match="needs a GPU, but the model is on cpu"):
        choose_backend("triton", problem_of(3))
