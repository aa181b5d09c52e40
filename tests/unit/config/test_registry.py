import pytest

from relu_nmt.config.registry import Registry
from relu_nmt.errors import ConfigError


def test_an_entry_from_outside_is_found_and_listed():
    table = Registry("shape", {})
    square = table.register("square")(object())
    assert table.get("square") is square
    assert table.names() == ["square"]


def test_built_in_modules_are_imported_on_first_use_only(monkeypatch, tmp_path):
    (tmp_path / "lazy_shape.py").write_text("from builtins import SHAPES\nSHAPES['loaded'] = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    loaded = {}
    monkeypatch.setattr("builtins.SHAPES", loaded, raising=False)
    table = Registry("shape", {"circle": "lazy_shape"})
    assert table.names() == ["circle"] and not loaded
    with pytest.raises(ConfigError, match="unknown shape 'circle'"):
        table.get("circle")  # the module registers nothing
    assert loaded


def test_two_things_of_one_name_are_refused():
    table = Registry("shape", {})
    table.register("square")(object())
    with pytest.raises(ConfigError, match="'square' is registered twice"):
        table.register("square")(object())


def test_a_misspelt_name_is_answered_with_close_ones():
    table = Registry("shape", {"square": "none", "circle": "none"})
    with pytest.raises(ConfigError, match=r"did you mean square\?.*circle, square"):
        table.get("sqare")
