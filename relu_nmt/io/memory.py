"""Memory: how much is free, refusals of too much, and the peaks of this process."""

import os
import resource
import sys
from contextlib import suppress
from itertools import product
from pathlib import Path, PurePosixPath

from relu_nmt.errors import OutOfMemoryError

MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024  # in bytes: Linux counts KiB
CGROUPS = (
    ("", "memory.max", "memory.current"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""Folder, limit and use of a control group's memory, in versions 2 and 1."""
UNCHECKED_BYTES = 2**26  # do not compare smaller needs with the free memory


def free_memory(root: str = "/") -> int:
    """Return the bytes that this process may still use, the limits of its containers included."""
    try:
        words = Path(root, "proc/meminfo").read_text("ascii").split()
        free = 1024 * int(words[words.index("MemAvailable:") + 1])
    except (OSError, ValueError):  # not on Linux: take all of the machine's memory
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # Look at each control group of this process, and at those above, which may have limits too.
    lines: list[str] = []
    with suppress(OSError):  # a kernel without control groups
        lines = Path(root, "proc/self/cgroup").read_text("utf-8").splitlines()
    groups = set()
    for line in lines:
        group = PurePosixPath(line.split(":", 2)[-1].lstrip("/"))
        groups |= {group, *group.parents}
    for group, (version, *files) in product(groups, CGROUPS):
        folder = Path(root, "sys/fs/cgroup", version, group)
        with suppress(OSError, ValueError):  # no such group, or no limit
            limit, used = (int((folder / file).read_text("ascii")) for file in files)
            # Files that the system only caches make room for memory.
            stat = (folder / "memory.stat").read_text("ascii").split()
            counts = dict(zip(stat[::2], stat[1::2], strict=False))
            cached = counts.get("total_inactive_file") or counts.get("inactive_file", "0")
            free = min(free, limit - used + int(cached))
    return max(0, free)


def require_memory(subject: str, num_bytes: int, remedy: str) -> None:
    """Refuse a ``subject`` that needs more bytes than are free (OutOfMemoryError)."""
    if num_bytes <= UNCHECKED_BYTES:
        return
    free = free_memory()
    if num_bytes > free:
        raise OutOfMemoryError(
            f"out of memory: {subject} would take {num_bytes / 1e9:,.1f} GB at least, and "
            f"{free / 1e9:,.1f} GB are free; {remedy}"
        )


def peak_resident_bytes() -> int:
    """Return the peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT


def peak_gpu_bytes() -> int | None:
    """Return the peak memory of tensors on the GPU, or None without a GPU."""
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else None
