"""Values that files store as JSON, in a checked form: types, bounds and depth.

A checksum says that a file is whole, not that relu_nmt wrote its values. So every reader of such
files declares the form of its values, and :func:`checked` compares them.
"""

import dataclasses
import json
import types
from contextlib import suppress
from typing import Any, Union, get_args, get_origin, get_type_hints

from relu_nmt.config.fields import EXPECTED, MOST_WHOLE

MOST_DEPTH = 32  # most levels of tables and lists in each other; no file of relu_nmt has 10
MOST_DIGITS = 300
TOO_DEEP = f"more than {MOST_DEPTH} tables and lists in each other"


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text (ValueError: no JSON, nested too deep, or not UTF-8)."""
    try:
        value = json.loads(text, parse_int=_whole_number)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    # Go down level by level, without recursion.
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        members: list[Any] = []
        for outer in level:
            if isinstance(outer, dict):
                members += outer.values()
            elif isinstance(outer, list):
                members += outer
        level = members
    if level:
        raise ValueError(TOO_DEEP)
    # Refuse surrogates, which only escapes can give, before they are written anywhere.
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    if "\\ud" in text.lower():
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _whole_number(text: str) -> int:
    """Return a whole number of JSON (ValueError: it has too many digits for a float)."""
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number of {len(text):,} digits")
    return int(text)


def checked(form: Any, value: Any, location: str = "the whole") -> Any:
    """Check that a value of :func:`parse_json` has a form. Return the value.

    A form is a type (text, bool, a number, Any, unions, lists, tuples, ``dict[str, X]``, or a
    dataclass), or a table of forms by name. In such a table ``name?`` may be missing, and ``*`` is
    the form of further names, by default Any. Lists become tuples, and tables dataclasses, where
    the form is one. Whole numbers are 0 or more.

    Raises:
        ValueError: it has another form. The message begins with the ``location`` of the fault.

    Example:
        >>> checked({"loss": tuple[float, int], "*": int}, {"loss": [4.5, 2]})
        {'loss': (4.5, 2)}
        >>> checked(dict[str, bool], {"tied": "no"}, "settings")
        Traceback (most recent call last):
        ...
        ValueError: settings 'tied': expected true or false, found 'no'
    """
    origin = get_origin(form)
    inner = get_args(form)
    if form is Any or (value is None and type(None) in inner):
        return value
    if origin in (Union, types.UnionType):
        # Report the error of the last kind if no kind fits.
        *kinds, last = filter(lambda kind: kind is not type(None), inner)
        for kind in kinds:
            with suppress(ValueError):
                return checked(kind, value, location)
        return checked(last, value, location)
    if origin in (list, tuple):
        _require(isinstance(value, list), "a list", value, location)
        forms = inner
        if origin is list or inner[1:] == (...,):
            forms = inner[:1] * len(value)
        _require(len(forms) == len(value), f"a list of {len(forms)}", value, location)
        return origin(checked(forms[i], x, f"{location} {i}") for i, x in enumerate(value))
    if isinstance(form, dict) or origin is dict or dataclasses.is_dataclass(form):
        _require(isinstance(value, dict), "a table", value, location)
        return _checked_table(form, value, location)
    # A bool is an int for Python, but not here. A whole number is also a float.
    is_kind = isinstance(value, form) or (form is float and isinstance(value, int))
    is_kind = is_kind and isinstance(value, bool) == (form is bool)
    _require(is_kind, EXPECTED[form], value, location)
    if isinstance(value, int):
        least = 0 if form is int else -MOST_WHOLE
        _require(least <= value <= MOST_WHOLE, f"{least:g} to {MOST_WHOLE:g}", value, location)
    return value


def _checked_table(form: Any, value: dict[str, Any], location: str) -> Any:
    if get_origin(form) is dict:
        forms = dict.fromkeys(value, get_args(form)[1])
    elif isinstance(form, dict):
        forms = dict.fromkeys(value, form.get("*", Any))
        for name, inner in form.items():
            if name not in value and name[-1] not in "?*":
                raise ValueError(f"{location} lacks {name!r}")
            if name != "*":
                forms[name.removesuffix("?")] = inner
    else:
        forms = get_type_hints(form)
    members = {}
    for name, member in value.items():
        if name not in forms:
            raise ValueError(f"{location} has the unknown {name[:40]!r}")
        members[name] = checked(forms[name], member, f"{location} {name[:40]!r}")
    return form(**members) if isinstance(form, type) else members


def _require(is_met: bool, expected: str, value: Any, location: str) -> None:
    if not is_met:
        raise ValueError(f"{location}: expected {expected}, found {value!r:.40}")
