import argparse
from dataclasses import dataclass

import pytest

from relu_nmt import config as c
from relu_nmt.errors import ConfigError


@dataclass(frozen=True)
class Example:
    max_tokens: int = c.option(10, "tokens")
    name: str | None = c.option(None, "name", flags=("-n",))
    share: bool = c.option(False, "share")
    no_save: bool = c.option(False, "do not save")
    betas: tuple[float, ...] = c.option((0.9, 0.98), "pair", parse=lambda t: (float(t), 1.0))


def parse(*argv):
    parser = argparse.ArgumentParser()
    c.add_options(parser, Example, "example")
    return parser.parse_args(list(argv))


def test_typed_flags_win_over_the_preset_and_the_preset_over_defaults():
    typed = parse("--max-tokens", "5", "-n", "x", "--no-save")
    config = c.from_namespace(Example, typed, {"max_tokens": 7, "share": True})
    assert config == Example(max_tokens=5, name="x", share=True, no_save=True)
    assert c.from_namespace(Example, parse("--no-share"), {"share": True}).share is False


def test_json_round_trip_keeps_tuples():
    config = Example(betas=(0.5, 0.6))
    import json

    assert c.from_dict(Example, json.loads(json.dumps(c.to_dict(config)))) == config


def test_unknown_settings_are_refused():
    with pytest.raises(ConfigError, match="unknown setting wings"):
        c.from_dict(Example, {"wings": 2})


def test_a_wrong_value_is_a_usage_error_with_what_was_expected(capsys):
    with pytest.raises(SystemExit) as caught:
        parse("--betas", "x")
    assert caught.value.code == 2
    assert "could not convert string to float: 'x'" in capsys.readouterr().err


def test_text_options():
    assert c.from_strings(Example, {"max_tokens": "3", "share": "true"}).max_tokens == 3
    with pytest.raises(ConfigError, match="max_tokens=x: expected int"):
        c.from_strings(Example, {"max_tokens": "x"})
    with pytest.raises(ConfigError, match="share=1: expected bool"):
        c.from_strings(Example, {"share": "1"})
