"""Errors that a user of relu_nmt can cause and mend.

Every message is one line that gives the value and where it came from, what was expected, and
how to fix it. Commands print it and exit with status 2; a library caller may catch
:class:`ReluNmtError`.
"""

NO_MEMORY = ("can't allocate memory", "not enough memory", "bad allocation", "out of memory")
"""What PyTorch says of it, on CPU and GPU."""


class ReluNmtError(Exception):
    """Base class of all errors that a user can mend."""

    def __str__(self) -> str:
        # What it quotes, such as a name in a file, may have line ends in it.
        return " ".join(super().__str__().splitlines())


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error, PyTorch's too, is for lack of memory."""
    told = isinstance(error, RuntimeError) and any(text in str(error) for text in NO_MEMORY)
    return told or isinstance(error, MemoryError)


class ConfigError(ReluNmtError):
    """A flag, an argument or a combination of them cannot work."""


class DataError(ReluNmtError):
    """A data file is missing, damaged or does not fit the others."""


class CheckpointError(ReluNmtError):
    """A checkpoint is missing, damaged or does not fit the model or the data."""


class TrainingError(ReluNmtError):
    """Training cannot go on, for example because the loss is not finite."""


class OutOfMemoryError(ReluNmtError):
    """A batch does not fit into memory; the message gives its shape."""


class MissingExtraError(ReluNmtError):
    """An optional package is needed and not installed; the message names it."""
