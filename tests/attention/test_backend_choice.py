"""The choice of a back end, and errors of back ends that cannot run."""

import importlib.util
from typing import ClassVar

import pytest
import torch

from relu_nmt.attention.base import AttentionConfig, Backend, Need, build_attention, use_backend
from relu_nmt.attention.kernels import blockwise, reference
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.normalized import SoftmaxAttention
from relu_nmt.attention.pointwise import pointwise_maps
from relu_nmt.config.registry import Spec
from relu_nmt.errors import ConfigError, MissingExtraError
from tests.attention.helpers import make_attention, random_qkv
from tests.attention.test_backends import make_problem
from tests.outputs import containing


def problem_of(length, weights=False):
    qkv = random_qkv(1, length, length, heads=1, dim=2)
    return make_problem(pointwise_maps.get("relu"), qkv, need=Need(weights=weights))


def chosen(name, problem, attention="reluformer"):
    attend = make_attention(attention)
    use_backend(attend, name)
    return attend.backend_for(problem).solve


def test_auto_takes_the_reference_for_sentences_and_blocks_for_documents():
    assert chosen("auto", problem_of(30)) is reference.pointwise
    assert chosen("auto", problem_of(600)) is blockwise.pointwise
    assert chosen("reference", problem_of(600)) is reference.pointwise
    assert chosen("blockwise", problem_of(3)) is blockwise.pointwise


@pytest.mark.parametrize("name", ["auto", "blockwise"])
def test_weights_are_returned_by_every_back_end_name(name):
    problem = problem_of(600, weights=True)
    assert chosen(name, problem)(problem).weights.shape == (1, 1, 600, 600)


def test_every_attention_of_a_model_gets_the_back_end():
    model = torch.nn.ModuleList([make_attention("reluformer"), torch.nn.Linear(1, 1)])
    use_backend(model, "blockwise")
    assert [model[0].backend, make_attention("reluformer").backend] == ["blockwise", "auto"]
    assert not containing(model.state_dict(), "backend")
    with pytest.raises(ConfigError, match=r"--attention-backend fast: .* choose one of auto"):
        use_backend(model, "fast")


def test_triton_that_is_not_installed_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"relu-nmt\[triton\]"):
        chosen("triton", problem_of(3))


def test_triton_without_a_gpu_is_a_clear_error(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match="needs a GPU, but the model is on cpu"):
        chosen("triton", problem_of(3))


def test_an_unknown_back_end_is_an_error_that_lists_the_known_ones():
    for name, names in (
        ("softmax", "auto, fused, blockwise, reference"),
        ("sparsemax", "auto, blockwise, reference"),
        ("linear", "auto, reference"),
    ):
        message = f"triton: {name} has no such back end; .* {names}$"
        with pytest.raises(ConfigError, match=message):
            use_backend(make_attention(name), "triton")


def test_a_user_mechanism_can_have_its_own_back_end():
    used = []

    def solve(problem):
        used.append(problem.q.size(2))
        return reference.whole_rows(problem)

    class Own(SoftmaxAttention):
        backends: ClassVar = {"own": Backend(solve), "reference": Backend(reference.whole_rows)}

    attend = Own(AttentionConfig(), 2, 4, 0.0).double()
    use_backend(attend, "own")
    q, k, v = random_qkv(1, 3, 3)
    expected = make_attention("softmax")(q, k, v, Visibility(3, 3)).values
    torch.testing.assert_close(attend(q, k, v, Visibility(3, 3)).values, expected)
    assert used == [3]


def test_a_mechanism_knows_its_place():
    built = build_attention(Spec("softmax"), "cross", 3, 2, 4, 0.0)
    assert (built.name, built.slot, built.layer, built.backend) == ("softmax", "cross", 3, "auto")
    alone = SoftmaxAttention(AttentionConfig(), 2, 4, 0.0)
    assert (alone.name, alone.slot, alone.layer) == ("SoftmaxAttention", "encoder", 0)
