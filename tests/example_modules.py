"""The modules of an example, imported as its own scripts import them."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

EXAMPLES = Path(__file__).parents[1] / "examples"


@contextlib.contextmanager
def example_modules(folder: str, *names: str) -> Iterator[SimpleNamespace]:
    """Give the modules by their names; afterwards they are forgotten, as others have such names.

    Args:
        folder: of the example, below ``examples``.
        names: of its modules, in the order in which they are imported.
    """
    sys.path.insert(0, str(EXAMPLES / folder))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(str(EXAMPLES / folder))
        for name in names:
            sys.modules.pop(name, None)
