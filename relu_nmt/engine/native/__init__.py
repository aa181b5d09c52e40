"""Kernels in C++ for decoding on CPUs, and the table of their arguments.

Each kernel computes in one call and one thread the result of many calls of PyTorch. Where no
compiler was available at installation, or gradients are needed, PyTorch computes the result.
"""

import ctypes
import re
import warnings
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch

MAX_THREADS = 2
"""Prefer the single-threaded kernels over PyTorch's up to this many threads of PyTorch."""

DTYPES = {torch.float32: "float", torch.bfloat16: "bfloat16"}
"""Compute dtypes, and their names at the end of kernel names."""
FORMS = {"AVX512": ("avx512", "avx2"), "AVX2": ("avx2",)}
"""Forms of kernels that a processor can run, best first, by PyTorch's name of its capability."""
INSTRUCTIONS = {
    "linear_bfloat16": "_is_avx512_bf16_supported",
    "linear_int8": "_is_vnni_supported",
    "layers_step_bfloat16": "_is_avx512_bf16_supported",
    "layers_step_int8": "_is_vnni_supported",
}
"""Functions of ``torch.cpu`` that must return True for the form ``avx512`` of a kernel."""


def _entries(table: str) -> list[tuple[str, list[str]]]:
    """Return the kind and the words of each entry of a table of arguments."""
    entries = re.findall(r"^ *([A-Z]+)(?:\((.*?)\))?", table, re.MULTILINE)
    return [(kind, re.split(r", *", words)) for kind, words in entries]


def _structs() -> dict[str, dict[str, str]]:
    """Return the fields of each struct of the table, with ``POINTER``, ``SIZE`` or a struct."""
    structs: dict[str, dict[str, str]] = {}
    for kind, words in _TABLE:
        if kind == "STRUCT":
            fields = structs.setdefault(words[0], {})
        elif kind in ("POINTER", "NESTED", "SIZE"):
            fields[words[-1]] = words[0] if kind == "NESTED" else kind
    return structs


def struct_words(struct: str, values: Mapping[str, Any]) -> list[int]:
    """Return the values of all fields of a struct as words of 8 bytes, in the table's order.

    Pointers are tensors or None, sizes integers or flags, nested structs mappings. The words of
    tensors are their addresses.

    Raises:
        TypeError: a field is missing or unknown.

    Example:
        >>> struct_words("NormWeights", {"gain": None, "bias": None})
        [0, 0]
    """
    fields = STRUCTS[struct]
    # Look up every field by name, so the order of ``values`` does not matter.
    if fields.keys() != values.keys():
        missing = sorted(fields.keys() - values)
        unknown = sorted(values.keys() - fields)
        raise TypeError(f"{struct} of arguments.inc: missing {missing}, unknown fields {unknown}")
    words: list[int] = []
    for name, kind in fields.items():
        value = values[name]
        if kind == "SIZE":
            words.append(value)
        elif kind == "POINTER":
            words.append(0 if value is None else value.data_ptr())
        else:
            words += struct_words(kind, value)
    return words


_TABLE = _entries(Path(__file__).with_name("arguments.inc").read_text("utf-8"))
STRUCTS = _structs()
CONSTANTS = {words[0]: int(words[1]) for kind, words in _TABLE if kind == "CONSTANT"}


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled kernels. None if they are missing, or come from another table."""
    path = Path(__file__).with_name(f"kernels{EXTENSION_SUFFIXES[0]}")
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError:
        return None
    # Compare the tables, since fields at other places would be read as wrong addresses.
    table = ""
    with suppress(AttributeError):
        loaded.kernels_arguments.restype = ctypes.c_char_p
        table = loaded.kernels_arguments().decode()
    if _entries(table) == _TABLE:
        return loaded
    warnings.warn(
        f"{path}: compiled from other sources than these, and not used: decoding is slower; "
        "install relu_nmt again",
        stacklevel=2,
    )
    return None


def is_wanted() -> bool:
    """Return whether kernels are there, and faster than PyTorch with its number of threads."""
    return torch.get_num_threads() <= MAX_THREADS and has_kernel("best_continuations")


def has_kernel(name: str) -> bool:
    """Return whether this processor has a kernel."""
    return library() is not None and _find(name) is not None


def call(name: str, structs: Sequence[tuple[str, Mapping[str, Any]]], number: float = 1.0) -> None:
    """Call a kernel by its name without the form.

    ``structs`` of arguments.inc follow one another in memory, each with its name and the values of
    :func:`struct_words`. ``number`` is the kernel's factor or epsilon, if it has one.
    """
    kernel = _find(name)
    assert kernel is not None, f"look with has_kernel before calling {name}"
    words = array("q")  # 8 bytes each
    for struct, values in structs:
        words.extend(struct_words(struct, values))
    kernel(words.buffer_info()[0], number)


def forms() -> tuple[str, ...]:
    """Return the forms of kernels that this processor can run, best first."""
    return FORMS.get(torch.backends.cpu.get_cpu_capability(), ())


@cache
def _find(name: str) -> Callable[..., None] | None:
    """Return the best form of a kernel for this processor. None if it has no form."""
    loaded = library()
    assert loaded is not None, f"look with has_kernel before calling {name}"
    # Try the best form first. AVX512 kernels may need further instructions.
    for form in forms():
        if form == "avx512" and name in INSTRUCTIONS:
            is_supported = getattr(torch.cpu, INSTRUCTIONS[name], bool)
            if not is_supported():
                continue
        function = getattr(loaded, f"{name}_{form}", None)
        if function is not None:
            # Declare the types, since ctypes would cut addresses to 4 bytes.
            function.argtypes = [ctypes.c_void_p, ctypes.c_double]
            function.restype = None
            return function
    return None
