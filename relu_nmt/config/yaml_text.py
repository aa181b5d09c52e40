"""YAML 1.2, read and written by ruamel.yaml."""

import functools
import io
import json
from pathlib import Path
from typing import Any

MOST_VALUES = 100_000
FOREIGN_ERRORS = (LookupError, TypeError, AssertionError)  # ruamel.yaml raises them, too


def parse_yaml(text: str) -> Any:
    """Return the value of a text in YAML 1.2, to which JSON belongs.

    ``no``, ``1:30`` and ``2001-12-14`` are texts, ``010`` is 10 and ``7e-4`` a number. Beyond YAML,
    ``1_000`` and ``0b11`` are numbers.

    Raises:
        ValueError: no YAML, a name twice, nested too deeply, or more than :data:`MOST_VALUES`
            values by aliases. The reason is one line.

    Example:
        >>> parse_yaml("{max_tokens: 4000, source_lang: no}")
        {'max_tokens': 4000, 'source_lang': 'no'}
    """
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        value = _yaml().load(text)
        # Count the values, since aliases can make a short text very large.
        count = _count(value, {})
    except MarkedYAMLError as error:
        # Leave out the advice to Python programmers behind the problem.
        mark = error.problem_mark or error.context_mark
        position = f"line {mark.line + 1}, column {mark.column + 1}"
        parts = filter(None, [error.context, error.problem, position])
        raise ValueError(", ".join(parts)) from error
    except (YAMLError, ValueError, RecursionError, *FOREIGN_ERRORS) as error:
        raise ValueError(" ".join(str(error).split())) from error
    if count > MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES:,} values, or one that is in itself")
    return value


def read_presets(path: Path) -> dict[str, dict[str, Any]]:
    """Return the presets of a file by name. Names with a dot in front are parts they share."""
    presets: dict[str, dict[str, Any]] = {}
    for preset, settings in parse_yaml(path.read_text("utf-8")).items():
        if preset.startswith("."):
            continue
        presets[preset] = dict(settings)
        for name, value in settings.items():
            if isinstance(value, list):
                presets[preset][name] = tuple(value)
    return presets


def dump_value(value: Any) -> str:
    """Return a value on one line that readers of YAML 1.1 and 1.2 both understand.

    Example:
        >>> dump_value("no"), dump_value([1, "010", "y", "plain"])
        ("'no'", "[1, '010', 'y', plain]")
    """
    text = json.dumps(value, ensure_ascii=False)
    return text if value is None or isinstance(value, int) else _as_yaml(text)


@functools.cache
def _as_yaml(json_text: str) -> str:
    value = json.loads(json_text)
    yaml = _yaml()
    file = io.StringIO()
    yaml.version = (1, 1)
    yaml.dump([value], file)
    text = file.getvalue().partition("--- ")[2].strip()[1:-1]
    # Quote a text that only YAML 1.2 reads as a number, as JSON does.
    return text if parse_yaml(text) == value else json_text


def _yaml() -> Any:
    """Return a reader and writer of YAML on one line."""
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import SafeConstructor

    class Constructor(SafeConstructor):
        """Constructor that leaves dates and ``=`` as texts, as YAML 1.2 does."""

    for kind in ("timestamp", "value"):
        Constructor.add_constructor(f"tag:yaml.org,2002:{kind}", SafeConstructor.construct_yaml_str)
    yaml = YAML(typ="safe", pure=True, plug_ins=[])  # looking for plug-ins reads a folder
    yaml.Constructor = Constructor
    yaml.default_flow_style = True
    yaml.width = 10**6
    return yaml


def _count(value: Any, counts: dict[int, int]) -> int:
    """Return the number of values in a value, repetitions by aliases counted."""
    if not isinstance(value, dict | list | set | tuple):
        return 1
    if id(value) not in counts:
        counts[id(value)] = MOST_VALUES + 1  # a value that contains itself has no end
        elements = value.values() if isinstance(value, dict) else value
        counts[id(value)] = 1 + sum(_count(element, counts) for element in elements)
    return counts[id(value)]
