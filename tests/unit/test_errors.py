"""Errors as one line, and packages that are not installed."""

import sys

import pytest

from relu_nmt.errors import (
    CheckpointError,
    DataError,
    MissingExtraError,
    needing,
    printable,
    reporting,
)

TEXT = "the server needs the package {}: pip install"


def test_the_system_s_error_becomes_one_line_with_its_reason(tmp_path):
    text = r"^the text: No such file or directory$"
    with pytest.raises(DataError, match=text), reporting("the text"):
        (tmp_path / "absent").read_text()
    text = r"^the model: cut short$"
    with pytest.raises(CheckpointError, match=text), reporting("the model", CheckpointError):
        raise OSError("cut short")
    text = r"^line 3: a mistake of two lines$"
    with pytest.raises(DataError, match=text), reporting("line 3", caught=(KeyError, ValueError)):
        raise ValueError("a mistake\nof two lines")


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("\x08\x7f\x00", r"\x08\x7f\x00"),
        ("\u202egpj.\u2066", r"\u202egpj.\u2066"),
        ("a\nb\r\nc\u2028d\x85e", "a b c d e"),
        ("Straße\tمی\u200cخواهم 🙂", "Straße\tمی\u200cخواهم 🙂"),
        ("b\udcff", "b\udcff"),  # a byte of a file name that is not UTF-8
    ],
)
def test_a_foreign_name_in_an_error_commands_no_terminal(name, printed):
    assert printable(name) == printed
    assert str(DataError(f"file {name}: damaged")) == f"file {printed}: damaged"
    with pytest.raises(DataError) as error, reporting(name):
        raise OSError(name)
    assert str(error.value) == f"{printed}: {printed}"


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with (
        pytest.raises(
            MissingExtraError, match=r"^the server needs the package uvicorn: pip ins.*l$"
        ),
        needing(TEXT),
    ):
        import uvicorn  # noqa: F401


def test_the_reason_is_added_if_a_package_is_there():
    text = r"the package json: pip install \(cannot import name 'absent' from 'json'"
    with pytest.raises(MissingExtraError, match=text), needing(TEXT):
        from json import absent  # noqa: F401


@pytest.mark.parametrize("line", ["import relu_nmt.absent", "from relu_nmt.errors import absent"])
def test_an_import_of_our_own_that_fails_stays_as_it_is(line):
    with pytest.raises(ImportError, match="absent"), needing(TEXT):
        exec(line)


def test_the_server_does_not_call_its_own_fault_a_missing_extra(monkeypatch):
    from relu_nmt.jobs.translate.serve import serve

    pytest.importorskip("uvicorn")
    monkeypatch.setitem(sys.modules, "relu_nmt.applications.serving.connections", None)
    with pytest.raises(ImportError, match=r"relu_nmt\.applications\.serving\.connections"):
        serve(None)
