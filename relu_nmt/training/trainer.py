"""The training loop: updates, validation, checkpoints, for any objective and any batches."""

import itertools
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import nn

from relu_nmt.errors import DataError, TrainingError
from relu_nmt.io.process import noting_signals
from relu_nmt.training import validation
from relu_nmt.training.batches import Batch, TrainingData, batches_of_process, load_ahead
from relu_nmt.training.config import TrainerConfig
from relu_nmt.training.distributed import LOST_PEER, ProcessGroup, is_sharded
from relu_nmt.training.log import Meters, TrainingLog
from relu_nmt.training.preflight import check_before_start
from relu_nmt.training.save_dir import CheckpointFolder, TrainingResult, entry
from relu_nmt.training.state import Components, StartWeights, TrainingState
from relu_nmt.training.update import NO_VOTES, Update, Votes, first_not_finite


class Trainer:
    """Trains the module ``model`` of an objective, and stores it.

    ``description`` is the metadata of the checkpoints, as JSON can hold it. ``start`` returns the
    initial weights from the checkpoint of ``--finetune-from-model``.
    """

    def __init__(
        self,
        objective: nn.Module,
        data: TrainingData,
        config: TrainerConfig,
        description: Mapping[str, Any],
        process: ProcessGroup,
        log: TrainingLog | None = None,
        start: StartWeights | None = None,
    ) -> None:
        self.config = config
        self._process = process
        self._data = data
        self._start = start
        self._description = description
        self.state = TrainingState()
        self.result = TrainingResult()
        # Shard first: sharding makes new parameters, which optimizer and average must have.
        wrapped = process.wrap(objective.train(), config.ddp_backend)
        self.parts = Components(objective, config, process, wrapped)
        self.log = log or TrainingLog(config, quiet=not process.is_first)
        self._folder = CheckpointFolder(config)
        # Waiting for the numbers of each update would leave a GPU idle.
        self._reads_late = process.device.type != "cpu"
        self._signals: list[int] = []
        self._per_update = 1  # batches of an update over all processes
        self._num_updates = 1  # of the epoch
        self._launched: Update | None = None
        self._votes = NO_VOTES  # of the last update that was read
        self._reason: str | None = None  # to stop
        self._started = time.monotonic()  # earlier by the time of the runs before a resume
        self._lap = self._started  # end of the last update

    def train(self) -> TrainingResult:
        """Train up to a limit or a signal, and write and return the result."""
        try:
            self._restore()
            # After an interruption go on even at a limit, to make up for the validation that is
            # missing.
            if self._reason is None or self.state.interrupted:
                check_before_start(self.parts, self._data, self.log, self.state, self._description)
                self.log.begin(self.state.num_updates)
                self._train()
            self.log.say(f"done training in {self._wall():.1f} seconds: {self._reason}")
            self.result.ended = self._reason
            if self.state.interrupted:
                self.result.signal = [signal.SIGINT, *self._signals][-1]
            self._write_result()
        finally:
            self.log.close()
        self.result.log_lost = self.log.lost
        return self.result

    def _restore(self) -> None:
        """Restore state and result, or begin new ones. Set the reason to stop if there is one."""
        config = self.config
        metric = config.best_checkpoint_metric
        path = self._folder.restore_path()
        self.state = self.parts.restore(path, self.log.say, self._start)
        done = self.state.num_updates
        self.result = TrainingResult.to_continue(self._folder.path, path, done)
        validation.forget_other_measure(self.state, metric, self._data, self.log.say)
        if self.state.best_score is None:
            self.parts.schedule.forget_best()
        self.result.set_best(metric, self.state.best_score, self.state.best_subset)
        if config.no_save:
            self.result.save_dir = None
        self.result.settings = dict(self._description.get("args", {}))
        self.result.parameters = sum(p.numel() for p in self.parts.model.parameters())
        self._started = time.monotonic() - self.state.seconds
        self._votes = Votes(0, config.share_of_time(self.state.seconds))
        over = validation.patience_is_over(config, self.state, self.result)
        self._reason = self._limit_reached(self.state.epoch) or over
        if self.state.epoch > 1 and self.state.batch_offset == 0:
            self._reason = self._reason or self._rate_has_fallen()

    def _train(self) -> None:
        """Train until there is a reason to stop. Note an error in the result."""
        self._write_result()
        try:
            with noting_signals() as self._signals:
                # Validate and save if a signal left that out after the last update.
                if self.state.interrupted:
                    self.state.interrupted = False
                    if self.state.batch_offset < self.state.num_batches:
                        self._validate_and_save(end_of_epoch=False)
                    else:
                        self._reason = None  # the end of the epoch is still to be done
                while self._reason is None:
                    self._train_epoch()
        except BaseException as error:
            self.result.ended = str(error) or type(error).__name__
            self.result.diverged = isinstance(error, TrainingError)
            # Save the updates that came before damaged data of this or another process.
            is_for_data = isinstance(error, DataError) or LOST_PEER in str(error)
            can_save = not self.config.no_save and not is_sharded(self.parts.objective)
            is_saved = is_for_data and can_save and self.state.num_updates > 0
            if is_saved:
                self._save(end_of_epoch=False, keeps_last=True)
            with suppress(DataError):  # the first error is the one to show
                self._write_result()
            if is_saved and isinstance(error, DataError):
                where = f"update {self.state.num_updates:,}, which is saved"
                command = self.config.same_command
                raise DataError(f"{error}; {command} goes on from {where}") from error
            raise

    def _train_epoch(self) -> None:
        """Train from the stored position to the end of the epoch, or until a reason to stop."""
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
                self._between_updates()
            if self._reason:
                batches.close()
                return
        self._end_epoch()

    def _update(self, batches: list[tuple[Batch, int]]) -> bool:
        """Make an update. Return False if float16 gradients overflowed and it was skipped."""
        state = self.state
        number = state.num_updates + 1
        # Seed each update, so that a resumed training draws the same numbers.
        seeds = np.random.SeedSequence((self.config.seed, number, self._process.rank))
        seed = int(seeds.generate_state(1, np.uint64)[0])
        update = Update(number, state.epoch, self._learning_rate(number), seed)
        # Vote in the update, so that all processes stop at the same one.
        votes = Votes(len(self._signals), self.config.share_of_time(self._wall()))
        update.run(self.parts, batches, votes, self.log.wants_telemetry(number))
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
        self.parts.average.update(number)
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
            meters, self._votes = update.read(self.parts)
        except TrainingError as error:
            if is_sharded(self.parts.objective):  # one process alone cannot repeat the update
                raise
            # The weights are unchanged: repeat the update to name the first value that is not
            # finite.
            torch.manual_seed(update.seed)
            causes = self._process.gather(first_not_finite(self.parts, update.batches))
            first = next(filter(None, causes), None)
            result = f"{first} that is not finite" if first else "made again, all of it is finite"
            raise TrainingError(f"{error}; {result}") from error
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

    def _between_updates(self) -> None:
        """Stop, validate or save if that is due, but not at the end of an epoch."""
        num_signals: float = len(self._signals)
        if self._process.world_size > 1:
            num_signals = self._votes.has_signal
        if num_signals > 0:
            self._read_launched()
            self.state.interrupted = True
            self._reason = f"interrupted; {self.config.same_command} goes on from here"
            if self.config.no_save:
                self._reason = "interrupted; nothing saved (--no-save)"
            self._save(end_of_epoch=False)
        elif self.state.batch_offset < self.state.num_batches:
            self._reason = self._limit_reached(self.state.epoch)
            self._validate_and_save(end_of_epoch=False)

    def _end_epoch(self) -> None:
        self._read_launched()
        state = self.state
        rate = self._learning_rate(state.num_updates)
        stats = state.epoch_meters.stats(
            state.num_updates, rate, self.parts.loss_scale, self._wall()
        )
        self.log.end_epoch(state.epoch, stats)
        self.result.epochs.append(entry(state.epoch, stats))
        self._reason = self._limit_reached(state.epoch + 1)
        self._validate_and_save(end_of_epoch=True)

    def _validate_and_save(self, end_of_epoch: bool) -> None:
        """Validate, move to the next epoch and save, each if it is due after an update."""
        state = self.state
        config = self.config
        save = (
            (end_of_epoch and state.epoch % config.save_interval == 0)
            or self._reason is not None
            or is_multiple(state.num_updates, config.save_interval_updates)
        )
        score = None
        is_best = is_kept = False
        if self._validation_is_due(end_of_epoch, save):
            # Read the pending numbers first, so that they stand before the scores.
            self._read_launched()
            score = validation.validate(self.parts, self._data, self.log, state, self.result)
            self._lap = time.monotonic()
            metric = config.best_checkpoint_metric
            is_best = state.add_score(score, config.maximize)
            is_kept = self._process.gather(self._process.is_first and self._folder.keeps(score))[0]
            self.result.set_best(metric, state.best_score, state.best_subset)
            self._reason = validation.patience_is_over(config, state, self.result) or self._reason
        if end_of_epoch:
            self.parts.schedule.end_epoch(state.num_updates, score)
            state.epoch += 1
            state.epoch_meters = Meters()
            state.batch_offset = state.num_batches = 0
            self._reason = self._rate_has_fallen() or self._reason
        if save or is_best or is_kept or self._reason is not None:
            self._save(end_of_epoch, score, is_best, is_kept)
        if save or score is not None:
            self._write_result()

    def _validation_is_due(self, end_of_epoch: bool, save: bool) -> bool:
        state = self.state
        config = self.config
        is_early = state.num_updates < config.validate_after_updates
        if is_early or config.disable_validation or not self._data.valid:
            return False
        if self._reason is not None:
            return True
        if is_multiple(state.num_updates, config.validate_interval_updates):
            return True
        if end_of_epoch:
            return state.epoch % config.validate_interval == 0
        return save

    def _save(
        self,
        end_of_epoch: bool,
        score: float | None = None,
        is_best: bool = False,
        is_kept: bool = False,
        keeps_last: bool = False,
    ) -> None:
        """Write a checkpoint. At the end of an epoch ``state`` holds the next epoch already."""
        self._read_launched()
        state = self.state
        state.seconds = self._wall()
        epoch = state.epoch - end_of_epoch
        names = self._folder.names(
            epoch,
            state.num_updates,
            end_of_epoch,
            is_best=is_best,
            kept_score=score if is_kept else None,
            interrupted=state.interrupted or keeps_last,
        )
        # Gather parts in all processes. Only the first one writes.
        if names and (self._process.is_first or is_sharded(self.parts.objective)):
            start = time.monotonic()
            score_text = "none" if score is None else f"{score:g}"
            with_optimizer = not self.config.no_save_optimizer_state
            with self.parts.snapshot(state, self._description, with_optimizer) as checkpoint:
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
        self.result.measure(self.state.num_updates, self._wall())
        if self._process.is_first:
            self.result.write()

    def _limit_reached(self, epoch: int) -> str | None:
        """Return the reason to stop before an update in ``epoch``, or None."""
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
            return self._votes.share_of_time
        return self.config.share_of_time(self._wall())

    def _rate_has_fallen(self) -> str | None:
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
        return self.parts.schedule.learning_rate(num_updates, self.state.epoch)

    def _wall(self) -> float:
        """Return the seconds of running, also before a resume."""
        return time.monotonic() - self._started


def is_multiple(number: int, interval: int) -> bool:
    """Return True if ``number`` is a multiple of ``interval`` above 0. 0 has no multiples."""
    return interval > 0 and number > 0 and number % interval == 0
