"""Machine and versions, for the report."""

import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import relu_nmt
from relu_nmt.sweep.settings import available_cores

PACKAGES = ("torch", "numpy", "sacrebleu", "sentencepiece", "subword-nmt", "matplotlib")


def describe_environment(gpus: Sequence[str] = ()) -> dict[str, Any]:
    """Return versions and machine as JSON values.

    Args:
        gpus: names of the GPUs.
    """
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
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _revision() -> str:
    """Return the commit that runs, with ``+`` if files were changed; empty outside a repository."""
    folder = Path(relu_nmt.__file__).parent
    texts = []
    for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--", "."]):
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *words], capture_output=True, text=True, check=False
            )
        except OSError:
            return ""
        if done.returncode:
            return ""
        texts.append(done.stdout.strip())
    commit, changes = texts
    return f"{commit}+" if changes else commit


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
