"""The help of commands: the flags that people use first, each switch once."""

import importlib
import re

import pytest

from relu_nmt.config.fields import all_options

LONG = ("preprocess", "train", "generate", "interactive", "translate_document", "score")
LONG += ("sweep", "vision_train")


def parser_of(name):
    return importlib.import_module(f"relu_nmt.cli.{name}").main.parser()


@pytest.mark.parametrize("name", LONG)
def test_the_help_begins_with_the_flags_that_people_use(name):
    parser = parser_of(name)
    titles = [group.title for group in parser._action_groups if group._group_actions]
    assert "most used" in titles[:2]
    text = parser.format_help()
    used = text.partition("\nmost used:\n")[2].partition("\n\n")[0]
    assert 5 <= len(re.findall(r"^  -", used, re.MULTILINE)) <= 11


@pytest.mark.parametrize("name", LONG)
def test_the_help_lists_a_switch_once(name):
    parser = parser_of(name)
    assert parser.format_usage().count("\n") == 1
    flags = re.findall(r"^  (-[^\n]*?)(?:  |$)", parser.format_help(), re.MULTILINE)
    assert flags
    for words in flags:
        names = re.findall(r"--[\w-]+", words)
        assert not any(f"--no-{flag.removeprefix('--')}" in names for flag in names), words


def test_the_most_used_flags_are_settings_of_the_command():
    for name in LONG:
        main = importlib.import_module(f"relu_nmt.cli.{name}").main
        assert set(main.most_used.split()) <= set(all_options(main.settings_class)), name


def test_flags_without_effect_come_last():
    text = parser_of("train").format_help()
    assert text.index("accepted as in fairseq") > text.index("settings file:")
    assert text.index("--dataset-impl") > text.index("accepted as in fairseq")
