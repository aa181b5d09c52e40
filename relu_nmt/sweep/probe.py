"""Look at PyTorch and the attentions once, in a process of its own: the sweep stays small."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from relu_nmt.errors import ConfigError, ReluNmtError
from relu_nmt.user_modules import import_user_module


def probe(attentions: Sequence[str], user_modules: Sequence[str]) -> dict[str, Any]:
    """Return what only PyTorch knows.

    Args:
        attentions: names, with or without options.
        user_modules: files that register attentions.

    Returns:
        ``gpus``: their names; ``without_weights``: the attentions that have none to measure.

    Raises:
        ConfigError: PyTorch or an attention cannot be imported, or has no such options.
    """
    command = [sys.executable, "-m", "relu_nmt.sweep.probe"]
    done = subprocess.run(
        command,
        input=json.dumps([list(attentions), list(user_modules)]),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ConfigError(f"--attentions {lines[-1]}")
    return json.loads(done.stdout)


def _look(attentions: Sequence[str], user_modules: Sequence[str]) -> dict[str, Any]:
    import torch

    from relu_nmt.attention import attentions as registry
    from relu_nmt.attention.spec import AttentionSpec
    from relu_nmt.config import from_strings

    for path in user_modules:
        import_user_module(path)
    kinds = {}
    for name in attentions:
        spec = AttentionSpec.parse(name)
        kinds[name] = registry.get(spec.name)
        try:
            from_strings(kinds[name].Config, spec.options)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error
    return {
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "without_weights": [n for n, kind in kinds.items() if not kind.capabilities.weights],
    }


if __name__ == "__main__":
    wanted, modules = json.load(sys.stdin)
    try:
        print(json.dumps(_look(wanted, modules)))
    except ReluNmtError as error:
        sys.exit(str(error))
    except ImportError as error:
        sys.exit(f"{','.join(wanted)}: {error}")
