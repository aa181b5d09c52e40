"""The work of every command before and after its job."""

import importlib
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

import relu_nmt.cli
from relu_nmt.cli.command import KERNEL_CACHE, Command, make_parser, run_command
from relu_nmt.config import option, settings
from tests.commands import assert_refused, run_here

MODULES = sorted(path.stem for path in Path(relu_nmt.cli.__path__[0]).glob("[a-z]*.py"))


@pytest.mark.parametrize(("before", "during"), [(None, "256"), ("7", "7")])
def test_the_kernel_cache_is_limited_unless_the_user_set_it(monkeypatch, before, during):
    monkeypatch.setenv(KERNEL_CACHE, "")  # so that it is put back afterwards
    if before is None:
        monkeypatch.delenv(KERNEL_CACHE)
    else:
        monkeypatch.setenv(KERNEL_CACHE, before)
    limits = []
    run_command(make_parser("test", ""), lambda _: limits.append(os.environ[KERNEL_CACHE]), [])
    assert limits == [during]


@pytest.mark.parametrize("name", MODULES)
def test_the_job_of_a_command_is_there(name):
    main = getattr(importlib.import_module(f"relu_nmt.cli.{name}"), "main", None)
    if isinstance(main, Command):
        assert main.prog == f"relu-nmt-{name.replace('_', '-')}"
        module, _, function = main.job.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


@settings
class Width:
    width: int = option(3, "width", least=1)


def test_the_job_of_a_script_is_a_function():
    received = []
    main = Command("draw", "Draw a line.", Width, received.append, user_modules=False)
    assert main(["--width", "5"]) == 0 and received == [Width(width=5)]
    main = Command("draw", "", Width, lambda typed: SimpleNamespace(exit_code=typed.width))
    assert main([]) == 3 and main(["--width", "0"]) == 2


def test_a_name_that_no_file_can_hold_is_one_line(capsys):
    main = Command("draw", "", Width, lambda _: "lines/b\udcff/c".encode(), user_modules=False)
    assert main([]) == 2
    assert capsys.readouterr().err == (
        "draw: error: 'lines/b\\udcff': a name that is not UTF-8; give another\n"
    )


@pytest.mark.parametrize("name", ["score", "train", "vision_train"])
def test_a_folder_that_was_removed_is_named(name, monkeypatch, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    done = run_here(name, "x", check=False)
    assert_refused(done, "the working folder is gone; change to another one: No such file")
