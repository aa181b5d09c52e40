"""Other names of registered parts, for the advice in errors: :data:`OTHER_NAMES`."""

import re
import unicodedata
from pathlib import Path

from relu_nmt.config.yaml_text import parse_yaml

OTHER_NAMES = Path(__file__).with_name("other_names.yaml")
"""Advice by kind of part, with the names to which it is given."""


def plain_name(name: object) -> str:
    """Return the small letters and digits of a name, without accents, "attention" and "attn".

    Example:
        >>> plain_name("ReLU²-attention"), plain_name("Nyström"), plain_name("entmax_1.5")
        ('relu2', 'nystrom', 'entmax15')
    """
    letters = unicodedata.normalize("NFKD", str(name)).lower()
    return re.sub(r"[\W_]|attention|attn", "", letters)


def usual_name(kind: str, name: object) -> str | None:
    """Return the names that a kind of part has for another name, or None for an unknown one."""
    kinds = parse_yaml(OTHER_NAMES.read_text("utf-8"))
    for advice, other_names in kinds.get(kind, {}).items():
        if plain_name(name) in other_names.split():
            return advice
    return None
