"""The training loop: updates, validation, checkpoints, for any objective and any batches."""

import itertools
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from relu_nmt.errors import DataError, TrainingError
from relu_nmt.io.process import noting_signals
from relu_nmt.training import validation
from relu_nmt.training.batches import Batch, TrainingData, batches_of_process, load_ahead
from relu_nmt.training.config import TrainerConfig
from relu_nmt.training.distributed import LOST_PEER, ProcessGroup, is_sharded
from relu_nmt.training.log import Meters, TrainingLog
from relu_nmt.training.preflight import check_before_start
from relu_nmt.training.save_dir import CheckpointFolder, TrainingResult, entry
from relu_nmt.training.state import Learner, TrainingState
from relu_nmt.training.update import NO_CAUSES, StopCauses, Update, describe_first_not_finite


class Validated(NamedTuple):
    """The result of a validation for the checkpoint after it."""

    score: float | None = None  # that picks the best checkpoint
    is_best: bool = False
    is_kept: bool = False  # by ``--keep-best-checkpoints``


NOT_VALIDATED = Validated()


class Trainer:
    """Trains the module ``model`` of an objective, and stores it.

    ``description`` is the metadata of the checkpoints, as JSON can hold it. ``initial_weights``
    stand in for the weights in the checkpoint of ``--finetune-from-model``.
    """

    def __init__(
        self,
        objective: nn.Module,
        data: TrainingData,
        config: TrainerConfig,
        description: Mapping[str, Any],
        process: ProcessGroup,
        log: TrainingLog | None = None,
        initial_weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.config = config
        self._process = process
        self._data = data
        self._initial_weights = initial_weights
        self._description = description
        self.state = TrainingState()
        self.result = TrainingResult()
        # Shard first: sharding makes new parameters, which optimizer and average must have.
        wrapped = process.wrap(objective.train(), config.ddp_backend)
        self.learner = Learner(objective, config, process, wrapped)
        self.log = log or TrainingLog(config, quiet=not process.is_first)
        self._folder = CheckpointFolder(config)
        # Waiting for the numbers of each update would leave a GPU idle.
        self._reads_late = process.device.type != "cpu"
        self._signals: list[int] = []
        self._per_update = 1  # batches of an update over all processes
        self._num_updates = 1  # of the epoch
        self._launched: Update | None = None
        self._causes = NO_CAUSES  # to stop, at the last update that was read
        self._started = time.monotonic()  # earlier by the time of the runs before a resume
        self._lap = self._started  # end of the last update

    def train(self) -> TrainingResult:
        """Train up to a limit or a signal, and write and return the result."""
        try:
            reason = self._restore()
            # After an interruption go on even at a limit, to make up for the validation that is
            # missing.
            if reason is None or self.state.interrupted:
                check_before_start(
                    self.learner, self._data, self.log, self.state, self._description
                )
                self.log.begin(self.state.num_updates)
                reason = self._train(reason)
            self.log.say(f"done training in {self._wall():.1f} seconds: {reason}")
            self.result.ended = reason
            if self.state.interrupted:
                self.result.signal = [signal.SIGINT, *self._signals][-1]
            self._write_result()
        finally:
            self.log.close()
        self.result.log_lost = self.log.lost
        return self.result

    def _restore(self) -> str | None:
        """Restore state and result, or begin new ones. Return the reason to stop, if any."""
        config = self.config
        metric = config.best_checkpoint_metric
        path = self._folder.restore_path()
        self.state = state = self.learner.restore(path, self.log.say, self._initial_weights)
        self._initial_weights = None  # takes memory
        self.result = TrainingResult.to_continue(self._folder.path, path, state.num_updates)
        validation.forget_other_measure(state, metric, self._data, self.log.say)
        if state.best_score is None:
            self.learner.schedule.forget_best()
        self.result.set_best(metric, state.best_score, state.best_subset)
        if config.no_save:
            self.result.save_dir = None
        self.result.settings = dict(self._description.get("args", {}))
        self.result.parameters = sum(p.numel() for p in self.learner.model.parameters())
        self._started = time.monotonic() - state.seconds
        self._causes = StopCauses(0, config.share_of_time(state.seconds))
        reason = self._reason_of_limits(state.epoch)
        reason = reason or validation.reason_of_patience(config, state, self.result)
        if state.epoch > 1 and state.batch_offset == 0:
            reason = reason or self._reason_of_rate()
        return reason

    def _train(self, reason: str | None) -> str:
        """Train until there is a reason to stop, and return it. Note an error in the result."""
        self._write_result()
        try:
            with noting_signals() as self._signals:
                # Validate and save if a signal left that out after the last update.
                if self.state.interrupted:
                    self.state.interrupted = False
                    if self.state.batch_offset < self.state.num_batches:
                        reason = self._validate_and_save(reason)
                    else:
                        reason = None  # the end of the epoch is still to be done
                while reason is None:
                    reason = self._train_epoch()
                return reason
        except BaseException as error:
            self.result.ended = str(error) or type(error).__name__
            self.result.diverged = isinstance(error, TrainingError)
            # Save the updates that came before damaged data of this or another process.
            is_for_data = isinstance(error, DataError) or LOST_PEER in str(error)
            can_save = not self.config.no_save and not is_sharded(self.learner.objective)
            is_saved = is_for_data and can_save and self.state.num_updates > 0
            if is_saved:
                self._save(keeps_last=True)
            with suppress(DataError):  # the first error is the one to show
                self._write_result()
            if is_saved and isinstance(error, DataError):
                where = f"update {self.state.num_updates:,}, which is saved"
                command = self.config.same_command
                raise DataError(f"{error}; {command} goes on from {where}") from error
            raise

    def _train_epoch(self) -> str | None:
        """Train to the end of the epoch, or until there is a reason to stop, and return that."""
        # Plan the epoch, and this process's share of its batches.
        state = self.state
        config = self.config
        source = self._data.train
        if state.begin_epoch(source.begin_epoch(state.epoch)):
            self.log.say(
                f"the epoch now has {state.num_batches} batches; the position in it is carried "
                "over in proportion"
            )
        process = self._process
        update_freq = config.update_freq_of(state.epoch)
        updates = batches_of_process(
            state.num_batches,
            state.batch_offset,
            update_freq,
            rank=process.rank,
            world_size=process.world_size,
        )
        self._per_update = update_freq * process.world_size
        self._num_updates = self._position() + len(updates)
        indices = [index for index in itertools.chain.from_iterable(updates) if index is not None]
        on_gpu = process.device.type == "cuda"
        batches = load_ahead(source.load, indices, config.num_workers, on_gpu)
        self.log.begin_epoch(state.epoch, self._position(), self._num_updates)
        self._lap = time.monotonic()
        for update in updates:
            batches_and_weights: list[tuple[Batch, int]] = []
            for index in update:
                if index is None:  # another process has a batch more: compute any with weight 0
                    batches_and_weights.append((source.load(0), 0))
                else:
                    batches_and_weights.append((next(batches), 1))
            if self._update(batches_and_weights):
                reason = self._between_updates()
                if reason is not None:
                    batches.close()
                    return reason
        return self._end_epoch()

    def _update(self, batches: list[tuple[Batch, int]]) -> bool:
        """Make an update. Return False if float16 gradients overflowed and it was skipped."""
        state = self.state
        number = state.num_updates + 1
        # Seed each update, so that a resumed training draws the same numbers.
        seeds = np.random.SeedSequence((self.config.seed, number, self._process.rank))
        seed = int(seeds.generate_state(1, np.uint64)[0])
        update = Update(number, state.epoch, self._learning_rate(number), seed)
        # Add up the causes to stop in the update, so that all processes stop at the same one.
        causes = StopCauses(len(self._signals), self.config.share_of_time(self._wall()))
        update.run(self.learner, batches, causes, self.log.wants_telemetry(number))
        # While a GPU works on this update, read the numbers of the last update.
        self._read_launched()
        # Count the batches even of a skipped update.
        state.batch_offset = min(state.batch_offset + self._per_update, state.num_batches)
        if update.skipped:
            self.log.say(
                f"gradient overflow, update left out; the loss scale is now {update.loss_scale:g}"
            )
            return False
        state.num_updates = number
        self.learner.average.update(number)
        self._launched = update
        # Read at once if no GPU is kept waiting, or a line is due.
        if not self._reads_late or number % self.config.log_interval == 0:
            self._read_launched()
        return True

    def _read_launched(self) -> None:
        """Read and log the numbers of the last update, unless that is done."""
        update = self._launched
        self._launched = None
        if update is None:
            return
        try:
            meters, self._causes = update.read(self.learner)
        except TrainingError as error:
            if is_sharded(self.learner.objective):  # one process alone cannot repeat the update
                raise
            # The weights are unchanged: repeat the update to name the first value that is not
            # finite.
            torch.manual_seed(update.seed)
            here = describe_first_not_finite(self.learner, update.batches)
            first = next(filter(None, self._process.gather(here)), None)
            raise TrainingError(f"{error}; {first or 'made again, all of it is finite'}") from error
        # Add the numbers to the meters, with the time since the last numbers.
        state = self.state
        end = time.monotonic()
        meters.seconds = end - self._lap
        self._lap = end
        state.inner.add(meters)
        state.epoch_meters.add(meters)
        self.result.epoch = update.epoch
        self.log.advance()
        if update.telemetry:
            self.log.telemetry(update.epoch, update.num_updates, update.telemetry)
        if update.num_updates % self.config.log_interval == 0:
            stats = state.inner.stats(
                update.num_updates, update.lr, update.loss_scale, self._wall()
            )
            state.inner = Meters()
            self.log.updates(update.epoch, self._position(), self._num_updates, stats)
            self.result.train.append(entry(update.epoch, stats))

    def _between_updates(self) -> str | None:
        """Validate and save if that is due inside of an epoch. Return the reason to stop."""
        num_signals: float = len(self._signals)
        if self._process.world_size > 1:
            num_signals = self._causes.num_signals
        if num_signals > 0:
            self._read_launched()
            self.state.interrupted = True
            self._save()
            if self.config.no_save:
                return "interrupted; nothing saved (--no-save)"
            return f"interrupted; {self.config.same_command} goes on from here"
        if self.state.batch_offset < self.state.num_batches:
            return self._validate_and_save(self._reason_of_limits(self.state.epoch))
        return None

    def _end_epoch(self) -> str | None:
        """Log the epoch, validate, move to the next and save. Return the reason to stop, if any."""
        self._read_launched()
        state = self.state
        rate = self._learning_rate(state.num_updates)
        stats = state.epoch_meters.stats(
            state.num_updates, rate, self.learner.loss_scale, self._wall()
        )
        self.log.end_epoch(state.epoch, stats)
        self.result.epochs.append(entry(state.epoch, stats))
        return self._validate_and_save(self._reason_of_limits(state.epoch + 1), end_of_epoch=True)

    def _validate_and_save(self, reason: str | None, end_of_epoch: bool = False) -> str | None:
        """Validate, move to the next epoch, save, each if it is due. Return the reason to stop."""
        state = self.state
        config = self.config
        epoch = state.epoch
        is_due = (
            (end_of_epoch and epoch % config.save_interval == 0)
            or reason is not None
            or is_multiple(state.num_updates, config.save_interval_updates)
        )
        validated = NOT_VALIDATED
        if self._validation_is_due(end_of_epoch, is_due, reason):
            validated = self._validate()
            reason = validation.reason_of_patience(config, state, self.result) or reason
        if end_of_epoch:
            self.learner.schedule.end_epoch(state.num_updates, validated.score)
            state.begin_next_epoch()
            reason = self._reason_of_rate() or reason
        if is_due or validated.is_best or validated.is_kept or reason is not None:
            self._save(validated, finished_epoch=epoch if end_of_epoch else None)
        if is_due or validated.score is not None:
            self._write_result()
        return reason

    def _validation_is_due(self, end_of_epoch: bool, save_is_due: bool, reason: str | None) -> bool:
        state = self.state
        config = self.config
        is_early = state.num_updates < config.validate_after_updates
        if is_early or config.disable_validation or not self._data.valid:
            return False
        if reason is not None:
            return True
        if is_multiple(state.num_updates, config.validate_interval_updates):
            return True
        if end_of_epoch:
            return state.epoch % config.validate_interval == 0
        return save_is_due

    def _validate(self) -> Validated:
        # Read the pending numbers first, so that they stand before the scores.
        self._read_launched()
        state = self.state
        score = validation.validate(self.learner, self._data, self.log, state, self.result)
        self._lap = time.monotonic()
        is_best = state.add_score(score, self.config.maximize)
        is_kept = self._process.gather(self._process.is_first and self._folder.keeps(score))[0]
        metric = self.config.best_checkpoint_metric
        self.result.set_best(metric, state.best_score, state.best_subset)
        return Validated(score, is_best, is_kept)

    def _save(
        self,
        validated: Validated = NOT_VALIDATED,
        finished_epoch: int | None = None,
        keeps_last: bool = False,
    ) -> None:
        """Write a checkpoint. ``finished_epoch`` is given at the end of an epoch."""
        self._read_launched()
        state = self.state
        state.seconds = self._wall()
        epoch = finished_epoch or state.epoch
        score = validated.score
        names = self._folder.names(
            epoch,
            state.num_updates,
            end_of_epoch=finished_epoch is not None,
            is_best=validated.is_best,
            kept_score=score if validated.is_kept else None,
            interrupted=state.interrupted or keeps_last,
        )
        # Gather the weights in all processes. Only the first one writes.
        if names and (self._process.is_first or is_sharded(self.learner.objective)):
            start = time.monotonic()
            score_text = "none" if score is None else f"{score:g}"
            with_optimizer = not self.config.no_save_optimizer_state
            with self.learner.snapshot(state, self._description, with_optimizer) as checkpoint:
                if self._process.is_first:
                    self._folder.write(checkpoint, names)
            self.log.say(
                f"saved checkpoint {self._folder.path / names[0]} (epoch {epoch} @ "
                f"{state.num_updates} updates, score {score_text}) (writing took "
                f"{time.monotonic() - start:.2f} seconds)"
            )
        # Do not count the time of writing for the next update.
        self._lap = time.monotonic()

    def _write_result(self) -> None:
        self.result.set_progress(self.state.num_updates, self._wall())
        if self._process.is_first:
            self.result.write()

    def _reason_of_limits(self, epoch: int) -> str | None:
        """Return the reason to stop if a limit is reached before an update in ``epoch``."""
        config = self.config
        num_updates = self.state.num_updates
        if config.max_update and num_updates >= config.max_update and not config.follows_time:
            return f"{num_updates} updates are made (--max-update {config.max_update})"
        if config.max_epoch and epoch > config.max_epoch:
            return f"epoch {epoch - 1} is finished (--max-epoch {config.max_epoch})"
        if config.stop_time_hours and self._share_of_time() >= 1:
            flag = f"--stop-time-hours {config.stop_time_hours:g}"
            if config.follows_time:
                flag = f"--budget {config.budget}"
            return f"the time is up ({flag})"
        return None

    def _share_of_time(self) -> float:
        """Return the share of the time that is used up, the same in all processes."""
        if self._process.world_size > 1:
            return self._causes.share_of_time
        return self.config.share_of_time(self._wall())

    def _reason_of_rate(self) -> str | None:
        """Return the reason to stop if the learning rate is at ``--stop-min-lr``."""
        rate = self._learning_rate(self.state.num_updates + 1)
        if rate > self.config.schedule.stop_min_lr:
            return None
        return f"the learning rate has fallen to {rate:g} (--stop-min-lr)"

    def _position(self) -> int:
        """Return the number of updates that the batches of this epoch have made, rounded up."""
        return -(-self.state.batch_offset // self._per_update)

    def _learning_rate(self, num_updates: int) -> float:
        config = self.config
        # Let the schedule end together with the time, at any pace.
        if config.follows_time:
            planned = 1 + int(self._share_of_time() * config.max_update)
            num_updates = min(planned, config.max_update)
        return self.learner.schedule.learning_rate(num_updates, self.state.epoch)

    def _wall(self) -> float:
        """Return the seconds of running, also before a resume."""
        return time.monotonic() - self._started


def is_multiple(number: int, interval: int) -> bool:
    """Return True if ``number`` is a multiple of ``interval`` above 0. 0 has no multiples."""
    return interval > 0 and number > 0 and number % interval == 0
