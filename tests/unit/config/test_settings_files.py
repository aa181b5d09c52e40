"""YAML of settings files: values of the core schema of YAML 1.2 by hand, and written values."""

import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from relu_nmt.config.yaml_text import dump_value, parse_yaml

# Values by the tables of YAML 1.2.2, section 10.3.2. Comments show the value of YAML 1.1.
SCALARS = [
    ("no", "no"),  # false
    ("yes", "yes"),  # true
    ("On", "On"),  # true
    ("OFF", "OFF"),  # false
    ("y", "y"),  # true
    ("tRUE", "tRUE"),
    ("True", True),
    ("FALSE", False),
    ("010", 10),  # 8
    ("08", 8),  # text
    ("-007", -7),
    ("0o17", 15),  # text
    ("0x1f", 31),
    ("0b11", 3),  # an extension of the library, as 1_000
    ("1_000", 1000),
    ("1:30", "1:30"),  # 90
    ("190:20:30.15", "190:20:30.15"),  # 685230.15
    ("7e-4", 7e-4),  # text
    ("1E5", 1e5),  # text
    (".5", 0.5),
    ("+12.", 12.0),
    ("-.INF", -math.inf),
    ("inf", "inf"),
    ("2001-12-14", "2001-12-14"),  # a date
    ("2001-12-14t21:59:43.10-05:00", "2001-12-14t21:59:43.10-05:00"),  # a time
    ("=", "="),  # an error
    ("~", None),
    ("NULL", None),
    ("", None),
    ("nUll", "nUll"),
    ("'no'", "no"),
    ('"010"', "010"),
    ("!!str 010", "010"),
    ("!!float 1", 1.0),
]


@pytest.mark.parametrize(("text", "value"), SCALARS)
def test_scalars_are_those_of_the_core_schema(text, value):
    parsed = parse_yaml(f"key: {text}\nlist: [{text or '~'}]\n")
    assert parsed == {"key": value, "list": [value]}
    assert type(parsed["key"]) is type(value)


def test_nan_keys_and_merges_are_read_as_in_yaml_1_2():
    assert math.isnan(parse_yaml(".NaN"))
    assert parse_yaml("no: 1\n010: 2\n") == {"no": 1, 10: 2}
    assert parse_yaml("a: &a {b: 1}\nc: {<<: *a, d: no}") == {
        "a": {"b": 1},
        "c": {"b": 1, "d": "no"},
    }


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("!!int 1:30", "invalid literal for int.*'1:30'"),
        ("!!int ''", "string index out of range"),
        ("!!bool maybe", "'maybe'"),
        ("{[[1]]: 2}", "unhashable type: 'list'"),
        ("!!float x", "could not convert string to float: 'x'"),
        ("!!set x", "expected a mapping node, .*, line 1, column 6"),
        ("!unknown x", r"could not determine a constructor .*, line 1, column \d+"),
        ("<<", r"could not determine a constructor .*, line 1, column \d+"),
        ("1\nkey: 2", 'found duplicate key "key" .*, line 2, column 1'),
    ],
)
def test_a_tag_that_does_not_fit_or_a_repeated_name_is_an_error_of_one_line(text, error):
    with pytest.raises(ValueError, match=error) as caught:
        parse_yaml(f"key: {text}")
    assert "\n" not in str(caught.value)


AMBIGUOUS = "no Yes On OFF y N True null ~ 010 0o17 0x1f 0b11 1_000 1:30 7e-4 1E5 .5 .inf = <<"


@pytest.mark.parametrize("text", [*AMBIGUOUS.split(), "2001-12-14", ""])
def test_texts_that_some_reader_takes_for_something_else_are_quoted(text):
    assert dump_value(text) in (f"'{text}'", f'"{text}"')


SINGLE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@given(SINGLE | st.lists(SINGLE) | st.sampled_from([text for text, _ in SCALARS]))
@settings(deadline=None)
def test_readers_of_yaml_1_1_and_1_2_find_the_value_that_was_written(value):
    written = f"group:\n  key: {dump_value(value)}\n"
    assert written.count("\n") == 2
    assert parse_yaml(written) == {"group": {"key": value}}
    assert yaml.safe_load(written) == {"group": {"key": value}}
