"""Values in files, compared with the form that their reader declares."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from relu_nmt.config.stored import checked, parse_json


@dataclass
class Counts:
    updates: int = 0
    sums: dict[str, tuple[float, float]] = field(default_factory=dict)
    best: float | None = None


FORM = {"counts": Counts, "names": list[str], "sizes?": tuple[int, ...], "*": bool}


def test_values_of_the_declared_form_are_returned_with_tuples_and_dataclasses():
    stored = '{"counts": {"sums": {"loss": [1, 2.5]}}, "names": ["a"], "sizes": [3, 4], "on": true}'
    assert checked(FORM, parse_json(stored)) == {
        "counts": Counts(sums={"loss": (1, 2.5)}),
        "names": ["a"],
        "sizes": (3, 4),
        "on": True,
    }
    assert checked({"a": Any}, {"a": [{}], "b": 1}) == {"a": [{}], "b": 1}


@pytest.mark.parametrize(
    ("form", "value", "message"),
    [
        (FORM, [], "file: expected a table, found \\[\\]"),
        (FORM, {"names": []}, "^file lacks 'counts'$"),
        (FORM, {"counts": {}, "names": [], "on": 1}, "file 'on': expected true or false, found 1"),
        (list[str], ["a", 1], "file 1: expected text, found 1"),
        (tuple[float, float], [1], r"expected a list of 2, found \[1\]"),
        (Counts, {"sums": {"a": [1, 2, 3]}}, "'sums' 'a': expected a list of 2"),
        (Counts, {"rate": 1}, "^file has the unknown 'rate'$"),
        (Counts, {"updates": 1e308}, "'updates': expected a whole number, found 1e"),
        (Counts, {"updates": -1}, "'updates': expected 0 to 1e"),
        (Counts, {"updates": True}, "'updates': expected a whole number, found True"),
        (Counts, {"updates": 10**400}, "'updates': expected 0 to 1e"),
        (Counts, {"best": 10**400}, "'best': expected -1e.* to 1e"),
        (dict[str, int], {"\x1b[31m\n": "a"}, r"file '\\x1b\[31m\\n': expected a whole number"),
        (dict[str, int], {"a" * 99: "b" * 99}, "^file 'a{40}': expected a whole number, .{,50}$"),
    ],
)
def test_values_of_another_form_are_errors_that_name_the_place(form, value, message):
    with pytest.raises(ValueError, match=message):
        checked(form, value, "file")


@pytest.mark.parametrize("depth", [33, 900, 100_000])
@pytest.mark.parametrize("pair", [("[", "]"), ('{"a":', "}")])
def test_deep_values_are_errors(pair, depth):
    text = pair[0] * depth + "1" + pair[1] * depth
    with pytest.raises(ValueError, match="more than 32 tables and lists in each other"):
        parse_json(text)


@pytest.mark.parametrize("text", ['{"a\\ud800": 1}', b'["\\uDFFFx"]'])
def test_half_a_character_is_an_error(text):
    with pytest.raises(ValueError, match="surrogates not allowed"):
        parse_json(text)
    assert parse_json('"\\ud83d\\ude00"') == "\U0001f600"


def test_a_number_that_no_float_can_hold_is_an_error():
    assert parse_json("[" + "9" * 300 + "]") == [10**300 - 1]
    with pytest.raises(ValueError, match="a number of 400 digits"):
        parse_json("[" + "9" * 400 + "]")


def test_values_as_deep_as_allowed_are_read():
    assert parse_json("[" * 32 + "1" + "]" * 32)
