"""Files of settings for ``--config`` and ``--dump-config``: YAML, checkpoints, ``results.json``.

YAML is read by the core schema of 1.2, and written so that 1.1 agrees.
"""

import json
import os
import re
import textwrap
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from relu_nmt.config.classes import all_values, flat, idle_options, to_dict
from relu_nmt.config.fields import groups_of, known_fields, options_of
from relu_nmt.errors import ConfigError

MOST_VALUES = 100_000
TAG = "tag:yaml.org,2002:"
CORE_SCHEMA = {
    "null": "~|null|Null|NULL|",
    "bool": "true|True|TRUE|false|False|FALSE",
    "int": "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
}
"""Patterns of plain scalars other than text (YAML 1.2.2, 10.3.2)."""


def read_settings_file(config_class: type, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the values of a YAML file, a checkpoint or a ``results.json`` by field name.

    Fields may stand under the names of their groups or on their own.

    Raises:
        ConfigError: the file cannot be read, holds an unknown field or one that does nothing.
    """
    nested, is_stored = _nested_values(Path(path))
    try:
        found = known_fields(config_class, flat(nested))
        # Refuse idle values only in files by hand; stored files have all values.
        if not is_stored:
            for entry, text in idle_options(config_class, all_values(config_class, found, {})):
                if entry.name in found and not entry.no_effect:
                    raise ConfigError(text)
    except ConfigError as error:
        another = ", or another version or command of relu_nmt wrote it" if is_stored else ""
        raise ConfigError(f"{path}: {error}{another}") from error
    return found


def _nested_values(path: Path) -> tuple[Mapping[str, Any], bool]:
    """Return the settings in a file, and True if relu_nmt stored them beside other things."""
    try:
        if path.suffix == ".safetensors":
            return _checkpoint_settings(path), True
        text = path.read_text("utf-8-sig")
        values = json.loads(text) if path.suffix == ".json" else parse_yaml(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--config {path}: cannot read it: {error}") from error
    if values is None:
        return {}, False
    if not isinstance(values, dict):
        raise ConfigError(f"--config {path}: expected lines such as 'max_tokens: 4000'")
    if path.suffix == ".json" and isinstance(values.get("settings"), dict):
        return values["settings"], True
    return values, False


def _checkpoint_settings(path: Path) -> Mapping[str, Any]:
    """Return the ``args`` of a checkpoint."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            settings = json.loads(file.metadata()["args"])
        if not isinstance(settings, dict):
            raise ValueError("args is not a table")
        return settings
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"--config {path}: not a checkpoint with settings in it") from error


