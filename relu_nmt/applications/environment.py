"""Versions of the software and names of the hardware with which results were computed."""

import platform
import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import relu_nmt
from relu_nmt.io.process import available_cores

PACKAGES = ("torch", "numpy", "sacrebleu", "sentencepiece", "subword-nmt", "matplotlib")
"""The packages whose versions :func:`describe_environment` names."""


def describe_environment(gpus: Sequence[str] = ()) -> dict[str, Any]:
    """Return versions and machine as JSON values."""
    return {
        "relu_nmt": relu_nmt.__version__,
        "revision": _revision(),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": available_cores(),
        "gpus": list(gpus),
    }


def _version(package: str) -> str:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return "absent"


def _revision() -> str:
    """Return the running commit, with ``+`` if files changed, empty outside a repository."""
    git = ["git", "-C", str(Path(relu_nmt.__file__).parent)]
    try:
        commit, changes = (
            subprocess.run([*git, *words], capture_output=True, text=True, check=True).stdout
            for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "."])
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{commit.strip()}{'+' if changes else ''}"


def _cpu_name() -> str:
    with suppress(OSError):
        information = Path("/proc/cpuinfo").read_text("utf-8", errors="replace")
        name = re.search(r"^model name\s*:(.*)", information, re.MULTILINE)
        if name is not None:
            return name[1].strip()
    return platform.processor()
