"""Every kernel, in every form that this processor has, with tensors that hold nothing."""

import shutil

import pytest
import torch

from relu_nmt.engine import native
from relu_nmt.engine.attention_kernel import MAPS, put_rows, shape, take_entries
from relu_nmt.engine.packed_linear import make_panels, pad_to_panels

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="needs a compiler when the package is installed"
)
each_form = pytest.mark.parametrize("kernel_form", native.forms(), indirect=True)
DTYPES = {"float": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.float32}


def random(*sizes, dtype=torch.float32):
    return torch.rand(sizes, generator=torch.Generator().manual_seed(1)).to(dtype)


def one_empty(**sizes):
    """Return the sizes with each of them 0 in turn."""
    return [{**sizes, name: 0} for name in sizes]


def needs_kernel(name):
    if not native.has_kernel(name):
        pytest.skip(f"no {name} in this form")


@each_form
@pytest.mark.parametrize("kind", ["float", "bfloat16"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("map", MAPS)
@pytest.mark.parametrize(
    "n", one_empty(batch=2, heads=2, queries=3, keys=5, width=16, value_width=16), ids=str
)
def test_attention(kernel_form, kind, map, masked, n):
    dtype = DTYPES[kind]
    q = random(n["batch"], n["heads"], n["queries"], n["width"], dtype=dtype)
    k = random(n["batch"], n["heads"], n["keys"], n["width"], dtype=dtype)
    v = random(n["batch"], n["heads"], n["keys"], n["value_width"], dtype=dtype)
    seen = n["batch"], 1, n["queries"], n["keys"]
    visible = torch.ones(seen, dtype=torch.bool) if masked else None
    bias = torch.zeros(n["batch"], n["heads"], *seen[2:]) if masked else None
    scales = None if map == "softmax" else torch.ones(n["batch"], 1, n["queries"], 1)
    out = v.new_full((n["batch"], n["queries"], n["heads"], n["value_width"]), torch.nan)
    strides = q.stride()[:3]
    sizes = shape(
        len(q) * n["queries"], n["queries"], strides, k, v, visible, bias, scales, MAPS[map], False
    )
    native.call(f"attend_{kind}", (q, k, v, None, visible, bias, scales, out), sizes)
    scores = q.double() @ k.double().transpose(2, 3)
    weights = scores.softmax(-1) if map == "softmax" else scores.relu() ** (1 + (map == "relu2"))
    expected = (weights @ v.double()).transpose(1, 2)
    torch.testing.assert_close(out.double(), expected, atol=1e-2, rtol=1e-2)


@each_form
@pytest.mark.parametrize("n", one_empty(heads=2, rows=2, queries=3, width=16), ids=str)
def test_put(kernel_form, n):
    picked = torch.arange(n["rows"] if n["queries"] else 0)
    x, to = (
        random(1, n["heads"], len(picked), n["width"]),
        random(2, *list(n.values())[:1], n["queries"], n["width"]),
    )
    before = to.clone()
    put_rows(x, picked, to)
    assert torch.equal(to, before)


@each_form
@pytest.mark.parametrize("room", [0, 2])
@pytest.mark.parametrize(
    "n", one_empty(old=2, heads=2, tokens=4, trees=2, entries=3, width=16), ids=str
)
def test_take(kernel_form, room, n):
    trees = torch.ones(n["trees"] if n["old"] else 0, dtype=torch.int64)
    num_entries = n["entries"] if n["tokens"] else 0
    entries = torch.zeros(len(trees), num_entries, dtype=torch.int64)
    x = random(n["old"], n["heads"], n["tokens"], n["width"])
    taken = take_entries(x, trees, entries, room)
    expected = torch.zeros(len(trees), n["heads"], num_entries + room, n["width"])
    expected[:, :, :num_entries] = x[trees][:, :, :1]
    assert torch.equal(taken, expected)


@each_form
@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("n", one_empty(rows=3, inputs=16, outputs=20), ids=str)
def test_linear(kernel_form, kind, biased, n):
    needs_kernel(f"linear_{kind}")
    numbers = torch.int8 if kind == "int8" else DTYPES[kind]
    x = random(n["rows"], n["inputs"], dtype=DTYPES[kind])
    bias = pad_to_panels(random(n["outputs"])) if biased else None
    rest = (None, None)
    if kind == "int8":
        scales, sums = torch.ones(n["outputs"]), torch.zeros(n["outputs"], dtype=torch.int32)
        rest = pad_to_panels(scales), pad_to_panels(sums)
    panels = torch.zeros(0, dtype=numbers)
    if n["inputs"]:
        panels = make_panels(torch.zeros(n["outputs"], n["inputs"], dtype=numbers))
    found = x.new_full((n["rows"], n["outputs"]), torch.nan)
    groups = n["inputs"] * panels.element_size() // 4
    sizes = (n["rows"], n["inputs"], n["outputs"], groups, 0)
    native.call(f"linear_{kind}", (x, found, panels, bias, *rest), sizes)
    expected = torch.zeros(n["outputs"]) if bias is None else bias[: n["outputs"]]
    assert torch.equal(found, expected.to(found.dtype).expand_as(found))


@each_form
@pytest.mark.parametrize("n", one_empty(rows=3, symbols=70), ids=str)
def test_log_softmax(kernel_form, n):
    native.call("log_softmax", (random(*n.values()),), tuple(n.values()))


@each_form
@pytest.mark.parametrize("picked", [False, True])
@pytest.mark.parametrize("n", one_empty(sentences=2, beams=2, symbols=70, count=3), ids=str)
def test_best_continuations(kernel_form, picked, n):
    rows = n["sentences"] * n["beams"]
    log_probs, totals = random(rows, n["symbols"]), random(n["sentences"], n["beams"])
    places = torch.arange(rows) if picked else None
    # With numbers on both sides, which are to stay.
    size = n["sentences"] * n["count"]
    around = [
        torch.full((size + 2,), -7, dtype=t) for t in (torch.float32, torch.int64, torch.int64)
    ]
    found = [
        torch.frombuffer(x.numpy().data, dtype=x.dtype, offset=x.element_size())[: max(size, 1)]
        for x in around
    ]
    sizes = (rows, n["sentences"], n["beams"], n["symbols"], n["count"])
    native.call("best_continuations", (log_probs, places, totals, *found), sizes)
    sums, tokens, parents = (x.tolist() for x in around)
    assert sums == [-7, *[-torch.inf] * size, -7]
    assert tokens == parents == [-7, *[0] * size, -7]


def step_of(kind, rows, memory_keys, layers=1, searches=1):
    """Call the kernel of layers of width 16 with random weights and values of 0 in the memory."""
    width, kept = 16, {"int8": torch.float16}.get(kind, DTYPES[kind])
    states = random(rows, width)
    constant = []
    numbers = torch.int8 if kind == "int8" else DTYPES[kind]
    for outputs in (3 * width, *[width] * 5):
        weight = (random(outputs, width) * 3 - 1).to(numbers)
        scales = (pad_to_panels(torch.ones(outputs)), pad_to_panels(weight.sum(1).int()))
        constant += [make_panels(weight), None, *(scales if kind == "int8" else (None, None))]
    constant += [torch.ones(width), torch.zeros(width)] * 3
    addresses = torch.tensor([0 if x is None else x.data_ptr() for x in constant] * layers)
    groups = width * constant[0].element_size() // 4
    room = torch.empty(rows * 1000, dtype=torch.uint8)
    tensors, sizes = [states, room, addresses], [rows, width, width, groups, groups, 0, 1]
    sizes += [layers, searches]
    for _ in range(searches):
        own = torch.zeros(rows, 1, 1, width, dtype=kept)
        memory = torch.zeros(rows, 1, memory_keys, width, dtype=kept)
        tensors += [None] * 8 + [own, own.clone(), memory, memory.clone()] * layers
        rest = (None, None, None, MAPS["softmax"], False)
        sizes += [rows, *shape(rows, 1, (3 * width, width, 3 * width), own, own, *rest)]
        sizes += shape(rows, 1, (width, width, width), memory, memory, *rest)
    native.call(f"layers_step_{kind}", tensors, sizes, 1e-5)
    return states


@each_form
@pytest.mark.parametrize("kind", DTYPES)
def test_layers(kernel_form, kind):
    needs_kernel(f"layers_step_{kind}")
    for rows, layers, searches in ((0, 1, 1), (0, 2, 0), (2, 0, 1), (0, 0, 0)):
        assert torch.equal(step_of(kind, rows, 3, layers, searches), random(rows, 16))
    without, with_zeros = step_of(kind, 2, 0), step_of(kind, 2, 3)
    assert torch.equal(without, with_zeros) and not torch.equal(without, random(2, 16))
