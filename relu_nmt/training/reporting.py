"""What a training reports, and when: log lines and TensorBoard curves from the same numbers."""

from relu_nmt.training.batches import Share
from relu_nmt.training.config import LoggingConfig
from relu_nmt.training.meters import Meters, UpdateResult
from relu_nmt.training.progress import Progress
from relu_nmt.training.state import TrainingState
from relu_nmt.training.tensorboard import TensorBoardLog

UPDATES_TAG = "train_inner"
EPOCH_TAG = "train"


class Reporter:
    """Prints and logs the progress of a training.

    Args:
        config: form of the log.
        quiet: report nothing (all processes but the first).
        shown: print the log on standard output; log file and TensorBoard do not depend on it.

    Raises:
        ConfigError: the log file cannot be written.
        MissingExtraError: tensorboard is wanted but not installed.
    """

    def __init__(self, config: LoggingConfig, quiet: bool, shown: bool = True) -> None:
        self._config = config
        self._progress = Progress(config, quiet, shown=shown)
        self._board = TensorBoardLog(None if quiet else config.tensorboard_logdir)
        self.say = self._progress.message

    def wants_telemetry(self, num_updates: int) -> bool:
        """Say whether the objective's telemetry of this update is logged.

        It costs time, so it is sampled, and left out where nothing would show it.
        """
        interval = self._config.telemetry_interval
        shown = self._board.active or self._progress.shows_telemetry
        return shown and interval > 0 and num_updates % interval == 0

    def begin(self, state: TrainingState) -> None:
        """Begin or go on: curves of an earlier run beyond this point are hidden."""
        self._board.begin(state.num_updates)

    def begin_epoch(self, share: Share, epoch: int) -> None:
        """Begin an epoch, or go on in its middle."""
        self._progress.begin_epoch(epoch, share.updates_done(share.offset), share.num_updates)

    def after_update(
        self, result: UpdateResult, state: TrainingState, share: Share, wall: float
    ) -> dict[str, float] | None:
        """Take in an update; at the log interval print the averages and start them anew.

        Args:
            result: of the last update.
            state: its meters hold the update.
            share: of the epoch, for the position in it.
            wall: seconds of running.

        Returns:
            the averages that were printed, if it was time.
        """
        self._progress.advance()
        if result.telemetry:
            self._progress.telemetry(result.epoch, result.num_updates, result.telemetry)
            self._board.add(UPDATES_TAG, result.telemetry, result.num_updates)
        if result.num_updates % self._config.log_interval:
            return None
        stats = _training_stats(state.inner, state, result.lr, result.loss_scale, wall)
        position = share.updates_done(state.batch_offset)
        self._progress.updates(state.epoch, position, share.num_updates, stats)
        self._board.add(UPDATES_TAG, stats, result.num_updates)
        state.inner = Meters()
        return stats

    def end_epoch(
        self, state: TrainingState, lr: float, loss_scale: float | None, wall: float
    ) -> dict[str, float]:
        """Print and return the averages of the epoch."""
        stats = _training_stats(state.epoch_meters, state, lr, loss_scale, wall)
        self._progress.end_epoch(state.epoch, stats)
        self._board.add(EPOCH_TAG, stats, state.num_updates)
        return stats

    def validation(self, subset: str, stats: dict[str, float], state: TrainingState) -> None:
        """Print the scores of a validation set."""
        self._progress.validation(state.epoch, subset, stats)
        self._board.add(subset, stats, state.num_updates)

    def close(self) -> None:
        """Close the log files."""
        self._progress.close()
        self._board.close()


def _training_stats(
    meters: Meters, state: TrainingState, lr: float, loss_scale: float | None, wall: float
) -> dict[str, float]:
    """Return the averages with what fairseq shows beside them, in its order."""
    averages = meters.averages()
    train_wall, clip = averages.pop("train_wall"), averages.pop("clip")
    gnorm = averages.pop("gnorm")
    stats = {**averages, "num_updates": state.num_updates, "lr": lr, "gnorm": gnorm}
    if clip:
        stats["clip"] = clip
    if loss_scale is not None:
        stats["loss_scale"] = loss_scale
    return {**stats, "train_wall": train_wall, "wall": wall}
