"""YAML that others wrote."""

from typing import Any

MOST_VALUES = 100_000


def parse_yaml(text: str) -> Any:
    """Return what YAML holds; JSON is YAML.

    Raises:
        ValueError: it is no YAML, gives a name twice, is nested too deeply, or repeats itself by
            aliases to more than :data:`MOST_VALUES` values; the reason is one line.

    Example:
        >>> parse_yaml("max_tokens: 4000")
        {'max_tokens': 4000}
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """The same, but a name that is given twice is an error, as YAML says."""

        def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
            node = super().compose_mapping_node(anchor)
            names = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in names:
                    text = f"'{key.value}' is given twice"
                    raise yaml.composer.ComposerError(None, None, text, key.start_mark)
                names.add(str(key.value))
            return node

    try:
        values = yaml.load(text, Loader)
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
