"""examples/pinnsformer: the model's size, its equations, second derivatives, resuming."""

import doctest
import json
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from relu_nmt.attention import attentions
from relu_nmt.attention.normalized import SoftmaxAttention
from relu_nmt.errors import ConfigError
from tests.commands import command_line
from tests.example_modules import example_modules
from tests.outputs import assert_same_tensors, column
from tests.tiny import num_parameters

EXAMPLE = Path(__file__).parents[2] / "examples" / "pinnsformer"


@pytest.fixture(scope="module")
def example():
    with example_modules("pinnsformer", ["pinnsformer", "run"]) as modules:
        yield modules.run


def test_the_examples_of_the_docstrings_hold(example):
    assert doctest.testmod(sys.modules["pinnsformer"]).failed == 0


def size(model):
    return num_parameters(model)


def test_the_model_has_the_published_size(example):
    assert size(example.PinnsFormer("softmax", "softmax")) == 453_561
    assert size(example.PinnsFormer("polynomial:scale=dynamic", "polynomial")) == 453_562


class Exact(torch.nn.Module):
    """An equation's solution, times a factor."""

    def __init__(self, equation, factor=1.0):
        super().__init__()
        self.equation = equation
        self.factor = factor

    def forward(self, x, t):
        return self.factor * self.equation.exact(x, t)


@pytest.mark.parametrize("name", ["convection", "reaction"])
def test_the_solution_fulfils_its_equation_and_others_do_not(example, name):
    equation = example.EQUATIONS[name]
    points = example.Points(equation, 21, dtype=torch.float64)
    losses = points.losses(Exact(equation))
    assert losses["residual"] < 1e-15 and losses["initial"] < 1e-12
    # The bump of the reaction is 3e-4 at both ends, where its slopes differ in sign only.
    assert losses["boundary"] < 1e-10
    assert points.losses(Exact(equation, 1.1))["initial"] > 1e-4
    errors = points.errors(Exact(equation, 1.1))
    assert errors["rMAE"] == pytest.approx(0.1) and errors["rMSE"] == pytest.approx(0.1)
    # The errors count the first of the five steps.
    assert points.x.shape == points.t.shape == (441, 5, 1)
    torch.testing.assert_close(points.t[0].flatten(), torch.arange(5).double() * 1e-4)


@pytest.mark.parametrize("name", attentions.names())
def test_the_gradient_of_the_loss_is_its_slope_with_every_attention(example, name):
    able = attentions.get(name).capabilities
    if not able.double_backward:
        pytest.skip("has no second derivatives")
    torch.manual_seed(0)
    model = example.PinnsFormer(name, name if able.cross else "softmax").double().eval()
    points = example.Points(example.EQUATIONS["convection"], 3, dtype=torch.float64)
    parameters = [p for n, p in model.named_parameters() if ".attention." in n]
    directions = list(map(torch.randn_like, parameters))

    def loss(step=0.0):
        with torch.no_grad():
            for p, direction in zip(parameters, directions, strict=True):
                p.add_(direction, alpha=step)
        return sum(points.losses(model).values())

    gradients = torch.autograd.grad(loss(), parameters)
    expected = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    step = 1e-6
    above, below = loss(step), loss(-2 * step)
    slope = (above - below) / (2 * step)
    assert slope.item() == pytest.approx(expected.item(), rel=2e-4, abs=1e-5)
    assert abs(expected.item()) > 1e-3


def test_an_attention_without_second_derivatives_is_refused(example, monkeypatch):
    monkeypatch.setattr(
        SoftmaxAttention,
        "capabilities",
        replace(SoftmaxAttention.capabilities, double_backward=False),
    )
    with pytest.raises(ConfigError, match="softmax: its gradients cannot be differentiated again"):
        example.PinnsFormer("softmax", "softmax")
    with pytest.raises(ConfigError, match="no cross form"):
        example.PinnsFormer("sima", "sima")