def to_yaml(config: Any, indent: str = "") -> str:
    """Return settings as YAML that ``--config`` reads, with the help of each as a comment."""
    values = to_dict(config)
    text = ""
    heading = ""
    for name, entry in options_of(type(config)).items():
        if entry.heading != heading:
            heading = entry.heading
            text += f"\n{indent}# {heading}\n"
        # Write tuples as lists, which YAML has.
        value = list(values[name]) if isinstance(values[name], tuple) else values[name]
        if isinstance(value, int) and entry.show is not None:
            value = entry.show(value)
        comment = textwrap.wrap(entry.help, 96 - len(indent))
        text += "".join(f"{indent}# {part}\n" for part in comment)
        text += f"{indent}{name}: {dump_value(value)}\n"
    for name, (title, _) in groups_of(type(config)).items():
        text += f"\n{indent}# {title}\n{indent}{name}:\n"
        text += to_yaml(getattr(config, name), indent + "  ")
    return text


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text; JSON is YAML.

    Plain scalars follow the core schema of YAML 1.2: ``no`` and ``1:30`` are texts, ``010`` is 10
    and ``7e-4`` a number. Merge keys (``<<``) are kept from YAML 1.1.

    Raises:
        ValueError: the text is not YAML, gives a name twice, is nested too deeply, or repeats
            itself by aliases to more than :data:`MOST_VALUES` values; the reason is one line.

    Example:
        >>> parse_yaml("{max_tokens: 4000, source_lang: no}")
        {'max_tokens': 4000, 'source_lang': 'no'}
    """
    import yaml

    try:
        values = yaml.load(text, _loader())
        # Count the values, since aliases can make a short text very large.
        count = _count(values, {})
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    if count > MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES:,} values, or one that is in itself")
    return values


def dump_value(value: Any) -> str:
    """Return a value on one line that readers of YAML 1.1 and 1.2 both understand.

    Example:
        >>> dump_value("no"), dump_value([1, "010", "y", "plain"])
        ("'no'", "[1, '010', 'y', plain]")
    """
    import yaml

    text = yaml.dump([value], Dumper=_dumper(), default_flow_style=True, width=10**6)
    return text.strip()[1:-1]


@cache
def _loader() -> Any:
    """Return PyYAML's safe loader with the scalars of the core schema and without repeated keys."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Reader of YAML 1.2, which refuses a repeated key."""

        def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
            node = super().compose_mapping_node(anchor)
            names = set()
            # Refuse a repeated name, of which PyYAML would keep the last.
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in names:
                    text = f"'{key.value}' is given twice"
                    raise yaml.composer.ComposerError(None, None, text, key.start_mark)
                names.add(str(key.value))
            return node

    def construct(loader: Any, node: Any) -> Any:
        kind = node.tag.removeprefix(TAG)
        text = loader.construct_scalar(node)
        # Refuse a text with an explicit tag that it does not fit.
        if not re.fullmatch(CORE_SCHEMA[kind], text):
            raise yaml.constructor.ConstructorError(
                None, None, f"'{text}' is not a {kind} of YAML 1.2", node.start_mark
            )
        return _scalar(kind, text)

    # Keep merge keys alone of YAML 1.1, and add the core schema.
    Loader.yaml_implicit_resolvers = {"<": [(f"{TAG}merge", re.compile(r"<<\Z"))]}
    _add_core_schema(Loader)
    for kind in CORE_SCHEMA:
        Loader.add_constructor(TAG + kind, construct)
    # Leave out dates, which the core schema does not have.
    Loader.add_constructor(f"{TAG}timestamp", Loader.construct_undefined)
    return Loader


def _scalar(kind: str, text: str) -> bool | int | float | None:
    """Return the value of a plain scalar of the core schema."""
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int":
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    # Python writes infinity and NaN without the point.
    return float(text.replace(".", "", 1) if text[-1].isalpha() else text)


@cache
def _dumper() -> Any:
    """Return PyYAML's safe dumper, which quotes texts that some reader takes for another type."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Dumper that quotes a text that YAML 1.1 or 1.2 reads as another type."""

    def represent(dumper: Any, text: str) -> Any:
        # Only double quotes keep every character on one line.
        return dumper.represent_scalar(f"{TAG}str", text, style=None if text.isprintable() else '"')

    _add_core_schema(Dumper)
    # Quote single letters too, which YAML 1.1 takes for bools.
    Dumper.add_implicit_resolver(f"{TAG}bool", re.compile(r"[yYnN]\Z"), list("yYnN"))
    Dumper.add_representer(str, represent)
    return Dumper


def _add_core_schema(kind_of_yaml: Any) -> None:
    """Add the core schema to the scalars that a loader or dumper distinguishes from texts."""
    for kind, pattern in CORE_SCHEMA.items():
        kind_of_yaml.add_implicit_resolver(TAG + kind, re.compile(rf"(?:{pattern})\Z"), None)


def _count(value: Any, known: dict[int, int]) -> int:
    """Return the number of values in a value, repetitions by aliases counted."""
    if not isinstance(value, dict | list | set | tuple):
        return 1
    if id(value) not in known:
        known[id(value)] = MOST_VALUES + 1  # a value that contains itself has no end
        inner = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(one, known) for one in inner)
    return known[id(value)]
