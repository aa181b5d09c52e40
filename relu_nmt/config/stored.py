"""Values that files store as JSON, in a checked form: types, bounds and depth.

A checksum says that a file is whole, not that its values are those of relu_nmt. So every reader of
such files declares the form of what it reads, and :func:`checked` compares them.
"""

import dataclasses
import json
import types
from contextlib import suppress
from typing import Any, Union, get_args, get_origin, get_type_hints

from relu_nmt.config.fields import EXPECTED, MOST_WHOLE

MOST_DEPTH = 32
"""Most levels of tables and lists in each other; no file of relu_nmt has 10."""
MOST_DIGITS = 300
TOO_DEEP = f"more than {MOST_DEPTH} tables and lists in each other"


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is not JSON, nested too deep, or has texts that UTF-8 cannot hold.
    """
    try:
        value = json.loads(text, parse_int=_whole_number)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    # Go down level by level, without recursion.
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        level = [outer for outer in level if isinstance(outer, dict | list)]
        members = [outer.values() if isinstance(outer, dict) else outer for outer in level]
        level = [inner for part in members for inner in part]
    if level:
        raise ValueError(TOO_DEEP)
    # Refuse surrogates, which only escapes can give, before they are written anywhere.
    characters = text if isinstance(text, str) else text.decode("utf-8", "replace")
    if "\\ud" in characters.lower():
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _whole_number(text: str) -> int:
    """Return a whole number of JSON, which a float can hold as well."""
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number of {len(text):,} digits")
    return int(text)


def checked(form: Any, value: Any, place: str = "the whole") -> Any:
    """Return a value of :func:`parse_json`, compared with the form that it should have.

    A form is a type (text, bool, a number, Any, unions, lists, tuples, ``dict[str, X]``, or a
    dataclass), or a table of forms by name. In such a table ``name?`` may be missing, and ``*`` is
    the form of further names, by default Any. Lists become tuples, and tables dataclasses, if the
    form is one. Whole numbers are from 0.

    Raises:
        ValueError: it has another form; the message begins with the ``place`` of the fault.

    Example:
        >>> checked({"loss": tuple[float, int], "*": int}, {"loss": [4.5, 2]})
        {'loss': (4.5, 2)}
        >>> checked(dict[str, bool], {"tied": "no"}, "settings")
        Traceback (most recent call last):
        ...
        ValueError: settings 'tied': expected true or false, found 'no'
    """
    origin, inner = get_origin(form), get_args(form)
    if form is Any or (value is None and type(None) in inner):
        return value
    if origin in (Union, types.UnionType):
        *others, last = [kind for kind in inner if kind is not type(None)]
        for kind in others:
            with suppress(ValueError):
                return checked(kind, value, place)
        return checked(last, value, place)
    if origin in (list, tuple):
        _require(isinstance(value, list), "a list", value, place)
        is_uniform = origin is list or inner[1:] == (...,)
        forms = inner[:1] * len(value) if is_uniform else inner
        _require(len(forms) == len(value), f"a list of {len(forms)}", value, place)
        return origin(checked(forms[i], x, f"{place} {i}") for i, x in enumerate(value))
    if isinstance(form, dict) or origin is dict or dataclasses.is_dataclass(form):
        _require(isinstance(value, dict), "a table", value, place)
        return _checked_table(form, value, place)
    # A bool is an int for Python, but not here.
    is_kind = isinstance(value, int | float if form is float else form)
    is_kind = is_kind and isinstance(value, bool) == (form is bool)
    _require(is_kind, EXPECTED[form], value, place)
    if isinstance(value, int):
        least = 0 if form is int else -MOST_WHOLE
        _require(least <= value <= MOST_WHOLE, f"{least:g} to {MOST_WHOLE:g}", value, place)
    return value


def _checked_table(form: Any, value: dict[str, Any], place: str) -> Any:
    if get_origin(form) is dict:
        forms = dict.fromkeys(value, get_args(form)[1])
    elif isinstance(form, dict):
        forms = {name.removesuffix("?"): inner for name, inner in form.items()}
        missing = [name for name in form if name not in value and name[-1] not in "?*"]
        if missing:
            raise ValueError(f"{place} lacks {missing[0]!r}")
        forms = dict.fromkeys(value, forms.pop("*", Any)) | forms
    else:
        forms = get_type_hints(form)
        foreign = [name for name in value if name not in forms]
        if foreign:
            raise ValueError(f"{place} has the unknown {foreign[0][:40]!r}")
    found = {name: checked(forms[name], x, f"{place} {name[:40]!r}") for name, x in value.items()}
    return form(**found) if isinstance(form, type) else found


def _require(is_met: bool, expected: str, value: Any, place: str) -> None:
    if not is_met:
        raise ValueError(f"{place}: expected {expected}, found {value!r:.40}")
