"""YAML that others wrote."""

from typing import Any

MOST_VALUES = 100_000


def parse_yaml(text: str) -> Any:
    """Return what YAML holds; JSON is YAML.

    Raises:
        ValueError: it is no YAML, is nested too deeply, or repeats itself by aliases to more than
            :data:`MOST_VALUES` values; the reason is one line.

    Example:
        >>> parse_yaml("max_tokens: 4000")
        {'max_tokens': 4000}
    """
    import yaml

    try:
        values = yaml.safe_load(text)
        count = _count(values, {})
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    if count > MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES:,} values, or one that is in itself")
    return values


def _count(value: Any, known: dict[int, int]) -> int:
    """Return the number of values in a value, each as often as aliases repeat it."""
    if not isinstance(value, dict | list | set | tuple):
        return 1
    if id(value) not in known:
        known[id(value)] = MOST_VALUES + 1  # found again within itself, it has no end
        inner = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(one, known) for one in inner)
    return known[id(value)]
