"""Machine and versions, and facts that need PyTorch, found in a process of its own."""

import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import relu_nmt
from relu_nmt.config.registry import import_user_module
from relu_nmt.errors import ConfigError, ReluNmtError
from relu_nmt.io.process import available_cores

PACKAGES = ("torch", "numpy", "sacrebleu", "sentencepiece", "subword-nmt", "matplotlib")


def probe(attentions: Sequence[str], user_modules: Sequence[str]) -> dict[str, Any]:
    """Return facts about GPUs and attentions without importing PyTorch here.

    So the process of the sweep stays small.

    Returns:
        ``gpus``: names of the GPUs; ``without_weights``: attentions without weights to measure.

    Raises:
        ConfigError: PyTorch or an attention cannot be imported, or lacks an option.
    """
    # Run this module, which reads and prints JSON.
    done = subprocess.run(
        [sys.executable, "-m", "relu_nmt.applications.sweep.environment"],
        input=json.dumps([list(attentions), list(user_modules)]),
        capture_output=True,
        text=True,
        check=False,
    )
    # Pass on the last line, which holds the error.
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ConfigError(f"--attentions {lines[-1]}")
    return json.loads(done.stdout)


def _inspect(attentions: Sequence[str], user_modules: Sequence[str]) -> dict[str, Any]:
    """Return the result of :func:`probe`; runs in the process that imports PyTorch."""
    # Import PyTorch here only, in the process of the probe.
    import torch

    from relu_nmt.attention import attentions as registry
    from relu_nmt.config import from_flat
    from relu_nmt.config.registry import Spec

    # Register the user's attentions.
    for path in user_modules:
        import_user_module(path)
    # Check the options of each attention, and note those without weights.
    without_weights = []
    for name in attentions:
        spec = Spec.parse(name)
        kind = registry.get(spec.name)
        try:
            from_flat(kind.Config, spec.options)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error
        if not kind.capabilities.weights:
            without_weights.append(name)
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"gpus": gpus, "without_weights": without_weights}


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
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _revision() -> str:
    """Return the running commit, with ``+`` if files changed; empty outside a repository."""
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
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


if __name__ == "__main__":
    wanted, modules = json.load(sys.stdin)
    try:
        print(json.dumps(_inspect(wanted, modules)))
    except ReluNmtError as error:
        sys.exit(str(error))
    except ImportError as error:
        sys.exit(f"{','.join(wanted)}: {error}")
