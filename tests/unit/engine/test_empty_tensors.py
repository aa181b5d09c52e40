"""Every kernel, in every form that this processor can run, with empty tensors."""

import shutil

import pytest
import torch

from relu_nmt.attention.base import build_attention
from relu_nmt.attention.masks import Visibility
from relu_nmt.config.registry import Spec
from relu_nmt.engine import native
from relu_nmt.engine.layers import attention_fields
from relu_nmt.engine.linear import make_panels, pad_to_panels

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
@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("n", one_empty(rows=3, inputs=16, outputs=20), ids=str)
def test_a_linear_map_of_empty_tensors_writes_nothing_else(kernel_form, kind, biased, n):
    needs_kernel(f"linear_{kind}")
    numbers = torch.int8 if kind == "int8" else DTYPES[kind]
    x = random(n["rows"], n["inputs"], dtype=DTYPES[kind])
    bias = pad_to_panels(random(n["outputs"])) if biased else None
    weights = {"bias": bias, "scales": None, "sums": None}
    if kind == "int8":
        weights["scales"] = pad_to_panels(torch.ones(n["outputs"]))
        weights["sums"] = pad_to_panels(torch.zeros(n["outputs"], dtype=torch.int32))
    panels = torch.zeros(0, dtype=numbers)
    if n["inputs"]:
        panels = make_panels(torch.zeros(n["outputs"], n["inputs"], dtype=numbers))
    output = x.new_full((n["rows"], n["outputs"]), torch.nan)
    groups = n["inputs"] * panels.element_size() // 4
    weights["panels"] = panels
    fields = {"source": x, "target": output, "weights": weights, "groups": groups, **n}
    native.call(f"linear_{kind}", [("Linear", fields)])
    expected = torch.zeros(n["outputs"]) if bias is None else bias[: n["outputs"]]
    assert torch.equal(output, expected.to(output.dtype).expand_as(output))


@each_form
@pytest.mark.parametrize("n", one_empty(rows=3, symbols=70), ids=str)
def test_log_softmax_of_empty_tensors_is_allowed(kernel_form, n):
    native.call("log_softmax", [("LogSoftmax", {"logits": random(*n.values()), **n})])


@each_form
@pytest.mark.parametrize("picked", [False, True])
@pytest.mark.parametrize("n", one_empty(sentences=2, beams=2, symbols=70, count=3), ids=str)
def test_best_continuations_of_empty_tensors_write_nothing_else(kernel_form, picked, n):
    rows = n["sentences"] * n["beams"]
    log_probs = random(rows, n["symbols"])
    totals = random(n["sentences"], n["beams"])
    indices = torch.arange(rows) if picked else None
    # Guard each output with one element on either side.
    size = n["sentences"] * n["count"]
    outputs = {"best_totals": torch.full((size + 2,), -7.0)}
    outputs["best_tokens"] = torch.full((size + 2,), -7)
    outputs["best_parents"] = torch.full((size + 2,), -7)
    fields = {"log_probs": log_probs, "picked": indices, "totals": totals, "rows": rows}
    for name, around in outputs.items():
        buffer = torch.frombuffer(
            around.numpy().data, dtype=around.dtype, offset=around.element_size()
        )
        fields[name] = buffer[: max(size, 1)]
    native.call("best_continuations", [("BestContinuations", {**fields, **n})])
    assert outputs["best_totals"].tolist() == [-7, *[-torch.inf] * size, -7]
    for name in ("best_tokens", "best_parents"):
        assert outputs[name].tolist() == [-7, *[0] * size, -7]


def random_layer(kind, width):
    """Return the fields of ``LayerWeights`` for a layer whose maps all have one width."""
    dtype = torch.int8 if kind == "int8" else DTYPES[kind]
    layer = {}
    for name in ("qkv", "own_out", "query", "memory_out", "inner", "outer"):
        outputs = 3 * width if name == "qkv" else width
        weight = (random(outputs, width) * 3 - 1).to(dtype)
        layer[name] = {"panels": make_panels(weight), "bias": None, "scales": None, "sums": None}
        if kind == "int8":
            layer[name]["scales"] = pad_to_panels(torch.ones(outputs))
            layer[name]["sums"] = pad_to_panels(weight.sum(1).int())
    norm = {"gain": torch.ones(width), "bias": torch.zeros(width)}
    return {**layer, **dict.fromkeys(("own_norm", "memory_norm", "feed_forward_norm"), norm)}


def step_of(kind, rows, memory_keys, layers=1, searches=1):
    """Call the kernel of layers of width 16 with random weights and a memory of zeros."""
    width = 16
    dtype = {"int8": torch.float16}.get(kind, DTYPES[kind])
    states = random(rows, width)
    layer = random_layer(kind, width)
    weights = [native.struct_words("LayerWeights", layer) for _ in range(layers)]
    groups = width * layer["qkv"]["panels"].element_size() // 4
    fields = {"normed_before": False, "centered": True, "layers": layers, "searches": searches}
    fields |= {"states": states, "weights": torch.tensor(weights, dtype=torch.int64)}
    fields |= {"groups": groups, "inner_groups": groups}
    structs = [("Layers", {"rows": rows, "width": width, "inner": width, **fields})]
    for _ in range(searches):
        keys = torch.zeros(rows, 1, 1, width, dtype=dtype)
        memory = torch.zeros(rows, 1, memory_keys, width, dtype=dtype)
        softmax = build_attention(Spec("softmax"), "decoder", 0, 1, width, 0.0)
        shapes = {
            "own": attention_fields(softmax, Visibility(1, 1), keys, keys),
            "memory": attention_fields(softmax, Visibility(1, memory_keys), memory, memory),
        }
        shapes["own"] |= {"rows": rows, "q_row": 3 * width}
        shapes["memory"] |= {"rows": rows, "q_row": width}
        pointers = [name for name, kind in native.STRUCTS["Search"].items() if kind == "POINTER"]
        structs.append(("Search", {**dict.fromkeys(pointers), **shapes}))
        cache = {"keys": keys, "values": keys.clone()}
        cache |= {"memory_keys": memory, "memory_values": memory.clone()}
        structs += [("Cache", cache)] * layers
    native.call(f"layers_step_{kind}", structs, 1e-5)
    return states


@each_form
@pytest.mark.parametrize("kind", DTYPES)
def test_layers_without_rows_or_searches_change_nothing(kernel_form, kind):
    needs_kernel(f"layers_step_{kind}")
    for rows, layers, searches in ((0, 1, 1), (0, 2, 0), (2, 0, 1), (0, 0, 0)):
        assert torch.equal(step_of(kind, rows, 3, layers, searches), random(rows, 16))
    without = step_of(kind, 2, 0)
    assert torch.equal(without, step_of(kind, 2, 3)) and not torch.equal(without, random(2, 16))
