"""The arguments of kernels are matched by the names of one table, never by position."""

import ctypes

import pytest
import torch

from relu_nmt.engine import native

LINEAR = {
    "source": torch.zeros(1, 4),
    "target": torch.zeros(1, 2),
    "weights": {"panels": torch.zeros(1), "bias": None, "scales": None, "sums": None},
    "rows": 1,
    "inputs": 4,
    "outputs": 2,
    "groups": 7,
}


def words(**changes):
    return native.struct_words("Linear", {**LINEAR, **changes})


def test_fields_are_written_in_the_order_of_the_table():
    pointers = [LINEAR["source"], LINEAR["target"], LINEAR["weights"]["panels"]]
    expected = [*map(torch.Tensor.data_ptr, pointers), 0, 0, 0, 1, 4, 2, 7]
    assert words() == expected
    backwards = dict(reversed(LINEAR.items()))
    assert native.struct_words("Linear", backwards) == expected


def test_missing_and_unknown_fields_are_errors():
    with pytest.raises(TypeError, match=r"Linear .* unknown fields \['columns'\]"):
        words(columns=3)
    weights = dict.fromkeys(LINEAR["weights"].keys() - {"sums"})
    with pytest.raises(TypeError, match=r"LinearWeights .* missing \['sums'\]"):
        words(weights=weights)


@pytest.mark.parametrize("wrong", [{"rows": None}, {"source": 1}, {"weights": 2}])
def test_values_of_another_kind_are_errors(wrong):
    with pytest.raises((TypeError, AttributeError)):
        native.call("linear_float", [("Linear", {**LINEAR, **wrong})])


@pytest.fixture
def unloaded():
    native.library.cache_clear()
    yield
    native.library.cache_clear()


@pytest.mark.skipif(native.library() is None, reason="needs the kernels")
@pytest.mark.usefixtures("unloaded")
def test_a_library_compiled_from_another_table_is_not_used(monkeypatch):
    monkeypatch.setattr(native, "_TABLE", native._TABLE[:-1])
    with pytest.warns(UserWarning, match=r"kernels.*\.so: compiled from other sources .* again"):
        assert native.library() is None


@pytest.mark.usefixtures("unloaded")
def test_a_library_without_a_table_is_not_used(monkeypatch):
    class Old:
        def __init__(self, path):
            pass

    monkeypatch.setattr(ctypes, "CDLL", Old)
    with pytest.warns(UserWarning, match="compiled from other sources"):
        assert native.library() is None


@pytest.mark.usefixtures("unloaded")
def test_a_missing_library_is_no_reason_to_warn(monkeypatch, recwarn):
    monkeypatch.setattr(native, "EXTENSION_SUFFIXES", [".missing"])
    assert native.library() is None
    assert not recwarn.list
