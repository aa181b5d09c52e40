"""The checkpoints of a run: their names, which are kept, and which one training goes on from."""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from relu_nmt.errors import CheckpointError, ConfigError
from relu_nmt.training.checkpoint import SUFFIX, Checkpoint, save_checkpoint
from relu_nmt.training.config import CheckpointConfig, ValidationConfig
from relu_nmt.training.results import BEST, LAST

# The new file is complete before an old one goes.
FILES_AT_ONCE = 2
BYTES_PER_VALUE = 4
# Values per weight in a checkpoint: the weight and Adam's two moments; one more with EMA.
VALUES_PER_WEIGHT = 3


@dataclass(frozen=True)
class Moment:
    """When a checkpoint is written.

    Args:
        epoch: from 1.
        num_updates: updates made.
        end_of_epoch: whether the epoch is complete.
        score: the validation score, None if there was no validation.
        is_best: whether it is the best so far.
    """

    epoch: int
    num_updates: int
    end_of_epoch: bool
    score: float | None
    is_best: bool


class CheckpointFolder:
    """The folder ``--save-dir``.

    Args:
        config: where, and what is kept.
        validation: the metric of the best checkpoint.

    Example:
        >>> folder = CheckpointFolder(CheckpointConfig(), ValidationConfig())
        >>> folder.names(Moment(3, 300, end_of_epoch=True, score=None, is_best=False))
        ['checkpoint3.safetensors', 'checkpoint_last.safetensors']
    """

    def __init__(self, config: CheckpointConfig, validation: ValidationConfig) -> None:
        self._config = config
        self._metric = validation.best_checkpoint_metric
        self._maximize = validation.maximize
        self.path = Path(config.save_dir)

    def names(self, moment: Moment) -> list[str]:
        """Return the names under which the checkpoint of this moment is kept."""
        config = self._config
        if config.no_save:
            return []
        names = []
        if moment.end_of_epoch:
            if not config.no_epoch_checkpoints and moment.epoch % config.save_interval == 0:
                names.append(f"checkpoint{moment.epoch}{SUFFIX}")
        elif (
            config.save_interval_updates > 0
            and moment.num_updates % config.save_interval_updates == 0
        ):
            names.append(f"checkpoint_{moment.epoch}_{moment.num_updates}{SUFFIX}")
        if moment.is_best:
            names.append(BEST)
            if config.keep_best_checkpoints > 0:
                value = f"{moment.score:.2f}"
                names.append(f"checkpoint.best_{self._metric}_{value}{SUFFIX}")
        if not config.no_last_checkpoints:
            names.append(LAST)
        return names

    def write(self, checkpoint: Checkpoint, names: list[str]) -> None:
        """Write one checkpoint under several names, then remove those not to be kept.

        Raises:
            CheckpointError: it cannot be written; the older ones are still there.
        """
        first, *others = names
        save_checkpoint(self.path / first, checkpoint)
        for name in others:
            self._link(self.path / first, self.path / name)
        self._prune()

    def restore_path(self) -> Path | None:
        """Return the checkpoint that training goes on from; None for a fresh start.

        Raises:
            CheckpointError: ``--restore-file`` names a file that does not exist.
        """
        wanted = self._config.restore_file
        for path in (self.path / wanted, Path(wanted)):
            if path.is_file():
                return path
        if wanted == LAST:
            return None
        raise CheckpointError(f"--restore-file {wanted}: no such file, here or in {self.path}")

    def check(self, num_weights: int, averaged: bool) -> None:
        """See that the folder can be written and has room.

        Args:
            num_weights: parameters of the model.
            averaged: their average is stored too.

        Raises:
            ConfigError: it cannot, or has not.
        """
        if self._config.no_save:
            return
        checkpoint_bytes = num_weights * (VALUES_PER_WEIGHT + averaged) * BYTES_PER_VALUE
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".writable.{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigError(
                f"--save-dir {self.path}: cannot be written ({error.strerror})"
            ) from error
        free = shutil.disk_usage(self.path).free
        if free < FILES_AT_ONCE * checkpoint_bytes:
            raise ConfigError(
                f"--save-dir {self.path}: {free / 1e9:.2f} GB free, but a checkpoint takes "
                f"{checkpoint_bytes / 1e9:.2f} GB and {FILES_AT_ONCE} must fit; free some space or "
                "choose another folder"
            )

    def _link(self, source: Path, target: Path) -> None:
        """Give a file a further name, without another copy where the disk can do that."""
        temporary = target.with_name(f".{target.name}.tmp")
        try:
            temporary.unlink(missing_ok=True)
            try:
                os.link(source, temporary)
            except OSError:
                shutil.copyfile(source, temporary)
            os.replace(temporary, target)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise CheckpointError(
                f"{target}: cannot write the checkpoint ({error.strerror}); it is stored as "
                f"{source.name}"
            ) from error

    def _prune(self) -> None:
        config = self._config
        suffix = re.escape(SUFFIX)
        self._keep(rf"checkpoint_\d+_(\d+){suffix}", config.keep_interval_updates, largest=True)
        self._keep(rf"checkpoint(\d+){suffix}", config.keep_last_epochs, largest=True)
        self._keep(
            rf"checkpoint\.best_{re.escape(self._metric)}_(-?\d+\.?\d*){suffix}",
            config.keep_best_checkpoints,
            largest=self._maximize,
        )

    def _keep(self, pattern: str, count: int, largest: bool) -> None:
        """Remove all files that match but those with the ``count`` largest (smallest) numbers."""
        if count <= 0:
            return
        found = []
        for path in self.path.iterdir():
            match = re.fullmatch(pattern, path.name)
            if match:
                found.append((float(match.group(1)), path))
        found.sort(reverse=largest)
        for _, path in found[count:]:
            path.unlink(missing_ok=True)
