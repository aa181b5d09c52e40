"""The flags in example scripts and pages: all are accepted, and each has an effect."""

import glob
import importlib
import itertools
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from docs import train_and_draw
from tests.markdown import code_blocks, command_lines, parts_of_line, without_dots

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(glob.glob("examples/*/*.sh", root_dir=ROOT))
SCRIPTS += [f"{script} paper" for script in SCRIPTS if "paper_study" in script]
STUB = '#!/bin/sh\nprintf "%s\\0" "${0##*/}" "$@" >> "$RECORD"\nprintf "\\n\\0" >> "$RECORD"\n'
VISION = ("vision_train", "vision_evaluate", "vision_probe")
COMMANDS = ("preprocess", "train", "generate", "interactive", "average", *VISION)
VARIABLES = ("TEXT", "MONO", "CORPUS", "OUT", "RUN", "DATA", "IMAGES")
CHECKED = ("preprocess", "train", "average", *VISION)


def recorded_commands(script, folder):
    """Return the commands that a script would run, by name, and the words behind it."""
    names = [f"relu-nmt-{name.replace('_', '-')}" for name in COMMANDS]
    for name in ("python", "torchrun", "tail", *names):
        (folder / name).write_text(STUB)
        (folder / name).chmod(0o755)
    settings = {name: str(folder / name.lower()) for name in VARIABLES}
    settings |= {"PYTHON": str(folder / "python"), "RECORD": str(folder / "record")}
    settings["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    if "sweep" in script or "paper_study" in script:
        settings["CORPUS"] = "grammar"
    for part in ("train", "test"):
        for name in ["automobile", "bird", "cat", "frog", "truck", "deer", "dog"]:
            (folder / "images" / part / name).mkdir(parents=True)
    subprocess.run(["bash", *script.split()], cwd=ROOT, env={**os.environ, **settings}, check=True)
    words = (folder / "record").read_text().split("\0")
    while "\n" in words:
        end = words.index("\n")
        name, *flags = words[:end]
        words = words[end + 1 :]
        if "-m" in flags:
            name, *flags = flags[flags.index("-m") + 1 :]
        yield name.removeprefix("relu-nmt-").removeprefix("relu_nmt.cli.").replace("-", "_"), flags


def commands_of_models(flags):
    """Return the flags of relu-nmt-train of a sweep: for all models, and with each variant's."""
    variant_flags = flags[: flags.index("--")]
    common = flags[flags.index("--") + 1 :]
    common = ["data", "--max-doc-tokens", "9", *common]
    commands = [common]
    for word in variant_flags:
        if re.match(r"[\w.+-]+:\s", word):
            commands.append([*common, *shlex.split(word.partition(":")[2])])
    return commands


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_flag_of_an_example_has_an_effect(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    checked = 0
    for name, flags in recorded_commands(script, tmp_path):
        commands = [(name, flags)]
        if name == "sweep":
            commands = zip(itertools.repeat("train"), commands_of_models(flags))
        for program, words in commands:
            if program not in CHECKED:
                continue
            main = importlib.import_module(f"relu_nmt.cli.{program}").main
            with pytest.raises(SystemExit) as end:
                raise SystemExit(main([*words, "--dump-config"]))
            output = capsys.readouterr()
            assert end.value.code in (0, None), output.err
            assert not output.err
            checked += 1
    assert checked >= 1


def test_the_commands_of_the_trained_pictures_are_accepted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    train_and_draw.make_shapes(tmp_path / "shapes", 30)
    attentions = {**train_and_draw.IMAGES, **train_and_draw.MAPPED}
    steps = train_and_draw.text_steps(tmp_path)
    steps += train_and_draw.image_steps(tmp_path, attentions)
    commands = [words[2:] for _, words in steps if words[1] == "-m"]
    for module, *flags in commands:
        with pytest.raises(SystemExit) as end:
            raise SystemExit(importlib.import_module(module).main([*flags, "--dump-config"]))
        assert end.value.code in (0, None), capsys.readouterr().err
    assert len(commands) == 8


PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/*/README.md")]
OF_OWN_FILES = ("tutorial.md", "own_attention.md")  # test_tutorial.py runs them
PAGES = sorted(page for page in PAGES if page.name not in OF_OWN_FILES)


def written_commands(page):
    """Yield the commands in the blocks of a page, by name, and the words behind each."""
    for block in code_blocks(page.read_text("utf-8"), "", "sh"):
        for line in command_lines(block.text):
            if "relu-nmt-" not in line or "$" in line:  # only scripts have variables
                continue
            for _, words in parts_of_line(line):
                if words and words[0].startswith("relu-nmt-"):
                    name, *flags = words
                    name = name.removeprefix("relu-nmt-").replace("-", "_")
                    yield name, without_dots(name, flags)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_of_the_documentation_is_accepted(page, capsys):
    for name, flags in written_commands(page):
        if "--config" in flags or "mine.py" in flags or (name == "sweep" and "--" not in flags):
            continue  # the command reads files of the reader, or has no settings
        commands = [(name, flags)]
        if name == "sweep":
            commands = zip(itertools.repeat("train"), commands_of_models(flags))
        for program, words in commands:
            main = importlib.import_module(f"relu_nmt.cli.{program}").main
            with pytest.raises(SystemExit) as end:
                raise SystemExit(main([*words, "--dump-config"]))
            output = capsys.readouterr()
            assert end.value.code in (0, None), f"{program} {words}: {output.err}"
            assert not output.err, words
