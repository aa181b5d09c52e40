import copy
import pickle

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from relu_nmt.engine import linear as affine
from relu_nmt.engine import native
from relu_nmt.engine.linear import PackedLinear, can_pack, pack_linear

pytestmark = pytest.mark.skipif(not can_pack(), reason="needs x86 and oneDNN")


@pytest.fixture(params=["kernel", "oneDNN"])
def product(request, monkeypatch):
    """The number of rows of each product that was computed."""
    calls = []
    onednn = torch.ops.mkldnn._linear_pointwise
    kernel = native.call

    def by_onednn(x, *arguments):
        assert request.param == "oneDNN"
        calls.append(x.numel() // x.shape[-1])
        return onednn(x, *arguments)

    def by_kernel(name, structs):
        calls.append(structs[0][1]["rows"])
        return kernel(name, structs)

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
@pytest.mark.parametrize("kernel_form", native.forms(), indirect=True)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the same for all
@given(rows=st.integers(1, 14), inputs=st.integers(1, 70), outputs=st.integers(1, 140))
def test_every_form_of_the_kernel_is_the_affine_map(kernel_form, rows, inputs, outputs):
    torch.manual_seed(rows)
    linear = nn.Linear(inputs, outputs)
    x = torch.randn(rows, inputs)
    with torch.no_grad():
        y = PackedLinear(linear, torch.float32).by_kernel(x)
        expected = x.double() @ linear.weight.double().T + linear.bias.double()
    torch.testing.assert_close(y.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("has_products", [True, False])
def test_bfloat16_is_packed_only_where_the_processor_has_its_products(has_products, monkeypatch):
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
def test_a_packed_map_equals_the_affine_map(dtype, bias, shape, product):
    torch.manual_seed(1)
    linear = nn.Linear(48, 40, bias=bias)
    x = torch.randn((*shape, 48))
    expected = x.double() @ linear.weight.double().T + (linear.bias.double() if bias else 0)
    packed = PackedLinear(linear, dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        y = packed(x)
        assert y.dtype == linear(x).dtype == dtype
    close = {"atol": 1e-5, "rtol": 0} if dtype == torch.float32 else {"atol": 0.03, "rtol": 0.02}
    torch.testing.assert_close(y.double(), expected, **close)
    assert len(product) == 1


@torch.no_grad()
def test_rows_of_another_width_are_an_error():
    packed = PackedLinear(nn.Linear(16, 64), torch.float32)
    if not packed.has_kernel:
        pytest.skip("needs the kernels")
    with pytest.raises(ValueError, match="x has width 64, the affine map needs 16"):
        packed.by_kernel(torch.randn(2, 64))


@torch.no_grad()
def test_changed_or_replaced_parameters_do_not_use_the_copy(product):
    linear = nn.Linear(6, 4)
    x = torch.randn(3, 6)
    packed = PackedLinear(linear, torch.float32)
    linear.bias += 1
    torch.testing.assert_close(packed(x), linear(x))
    packed = PackedLinear(linear, torch.float32)
    linear.weight.data = 2 * linear.weight.data
    torch.testing.assert_close(packed(x), linear(x))
    assert product == []


@torch.no_grad()
def test_the_input_need_not_be_contiguous(product):
    linear = nn.Linear(6, 4)
    x = torch.randn(6, 3, 2).permute(1, 2, 0)
    torch.testing.assert_close(PackedLinear(linear, torch.float32)(x), linear(x))
    assert product == [6]


@torch.inference_mode()  # as in a search, whose tensors have no version
@pytest.mark.parametrize("bias", [True, False])
def test_a_map_to_some_outputs_is_packed_too(bias, product):
    with torch.inference_mode(False):
        linear = nn.Linear(6, 9, bias=bias)
    x = torch.randn(3, 6)
    rows = torch.tensor([2, 3, 8])
    part = PackedLinear(linear, torch.float32).restricted_to(rows)
    torch.testing.assert_close(part(x), linear(x)[:, rows])
    assert product == [3]
    moved = PackedLinear(linear, torch.float32).to("meta")
    assert type(moved.restricted_to(rows.to("meta"))) is nn.Linear


def test_gradients_empty_rows_and_other_dtypes_use_the_plain_map(product):
    linear = nn.Linear(6, 4)
    packed = PackedLinear(linear, torch.float32)
    x = torch.randn(3, 6)
    packed(x).sum().backward()
    assert linear.weight.grad is packed.weight.grad is not None
    with torch.no_grad():
        assert packed(x[:0]).shape == (0, 4)
        assert packed.to(torch.float64)(x.double()).dtype == torch.float64
    assert not product


@torch.no_grad()
def test_a_weight_scaled_in_place_does_not_use_the_copy(product):
    linear = nn.Linear(6, 4)
    packed = PackedLinear(linear, torch.float32)
    x = torch.randn(3, 6)
    linear.weight.mul_(2)
    assert torch.equal(packed(x), linear(x))
    assert not product


@torch.no_grad()
@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_and_pickles_pack_again(again, product):
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    x = torch.randn(2, 6)
    names = list(model.state_dict())
    expected = model(x)
    pack_linear(model, torch.float32)
    assert list(model.state_dict()) == names
    assert list(map(type, model)) == [PackedLinear, nn.ReLU, PackedLinear]
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
def test_kernels_compute_products_of_every_size(rows, groups, outputs, bias, dtype):
    if not native.has_kernel(f"linear_{native.DTYPES[dtype]}"):
        pytest.skip("needs the kernels")
    torch.manual_seed(rows)
    # Small integers, whose sums are exact: at most 8 bits in bfloat16.
    x = torch.randint(-2, 3, (rows, 2 * groups)).to(dtype)
    linear = nn.Linear(2 * groups, outputs, bias=bias, dtype=dtype)
    linear.weight.copy_(torch.randint(-1, 2, linear.weight.shape))
    if bias:
        linear.bias.copy_(torch.randint(-9, 9, linear.bias.shape))
    exact = x.double() @ linear.weight.double().T + (linear.bias.double() if bias else 0)
    assert torch.equal(PackedLinear(linear, dtype).by_kernel(x), exact.to(dtype))


@torch.no_grad()
@pytest.mark.skipif(not can_pack(torch.bfloat16), reason="needs products of bfloat16")
def test_onednn_maps_rows_that_are_not_whole_groups():
    linear = nn.Linear(5, 3)
    x = torch.randn(2, 5)
    packed = PackedLinear(linear, torch.bfloat16)
    assert packed._kernel_copy is None
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(packed(x), linear(x))


@torch.no_grad()
def test_several_threads_share_many_products(monkeypatch):
    monkeypatch.setattr(affine, "MAX_PRODUCTS", 5 * 8 * 3)
    linear = nn.Linear(8, 3)
    packed = PackedLinear(linear, torch.float32)
    if packed._kernel_copy is None:
        pytest.skip("needs the kernels")
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    x = torch.randn(6, 8)
    torch.testing.assert_close(packed(x[1:]), linear(x[1:]))
    assert packed._onednn_copy is None
    torch.testing.assert_close(packed(x), linear(x))
    assert packed._onednn_copy is not None
    torch.set_num_threads(threads)


def test_machines_and_dtypes_without_products_keep_the_model(monkeypatch):
    model = nn.Sequential(nn.Linear(6, 4))
    pack_linear(model, torch.float16)
    monkeypatch.setattr(affine, "can_pack", lambda dtype: False)
    pack_linear(model, torch.float32)
    assert type(model[0]) is nn.Linear
