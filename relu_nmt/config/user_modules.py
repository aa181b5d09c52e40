"""Files of the user's that add to the registries, such as an attention of one's own."""

import hashlib
import importlib.util
import sys
from pathlib import Path

from relu_nmt.errors import ConfigError

FLAG = "--user-module"
MODULE_PREFIX = "relu_nmt_user_"
"""Begins the name of each such module, which Python finds under no other."""


def import_user_module(path: str) -> str:
    """Import a Python file or package, so that what it registers can be used; but once.

    Returns ``path``, as a type of argparse does.

    The file is run as it is: it is the user's own code.

    Args:
        path: a ``.py`` file, or a folder with an ``__init__.py``.

    Raises:
        ConfigError: there is no such file, or running it fails.
    """
    given = Path(path).resolve()
    file = given / "__init__.py" if given.is_dir() else given
    if file.suffix != ".py" or not file.is_file():
        raise ConfigError(
            f"{FLAG} {path}: expected a Python file (.py), or a folder with an __init__.py"
        )
    # Two files may have the same name in different folders.
    name = f"{MODULE_PREFIX}{given.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return path
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up while it is being run.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{FLAG} {path}: running it fails: {type(error).__name__}: {reason}"
        ) from error
    return path
