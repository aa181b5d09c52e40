"""Errors that a user of relu_nmt can cause and mend.

Every message is one line: the value, its origin, the expected value and the remedy. Commands print
it and exit with status 2. A library caller may catch :class:`ReluNmtError`. A docstring names an
error where its class alone does not tell the cause.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

IN_BRACKETS = "{} ({})"
"""Form of a message: the text, and the reason in brackets."""
NO_MEMORY = (
    *("can't allocate memory", "not enough memory", "bad allocation", "out of memory"),
    "can't start new thread",
)
"""Parts of the messages of PyTorch, on CPU and GPU, and of Python about missing memory."""


_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that command a terminal, or change the direction of the text around them."""


def printable(text: str) -> str:
    r"""Return text that may quote foreign names as one line without commands to a terminal.

    Example:
        >>> printable("a name\nwith \x1b[2J")
        'a name with \\x1b[2J'
    """
    line = " ".join(text.splitlines())
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), line)


class ReluNmtError(Exception):
    """Base class of all errors that a user can mend."""

    def __str__(self) -> str:
        return printable(super().__str__())


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an error from lack of memory, PyTorch's included."""
    reported = isinstance(error, RuntimeError) and any(text in str(error) for text in NO_MEMORY)
    return reported or isinstance(error, MemoryError)


class ConfigError(ReluNmtError):
    """A flag, an argument or a combination of them cannot work."""


class DataError(ReluNmtError):
    """A data file is missing, damaged or does not fit the other files."""


class CheckpointError(ReluNmtError):
    """A checkpoint is missing, damaged or does not fit the model or the data."""


class TrainingError(ReluNmtError):
    """Training cannot go on, for example because the loss is not finite."""


class OutOfMemoryError(ReluNmtError):
    """A model, a batch or a search does not fit into memory. The message says which."""


class MissingExtraError(ReluNmtError):
    """An optional package is needed and not installed. The message names the package."""


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, whose plural ends in s or es.

    Example:
        >>> counted(1, "line"), counted(1024, "line"), counted(2, "class")
        ('1 line', '1,024 lines', '2 classes')
    """
    ending = "es" if noun.endswith(("s", "x")) else "s"
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def some_of(names: Sequence[str], most: int = 5, between: str = ", ") -> str:
    """Return the first ``most`` names in words, and the number of further names.

    Example:
        >>> some_of(["a", "b", "c"], most=2)
        'a, b and 1 more'
    """
    text = between.join(names[:most])
    if len(names) > most:
        text += f" and {len(names) - most:,} more"
    return text


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the error's name if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def refuse_unordered(items: object, name: str) -> None:
    """Raise a DataError for a set or mapping, whose results would come in no known order."""
    if isinstance(items, set | frozenset | Mapping):
        raise DataError(f"{name} are a {type(items).__name__}, which has no order; give a list")


@contextmanager
def reporting(
    text: str | os.PathLike[str],
    kind: type[ReluNmtError] = DataError,
    caught: type[Exception] | tuple[type[Exception], ...] = OSError,
    form: str = "{}: {}",
    advice: str = "",
) -> Iterator[None]:
    """Turn an error in the block into an error of this kind, with text, reason and advice."""
    try:
        yield
    except caught as error:
        message = form.format(text, getattr(error, "strerror", None) or error)
        raise kind(f"{message}; {advice}" if advice else message) from error


@contextmanager
def needing(text: str) -> Iterator[None]:
    """Turn a failed import inside the block into a MissingExtraError with this text.

    ``{}`` in the text stands for the module. An error of a module of this package stays as it is.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] == __package__:
            raise
        # Add the reason if the module is there, but cannot be used.
        reason = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise MissingExtraError(text.replace("{}", error.name or "") + reason) from error
