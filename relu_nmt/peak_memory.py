"""The most memory that a process has had."""

import sys

# Linux counts in KiB, macOS in bytes.
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def peak_resident_bytes() -> int | None:
    """Return the most memory that this process has had resident; None where it is not counted."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT


def peak_gpu_bytes() -> int | None:
    """Return the most memory that tensors took on the GPU; None without one."""
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else None
