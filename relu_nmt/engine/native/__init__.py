"""Kernels in C++ for what decoding on CPUs does at every step, if installing could compile them.

Each computes what other code computes with PyTorch, in one call instead of many; where there is no
compiler, or no inference, that other code is used. They take one thread.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VERSION = 9
"""Of what the kernels take, as ``kernels_version`` of kernels.cpp: both change together, so that a
library from before is not used."""
MOST_THREADS = 2
"""Up to which one thread of theirs is as fast: they take a quarter to 0.85 of the time."""
DTYPES = {torch.float32: "float", torch.bfloat16: "bfloat16"}
"""What they compute with, and how their names tell."""
FORMS = {"AVX512": ("avx512", "avx2", "any"), "AVX2": ("avx2", "any")}
"""By what PyTorch calls a processor, the forms of kernels that it can run, the best first."""
INSTRUCTIONS = {
    "linear_bfloat16": "_is_avx512_bf16_supported",
    "linear_int8": "_is_vnni_supported",
    "layers_step_bfloat16": "_is_avx512_bf16_supported",
    "layers_step_int8": "_is_vnni_supported",
}
"""What the form ``avx512`` of a kernel needs besides: what ``torch.cpu`` has to say yes to."""


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled kernels; None if there are none that fit."""
    path = Path(__file__).with_name(f"kernels{EXTENSION_SUFFIXES[0]}")
    try:
        loaded = ctypes.CDLL(str(path))
        version = loaded.kernels_version()
    except (OSError, AttributeError):
        return None
    return loaded if version == VERSION else None


def is_wanted() -> bool:
    """Return whether there are kernels, and not so many threads that PyTorch is faster by these."""
    return torch.get_num_threads() <= MOST_THREADS and library() is not None


def has_kernel(name: str) -> bool:
    """Return whether a kernel, which not every processor has, is there."""
    return library() is not None and _find(name) is not None


def call(
    name: str, tensors: Sequence[Tensor | None], sizes: Sequence[int], factor: float = 1.0
) -> None:
    """Call a kernel.

    Args:
        name: without the processor.
        tensors: what it reads and writes, in the order of its pointers; None for a null pointer.
        sizes: the members of its shape.
        factor: a number that it computes with, if it does.
    """
    pointers = [None if x is None else x.data_ptr() for x in tensors]
    kernel = _find(name)
    assert kernel is not None, "whoever calls has looked"
    kernel(
        _array(ctypes.c_void_p, len(pointers))(*pointers),
        _array(ctypes.c_int64, len(sizes))(*sizes),
        factor,
    )


def forms() -> tuple[str, ...]:
    """Return the forms of kernels that this processor can run, the best first."""
    return FORMS.get(torch.backends.cpu.get_cpu_capability(), ("any",))


@cache
def _find(name: str) -> Callable[..., None] | None:
    """Return the best form of a kernel for this processor; None if it has none."""
    loaded = library()
    assert loaded is not None, "whoever calls has looked"
    for form in forms():
        needed = INSTRUCTIONS.get(name) if form == "avx512" else None
        function = getattr(loaded, f"{name}_{form}", None)
        if function is not None and (needed is None or getattr(torch.cpu, needed, bool)()):
            function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_double]
            function.restype = None
            return function
    return None


@cache
def _array(kind: Any, length: int) -> Any:
    return kind * length
