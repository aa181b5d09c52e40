import sys

import pytest

from relu_nmt.attention import attentions
from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.config import add_settings, read_settings
from relu_nmt.config.user_modules import import_user_module
from relu_nmt.errors import ConfigError
from relu_nmt.translation.config import TransformerConfig


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
def test_mistakes(tmp_path, text, message):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    for _ in range(2):  # what failed is not taken for imported
        with pytest.raises(ConfigError, match=message) as caught:
            import_user_module(str(path))
        assert "\n" not in str(caught.value)


def test_commands_import_before_they_check_other_options(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(
        "from relu_nmt.attention import attentions\nattentions.register('made_up')(object())\n"
    )
    parser = make_parser("relu-nmt-x", "", user_modules=True)
    add_settings(parser, TransformerConfig)
    seen = []

    def body(arguments):
        seen.append(read_settings(TransformerConfig, arguments).attention)

    try:
        flags = ["--attention", "made_up", "--user-module", str(path)]
        assert run_command(parser, body, flags) == 0
        assert seen == ["made_up"]
    finally:
        del attentions._entries["made_up"]
    assert run_command(parser, lambda _: None, ["--user-module", "nothing.py"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("relu-nmt-x: error: --user-module nothing.py: expected a Python file")
