"""Docstrings as the site's API reference wants them: roles of Sphinx, and the name of a section."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|mod|meth|attr|data|exc):`~?([\w.]+)`")


class Docstrings(griffe.Extension):
    """Rewrites each docstring as it is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of a module, class, function or attribute."""
        if obj.docstring:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = re.sub(r"(?m)^Example:$", "Examples:", text)
