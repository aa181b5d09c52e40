"""Scalars for TensorBoard."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relu_nmt.errors import ConfigError, MissingExtraError

# Values of the log that are no curves.
NOT_CURVES = ("num_updates",)


class TensorBoardLog:
    """One run per tag (``train_inner``, ``train``, ``valid``) under a folder, as in fairseq.

    Args:
        folder: the folder; None writes nothing.

    Raises:
        ConfigError: the folder cannot be made.
        MissingExtraError: tensorboard is not installed.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._first_update = 0
        self._writers: dict[str, Any] = {}
        if not folder:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError(
                "--tensorboard-logdir needs the package tensorboard; install it with "
                "pip install tensorboard"
            ) from error
        self._writer_class = SummaryWriter
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--tensorboard-logdir {folder}: cannot be made ({error.strerror})"
            ) from error

    @property
    def active(self) -> bool:
        """Whether anything is written."""
        return bool(self._folder)

    def begin(self, num_updates: int) -> None:
        """Hide what an earlier run wrote after ``num_updates``; comes before :meth:`add`."""
        self._first_update = num_updates + 1

    def add(self, tag: str, values: Mapping[str, float], num_updates: int) -> None:
        """Write the finite values as scalars at an update."""
        if not self._folder:
            return
        if tag not in self._writers:
            self._writers[tag] = self._writer_class(
                str(Path(self._folder) / tag), purge_step=self._first_update
            )
        for name, value in values.items():
            if name not in NOT_CURVES and math.isfinite(value):
                self._writers[tag].add_scalar(name, value, num_updates)
        self._writers[tag].flush()

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
