import copy
import pickle

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from relu_nmt.engine import native, packed_linear
from relu_nmt.engine.decoder import projection_to
from relu_nmt.engine.packed_linear import PackedLinear, can_pack, pack_linear

pytestmark = pytest.mark.skipif(not can_pack(), reason="needs x86 and oneDNN")


@pytest.fixture(params=["kernel", "oneDNN"])
def product(request, monkeypatch):
    """What a product was asked for, as a list of numbers of rows."""
    calls, onednn, kernel = [], torch.ops.mkldnn._linear_pointwise, native.call

    def by_onednn(x, *arguments):
        assert request.param == "oneDNN"
        calls.append(x.numel() // x.shape[-1])
        return onednn(x, *arguments)

    def by_kernel(name, tensors, sizes):
        calls.append(sizes[0])
        return kernel(name, tensors, sizes)

    if request.param == "oneDNN":
        monkeypatch.setattr(native, "has_kernel", lambda name: False)
    elif not native.has_kernel("linear_float"):
        pytest.skip("needs the kernels, and AVX2")
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", by_onednn)
    monkeypatch.setattr(native, "call", by_kernel)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield calls
    torch.set_num_threads(threads)


@pytest.mark.skipif(native.library() is None, reason="needs the kernels")
@pytest.mark.parametrize(
    "kernel_form", [form for form in native.forms() if form != "any"], indirect=True
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the same for all
@given(rows=st.integers(1, 14), inputs=st.integers(1, 70), outputs=st.integers(1, 140))
def test_every_form_of_the_kernel_is_the_affine_map(kernel_form, rows, inputs, outputs):
    torch.manual_seed(rows)
    linear, x = nn.Linear(inputs, outputs), torch.randn(rows, inputs)
    with torch.no_grad():
        y = PackedLinear(linear, torch.float32).by_kernel(x)
        expected = x.double() @ linear.weight.double().T + linear.bias.double()
    torch.testing.assert_close(y.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("has_products", [True, False])
def test_bfloat16_is_packed_only_where_there_are_products_of_it(has_products, monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has_products)
    assert can_pack(torch.bfloat16) == has_products
    assert can_pack(torch.float32)
    assert not can_pack(torch.float16)
    model = nn.Sequential(nn.Linear(4, 4))
    if has_products and not native.has_kernel("linear_bfloat16"):
        pytest.skip("needs products of bfloat16, as of AVX512")
    pack_linear(model, torch.bfloat16)
    assert isinstance(model[0], PackedLinear) == has_products


DTYPES = [
    torch.float32,
    pytest.param(
        torch.bfloat16,
        marks=pytest.mark.skipif(
            not (can_pack(torch.bfloat16) and native.has_kernel("linear_bfloat16")),
            reason="needs the kernels, and AVX512-BF16",
        ),
    ),
]


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1,), (5,), (2, 3), (4, 1, 7), (320,)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_the_affine_map(dtype, bias, shape, product):
    torch.manual_seed(1)
    linear = nn.Linear(48, 40, bias=bias)
    x = torch.randn(*shape, 48)
    expected = x.double() @ linear.weight.double().T + (linear.bias.double() if bias else 0)
    packed = PackedLinear(linear, dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        y = packed(x)
        assert y.dtype == linear(x).dtype == dtype
    close = {"atol": 1e-5, "rtol": 0} if dtype == torch.float32 else {"atol": 0.03, "rtol": 0.02}
    torch.testing.assert_close(y.double(), expected, **close)
    assert len(product) == 1


@torch.no_grad()
def test_rows_of_another_width_are_refused():
    packed = PackedLinear(nn.Linear(16, 64), torch.float32)
    if not packed.has_kernel:
        pytest.skip("needs the kernels")
    with pytest.raises(ValueError, match="rows of 64 numbers for an affine map of 16"):
        packed.by_kernel(torch.randn(2, 64))


@torch.no_grad()
def test_what_changes_in_place_or_is_put_in_place_is_not_the_copy(product):
    linear, x = nn.Linear(6, 4), torch.randn(3, 6)
    packed = PackedLinear(linear, torch.float32)
    linear.bias += 1
    torch.testing.assert_close(packed(x), linear(x))
    packed = PackedLinear(linear, torch.float32)
    linear.weight.data = 2 * linear.weight.data
    torch.testing.assert_close(packed(x), linear(x))
    assert product == []


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
def test_copies_and_other_processes_pack_anew(again, product):
    model, x = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)), torch.randn(2, 6)
    names, expected = list(model.state_dict()), model(x)
    pack_linear(model, torch.float32)
    assert list(model.state_dict()) == names
    assert [type(part) for part in model] == [PackedLinear, nn.ReLU, PackedLinear]
    torch.testing.assert_close(again(model)(x), expected)
    assert product == [2, 2]
    assert len(pickle.dumps(model)) == len(pickle.dumps(again(model)))


@torch.no_grad()
@given(
    rows=st.integers(1, 20),
    groups=st.sampled_from([1, 2, 5, 128]),
    outputs=st.sampled_from([1, 15, 16, 17, 40, 63, 64, 65, 130]),
    bias=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_kernels_give_the_product_of_each_size(rows, groups, outputs, bias, dtype):
    if not native.has_kernel(f"linear_{native.DTYPES[dtype]}"):
        pytest.skip("needs the kernels")
    torch.manual_seed(rows)
    # Whole numbers, whose sums have no error: of 8 bits at most in bfloat16.
    x = torch.randint(-2, 3, (rows, 2 * groups)).to(dtype)
    linear = nn.Linear(2 * groups, outputs, bias=bias, dtype=dtype)
    linear.weight.copy_(torch.randint(-1, 2, linear.weight.shape))
    if bias:
        linear.bias.copy_(torch.randint(-9, 9, linear.bias.shape))
    exact = x.double() @ linear.weight.double().T + (linear.bias.double() if bias else 0)
    assert torch.equal(PackedLinear(linear, dtype).by_kernel(x), exact.to(dtype))


@torch.no_grad()
@pytest.mark.skipif(not can_pack(torch.bfloat16), reason="needs products of bfloat16")
def test_rows_that_are_no_whole_groups_are_for_onednn():
    linear, x = nn.Linear(5, 3), torch.randn(2, 5)
    packed = PackedLinear(linear, torch.bfloat16)
    assert packed._panels is None
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(packed(x), linear(x))


@torch.no_grad()
def test_several_threads_share_many_products(monkeypatch):
    monkeypatch.setattr(packed_linear, "MOST_PRODUCTS", 5 * 8 * 3)
    linear = nn.Linear(8, 3)
    packed = PackedLinear(linear, torch.float32)
    if packed._panels is None:
        pytest.skip("needs the kernels")
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    x = torch.randn(6, 8)
    torch.testing.assert_close(packed(x[1:]), linear(x[1:]))
    assert packed._packed is None
    torch.testing.assert_close(packed(x), linear(x))
    assert packed._packed is not None
    torch.set_num_threads(threads)


def test_machines_and_types_without_such_products_keep_the_model(monkeypatch):
    model = nn.Sequential(nn.Linear(6, 4))
    pack_linear(model, torch.float16)
    monkeypatch.setattr(packed_linear, "can_pack", lambda dtype: False)
    pack_linear(model, torch.float32)
    assert type(model[0]) is nn.Linear
