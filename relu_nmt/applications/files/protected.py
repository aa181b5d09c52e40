"""Texts that are not translated: placeholders, addresses, references to entities."""

import re
from collections.abc import Sequence

_PROTECTED = re.compile(
    r"""
    (?:https?|ftp)://[^\s<>"']*[^\s<>"'.,;:!?)\]]      # addresses of pages
  | \bwww\.[\w-]+\.[^\s<>"']*[^\s<>"'.,;:!?)\]]
  | (?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+           # and of people
  | \$\{[\w.]+\} | \{\{[^{}\n]*\}\} | \{[\w.!:%\#-]*\}  # ${x}, {{ x }}, {name}
  | %(?:\([\w.-]+\)|\d+\$)?[-+\#0]*\d*(?:\.\d+)?(?:hh?|ll?|[zjtL])?[diouxXeEfFgGcrsa](?![^\W_])
  | %(?:\d+|n)(?![^\W_%]) | %[A-Z][A-Z_]+%                   # Qt's %1, %NAME%
  | (?<![\w$])\$[A-Za-z_]\w*                             # $x
  | &(?:[A-Za-z][\w.-]*|\#\d+|\#x[\da-fA-F]+);           # references to entities
    """,
    re.VERBOSE,
)


def protected_spans(text: str, occupied: Sequence[tuple[int, int]] = ()) -> list[tuple[int, int]]:
    """Return the places of placeholders and addresses outside the places that are taken.

    Example:
        >>> text = "Hello {name}, %(n)d new at http://a.org/b."
        >>> [text[begin:end] for begin, end in protected_spans(text)]
        ['{name}', '%(n)d', 'http://a.org/b']
    """
    spans = []
    for match in _PROTECTED.finditer(text):
        begin, end = match.span()
        if all(end <= other_begin or other_end <= begin for other_begin, other_end in occupied):
            spans.append((begin, end))
    return spans
