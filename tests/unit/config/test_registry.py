import sys

import pytest

from relu_nmt.attention import attentions
from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.config import add_settings, read_settings
from relu_nmt.config.files import split_paths
from relu_nmt.config.registry import Registry, import_user_module
from relu_nmt.errors import ConfigError
from relu_nmt.translation.config import TransformerConfig


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


def test_a_name_cannot_be_registered_twice():
    table = Registry("shape", {})
    table.register("square")(object())
    with pytest.raises(ConfigError, match="'square' is registered twice"):
        table.register("square")(object())


def test_a_misspelled_name_is_answered_with_close_ones():
    table = Registry("shape", {"square": "none", "circle": "none"})
    with pytest.raises(ConfigError, match=r"did you mean square\?.*circle, square"):
        table.get("sqare")


def test_a_file_is_run_once_and_may_have_the_name_of_another(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "mine.py"
        file.write_text(f"import sys\nsys.ran = getattr(sys, 'ran', '') + '{folder}'\n")
    try:
        for path in ("a/mine.py", "b/mine.py", "a/../a/mine.py"):
            import_user_module(str(tmp_path / path))
        assert sys.ran == "ab"
    finally:
        del sys.ran


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "expected a Python file"),
        ("import nothing_of_this_name", "mine.py: running it fails: ModuleNotFoundError: No mod"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_a_wrong_user_module_is_an_error(tmp_path, text, message):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    for _ in range(2):  # what failed is not taken for imported
        with pytest.raises(ConfigError, match=message) as caught:
            import_user_module(str(path))
        assert "\n" not in str(caught.value)


def test_commands_run_user_modules_before_they_check_other_options(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(
        "from relu_nmt.attention import attentions\nattentions.register('made_up')(object())\n"
    )
    parser = make_parser("relu-nmt-x", "", user_modules=True)
    add_settings(parser, TransformerConfig)
    names = []

    def body(arguments):
        names.append(read_settings(TransformerConfig, arguments).attention)

    try:
        flags = ["--attention", "made_up", "--user-module", str(path)]
        assert run_command(parser, body, flags) == 0
        assert names == ["made_up"]
    finally:
        del attentions._entries["made_up"]
    assert run_command(parser, lambda _: None, ["--user-module", "nothing.py"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("relu-nmt-x: error: --user-module nothing.py: expected a Python file")


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("plain", ["plain"]),
        ("plain:other", ["plain", "other"]),
        ("plain:a:b", ["plain", "a:b"]),
        ("a:b:plain", ["a:b", "plain"]),
        ("a:b:a:b", ["a:b", "a:b"]),
        ("12:00/model", ["12:00/model"]),
        ("12:00/missing:12:00/model", ["12:00/missing", "12:00/model"]),
        ("x:y/text", ["x:y/text"]),
        ("pre:fix:plain", ["pre:fix", "plain"]),
        ("plain::other", ["plain", "", "other"]),
        ("", [""]),
    ],
)
@pytest.mark.parametrize("separator", [":", ","])
def test_names_that_have_the_separator_in_them_stay_whole(
    text, paths, separator, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("plain", "a:b", "12:00/model", "x:y/text.de", "pre:fix.de"):
        file = tmp_path / name.replace(":", separator)
        file.parent.mkdir(exist_ok=True)
        file.touch()
    expected = "\n".join(paths).replace(":", separator).split("\n")
    assert split_paths(text.replace(":", separator), separator) == expected
