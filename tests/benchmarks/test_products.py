"""The benchmark of products: a row for each type, shape and number of rows, with ratios."""

import itertools

import pytest
import torch

from relu_nmt.engine import native
from tests.example_modules import example_modules
from tests.markdown import cells


@pytest.fixture
def products():
    with example_modules("../benchmarks", ["measuring", "products"]) as modules:
        yield modules.products


def test_a_table_of_ratios(products, monkeypatch, capsys):
    if not all(map(native.has_kernel, products.KERNELS.values())):
        pytest.skip("needs the kernels")
    monkeypatch.setattr(products, "SECONDS_OF_ROUND", 1e-4)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # other tests follow
    monkeypatch.setattr("sys.argv", ["products.py", "--shapes", "8x4", "--rows", "1", "3"])
    products.main()
    rows = list(map(cells, capsys.readouterr().out.splitlines()[2:]))
    kinds = itertools.product(("float32", "bfloat16", "int8"), ("8, 4, 1", "8, 4, 3"))
    for (name, shape, *figures), kind in zip(rows, kinds, strict=True):
        assert (name, shape) == kind
        numbers = figures[:2] if name == "int8" else figures
        assert min(map(float, numbers)) > 0


def test_a_machine_without_kernels_is_reported(products, monkeypatch, capsys):
    monkeypatch.setattr(native, "has_kernel", lambda name: False)
    monkeypatch.setattr("sys.argv", ["products.py"])
    with pytest.raises(SystemExit, match="2"):
        products.main()
    assert "--types: no kernel for float32 here; leave it out" in capsys.readouterr().err
