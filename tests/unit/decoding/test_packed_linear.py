import copy
import pickle

import pytest
import torch
from torch import nn

from relu_nmt.decoding import packed_linear
from relu_nmt.decoding.packed_linear import PackedLinear, can_pack, pack_linear
from relu_nmt.models.encoder_decoder import projection_to

pytestmark = pytest.mark.skipif(not can_pack(), reason="needs x86 and oneDNN")


@pytest.fixture
def product(monkeypatch):
    """What oneDNN was asked for, as a list of numbers of rows."""
    calls, real = [], torch.ops.mkldnn._linear_pointwise

    def counted(x, *arguments):
        calls.append(x.numel() // x.shape[-1])
        return real(x, *arguments)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", counted)
    return calls


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1,), (5,), (2, 3), (4, 1, 7), (320,)])
def test_it_is_the_affine_map(bias, shape, product):
    torch.manual_seed(1)
    linear = nn.Linear(48, 40, bias=bias)
    x = torch.randn(*shape, 48)
    expected = x.double() @ linear.weight.double().T + (linear.bias.double() if bias else 0)
    y = PackedLinear(linear, torch.float32)(x)
    torch.testing.assert_close(y.double(), expected, atol=1e-5, rtol=0)
    in_bfloat16 = PackedLinear(linear, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        y = in_bfloat16(x)
        assert y.dtype == linear(x).dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), expected, atol=0.03, rtol=0.02)
    assert len(product) == 2


@torch.no_grad()
def test_what_comes_in_need_not_be_contiguous(product):
    linear, x = nn.Linear(6, 4), torch.randn(6, 3, 2).permute(1, 2, 0)
    torch.testing.assert_close(PackedLinear(linear, torch.float32)(x), linear(x))
    assert product == [6]


@torch.inference_mode()  # as in a search, where what is made has no version
@pytest.mark.parametrize("bias", [True, False])
def test_its_rows_are_packed_too(bias, product):
    with torch.inference_mode(False):
        linear = nn.Linear(6, 9, bias=bias)
    x, rows = torch.randn(3, 6), torch.tensor([2, 3, 8])
    part = projection_to(PackedLinear(linear, torch.float32), rows)
    torch.testing.assert_close(part(x), linear(x)[:, rows])
    assert product == [3]
    moved = PackedLinear(linear, torch.float32).to("meta")
    assert type(moved.rows(rows.to("meta"))) is nn.Linear


def test_elsewhere_it_is_the_plain_map(product):
    linear = nn.Linear(6, 4)
    packed, x = PackedLinear(linear, torch.float32), torch.randn(3, 6)
    packed(x).sum().backward()
    assert linear.weight.grad is packed.weight.grad is not None
    with torch.no_grad():
        assert packed(x[:0]).shape == (0, 4)
        assert packed.to(torch.float64)(x.double()).dtype == torch.float64
    assert not product


@torch.no_grad()
def test_a_weight_that_has_changed_is_what_counts(product):
    linear = nn.Linear(6, 4)
    packed, x = PackedLinear(linear, torch.float32), torch.randn(3, 6)
    linear.weight.mul_(2)
    assert torch.equal(packed(x), linear(x))
    assert not product


@torch.no_grad()
@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_and_other_processes_have_the_plain_map(again, product):
    model, x = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)), torch.randn(2, 6)
    names, expected = list(model.state_dict()), model(x)
    pack_linear(model, torch.float32)
    assert list(model.state_dict()) == names
    assert [type(part) for part in model] == [PackedLinear, nn.ReLU, PackedLinear]
    assert torch.equal(again(model)(x), expected)
    assert not product


def test_machines_and_types_without_such_products_keep_the_model(monkeypatch):
    model = nn.Sequential(nn.Linear(6, 4))
    pack_linear(model, torch.float16)
    monkeypatch.setattr(packed_linear, "can_pack", lambda: False)
    pack_linear(model, torch.float32)
    assert type(model[0]) is nn.Linear