@pytest.fixture
def short_steps(monkeypatch):
    """Let a step of L-BFGS have three iterations, of which the last two use its memory."""
    monkeypatch.setattr(torch.optim, "LBFGS", partial(torch.optim.LBFGS, max_iter=3))


def command(example, out, *flags):
    small = f"--points 4 --test-points 3 --equations reaction --attentions softmax --out {out}"
    return example.main(command_line([small.split(), flags]))


def test_a_stopped_training_resumes_exactly(example, short_steps, tmp_path, capsys):
    assert command(example, tmp_path / "whole", "--steps", "2", "--save-interval", "1") == 0
    assert command(example, tmp_path / "parts", "--steps", "1") == 0
    capsys.readouterr()
    assert command(example, tmp_path / "parts", "--steps", "2") == 0
    assert capsys.readouterr().out.count("softmax: go on from step 1\n") == 1
    case = Path("reaction/softmax")
    models = []
    results = []
    for folder in (tmp_path / "whole" / case, tmp_path / "parts" / case):
        models.append(torch.load(folder / "checkpoint.pt", weights_only=True)["model"])
        results.append(json.loads((folder / "results.json").read_text()))
        assert results[-1].pop("seconds") > 0
    assert_same_tensors(*models)
    full, parts = results
    assert full == parts and full["steps"] == 2
    assert full["course"][1]["loss"] < full["course"][0]["loss"]
    last = full["course"][1]
    assert full["loss"] == pytest.approx(last["residual"] + last["boundary"] + last["initial"])
    report = (tmp_path / "parts" / "report.md").read_text()
    assert f"{full['rMAE']:.1e}" in report and "3.8e-06 | 3.1e-02 | 5.8e-02" in report
    capsys.readouterr()
    assert command(example, tmp_path / "parts", "--seed", "2") == 2
    assert "made with seed 1, not 2; choose another --out" in capsys.readouterr().err


def test_a_training_continues_in_float64(example, short_steps, tmp_path):
    assert command(example, tmp_path / "single", "--steps", "1") == 0
    shutil.copytree(tmp_path / "single", tmp_path / "double")
    results = {}
    for name, flags in (("single", []), ("double", ["--double"])):
        assert command(example, tmp_path / name, "--steps", "2", flags) == 0
        folder = tmp_path / name / "reaction" / "softmax"
        results[name] = json.loads((folder / "results.json").read_text())
    assert column(results.values(), "double") == [False, True]
    single, double = column(results.values(), "course")
    assert single[0] == double[0]
    assert double[1]["loss"] == pytest.approx(single[1]["loss"], rel=0.05)
    assert double[1]["loss"] != single[1]["loss"]
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    [memory] = state["optimizer"]["state"].values()
    numbers = [*state["model"].values(), memory["d"], *memory["old_dirs"], *memory["old_stps"]]
    assert {x.dtype for x in numbers} == {torch.float64}


def test_published_numbers_need_one_attention_for_encoder_and_decoder(
    example, short_steps, tmp_path
):
    for name, flags in (("same", ["softmax"]), ("other", ["pointwise:h=relu"])):
        out = tmp_path / name
        assert command(example, out, "--steps", "1", "--cross-attention", flags) == 0
        [*_, row] = (out / "report.md").read_text().splitlines()
        assert row.startswith(f"| `softmax` | `{flags[0]}` | 4 | 1 | 1 | ")
        published = "3.8e-06 | 3.1e-02 | 5.8e-02" if name == "same" else "- | - | -"
        assert row.endswith(f"| {published} |")


def test_errors_are_one_line(example, tmp_path, capsys):
    assert command(example, tmp_path, "--attentions", "softmix") == 2
    assert "softmix" in capsys.readouterr().err
    folder = tmp_path / "reaction" / "softmax"
    folder.mkdir(parents=True)
    (folder / "checkpoint.pt").write_bytes(b"no checkpoint")
    assert command(example, tmp_path) == 2
    error = capsys.readouterr().err
    assert "checkpoint.pt: damaged" in error and error.count("\n") == 1
