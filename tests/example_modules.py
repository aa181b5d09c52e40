"""Import the modules of an example as the scripts of the example do."""

import contextlib
import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

EXAMPLES = Path(__file__).parents[1] / "examples"


@contextlib.contextmanager
def example_modules(folder: str, names: Iterable[str]) -> Iterator[SimpleNamespace]:
    """Yield the modules by name, and forget them afterwards: other examples share the names.

    Args:
        folder: folder of the example, below ``examples``.
        names: names of its modules, in the order of the imports.
    """
    sys.path.insert(0, str(EXAMPLES / folder))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(str(EXAMPLES / folder))
        for name in names:
            sys.modules.pop(name, None)
