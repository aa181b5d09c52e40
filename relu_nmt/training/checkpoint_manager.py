"""The checkpoints of a training: their names, their pruning, and the one to go on from."""

import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from relu_nmt.errors import CheckpointError, ConfigError, DataError
from relu_nmt.io.safe_write import acquire_lock, copy_file, remove_abandoned, temporary_folder
from relu_nmt.training.checkpoint import SUFFIX, Checkpoint, save_checkpoint
from relu_nmt.training.config import TrainerConfig
from relu_nmt.training.results import BEST, LAST

# Names of the checkpoints saved by updates and by epochs, up to the suffix.
BY_UPDATES = r"checkpoint_\d+_(\d+)"
BY_EPOCHS = r"checkpoint(\d+)"
WRITTEN = re.compile(
    rf"(?:{BY_UPDATES}|{BY_EPOCHS}|checkpoint_best|checkpoint_last|checkpoint\.best_.+)"
    + re.escape(SUFFIX)
)
"""Names of all checkpoints that a training writes."""
LOCK = ".lock"
BYTES_PER_VALUE = 4
# Values per weight in a checkpoint: the weight and Adam's two moments; one more with EMA.
VALUES_PER_WEIGHT = 3


class CheckpointFolder:
    """The folder ``--save-dir``.

    Example:
        >>> folder = CheckpointFolder(TrainerConfig())
        >>> folder.names(3, 300, end_of_epoch=True)
        ['checkpoint3.safetensors', 'checkpoint_last.safetensors']
    """

    def __init__(self, config: TrainerConfig) -> None:
        self._config = config
        self.path = Path(config.save_dir)

    def names(
        self,
        epoch: int,
        num_updates: int,
        end_of_epoch: bool,
        *,
        is_best: bool = False,
        kept_score: float | None = None,
        interrupted: bool = False,
    ) -> list[str]:
        """Return the names of the checkpoint after an update.

        ``kept_score`` is its score, if :meth:`keeps` is true of it. Training must be able to go on
        from an ``interrupted`` one. Deviation from fairseq: a checkpoint saved by updates at the
        end of an epoch has both names.
        """
        config = self._config
        if config.no_save:
            return []
        # Name the checkpoint by epoch, and by updates, if their intervals are complete.
        names = []
        if end_of_epoch and not config.no_epoch_checkpoints and epoch % config.save_interval == 0:
            names.append(f"checkpoint{epoch}{SUFFIX}")
        if config.save_interval_updates > 0 and num_updates % config.save_interval_updates == 0:
            names.append(f"checkpoint_{epoch}_{num_updates}{SUFFIX}")
        if is_best:
            names.append(BEST)
        if kept_score is not None:
            names.append(
                f"checkpoint.best_{config.best_checkpoint_metric}_{kept_score:.4f}{SUFFIX}"
            )
        # Store the last checkpoint unless switched off; an interrupted training always needs it.
        if interrupted or not config.no_last_checkpoints:
            names.append(LAST)
        return names

    def keeps(self, score: float) -> bool:
        """Return True if a validation score is one of the best, whose checkpoints are kept."""
        count = self._config.keep_best_checkpoints
        if count <= 0 or math.isnan(score):
            return False
        kept = [number for number, _ in numbered_checkpoints(self.path, self._best_pattern)]
        if len(kept) < count:
            return True
        return score > min(kept) if self._config.maximize else score < max(kept)

    @property
    def _best_pattern(self) -> str:
        return rf"checkpoint\.best_{re.escape(self._config.best_checkpoint_metric)}_(-?\d+\.?\d*)"

    def write(self, checkpoint: Checkpoint, names: list[str]) -> None:
        """Write one checkpoint under several names, then remove those beyond the limits.

        Each name is a file of its own, so that a user may replace one of these.
        """
        first, *others = [self.path / name for name in names]
        save_checkpoint(first, checkpoint)
        for further in others:
            try:
                copy_file(first, further)
            except OSError as error:
                raise CheckpointError(
                    f"{further}: cannot write the checkpoint ({error.strerror}); it is stored as "
                    f"{first.name}"
                ) from error
        self._prune(names)

    def restore_path(self) -> Path | None:
        """Return the checkpoint that training goes on from; None for a fresh start."""
        wanted = self._config.restore_file
        # Look in the working directory only for a name that the user gives.
        for path in (self.path / wanted, *([Path(wanted)] if wanted != LAST else [])):
            if path.exists():
                return path
        if wanted == LAST:
            return None
        raise CheckpointError(f"--restore-file {wanted}: no such file, here or in {self.path}")

    def begins_here(self) -> bool:
        """Return True if the training writes here and starts from no checkpoint of this folder."""
        start = self.restore_path()
        goes_on = start is not None and start.parent.resolve() == self.path.resolve()
        return not (goes_on or self._config.no_save)

    def present(self) -> Path | None:
        """Return the first file here that has the name of a training's checkpoint, if any."""
        names = sorted(os.listdir(self.path)) if self.path.is_dir() else []
        return next((self.path / name for name in names if WRITTEN.fullmatch(name)), None)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Lock the folder inside the block, and remove temporary files of killed trainings.

        A folder that is made for the lock is removed if nothing else is written to it.
        """
        if self._config.no_save:
            yield
            return
        is_new = not self.path.exists()
        try:
            lock = acquire_lock(self.path / LOCK)
        except DataError as error:
            raise ConfigError(f"--save-dir {error}") from error
        if lock is None:
            raise ConfigError(
                f"--save-dir {self.path}: another training is writing to it; stop that one, or "
                "choose another folder"
            )
        try:
            # Remove files of killed trainings only under the lock, which keeps others out.
            remove_abandoned(self.path)
            yield
        finally:
            # Remove the folder while it is locked; a failure hides no error of the training.
            with suppress(OSError):
                if is_new and os.listdir(self.path) == [LOCK]:
                    shutil.rmtree(self.path)
            os.close(lock)

    def check(self, num_weights: int, averaged: bool) -> None:
        """Refuse a folder that cannot be written or has too little free space.

        A checkpoint has ``num_weights``, and their average too if ``averaged``.
        """
        if self._config.no_save:
            return
        # Estimate the size of a checkpoint: weights, optimiser state and perhaps the average.
        checkpoint_bytes = num_weights * (VALUES_PER_WEIGHT + averaged) * BYTES_PER_VALUE
        # Make the folder, and a file in it, to find missing permissions now.
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise ConfigError(
                f"--save-dir {self.path}: cannot be written ({error.strerror})"
            ) from error
        free, files = shutil.disk_usage(self.path).free, self._new_files()
        if free < files * checkpoint_bytes:
            raise ConfigError(
                f"--save-dir {self.path}: {free / 1e6:,.0f} MB free, but a checkpoint takes "
                f"{checkpoint_bytes / 1e6:,.0f} MB and {files} must fit; free some space "
                "or choose another folder"
            )

    def _new_files(self) -> int:
        """Return the number of files that saving adds before it removes old ones."""
        config = self._config
        names = self.names(
            config.save_interval,
            config.save_interval_updates,
            end_of_epoch=True,
            is_best=not config.disable_validation,
            kept_score=0.0 if config.keep_best_checkpoints > 0 else None,
        )
        # Count one file less for each that is replaced and shares no bytes.
        kept = [self.path / name for name in names if name in (BEST, LAST)]
        return 1 + len(names) - sum(file.exists() and file.stat().st_nlink == 1 for file in kept)

    def try_out(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint to a temporary file and remove it."""
        with temporary_folder(self.path / "checkpoint_trial") as folder:
            save_checkpoint(folder / f"trial{SUFFIX}", checkpoint)

    def _prune(self, written: list[str]) -> None:
        """Remove checkpoints beyond the limits, of the kinds that have just been written."""
        config = self._config
        for pattern, count, is_score in (
            (BY_UPDATES, config.keep_interval_updates, False),
            (BY_EPOCHS, config.keep_last_epochs, False),
            (self._best_pattern, config.keep_best_checkpoints, True),
        ):
            # Leave out kinds without a limit, or without a new checkpoint.
            own = _numbers(pattern, written)
            if count <= 0 or not own:
                continue
            found = numbered_checkpoints(self.path, pattern)
            if not is_score:  # larger numbers belong to an earlier training and go first
                found.sort(key=lambda one: (one[0] <= own[0][0], one[0]))
            # Remove from the front the oldest or lowest; of scores to minimise, the highest.
            most = config.maximize if is_score else True
            for _, path in found[: max(0, len(found) - count)] if most else found[count:]:
                path.unlink(missing_ok=True)


def numbered_checkpoints(folder: Path, pattern: str) -> list[tuple[float, Path]]:
    """Return the checkpoints of a folder with a number in their names, the smallest first.

    The number is the only group of ``pattern``, which names without suffix match.
    """
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot read the folder: {error.strerror}") from error
    return sorted((number, folder / name) for number, name in _numbers(pattern, names))


def _numbers(pattern: str, names: Iterable[str]) -> list[tuple[float, str]]:
    """Return the numbers in the names that match the pattern, with these names."""
    matches = [re.fullmatch(pattern + re.escape(SUFFIX), name) for name in names]
    return [(float(match[1]), match[0]) for match in matches if match]
