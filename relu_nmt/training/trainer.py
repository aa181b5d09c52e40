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
from relu_nmt.training.learner import Learner
from relu_nmt.training.log import Meters, TrainingLog
from relu_nmt.training.preflight import check_before_start
from relu_nmt.training.save_dir import CheckpointFolder, TrainingResult, entry
from relu_nmt.training.state import TrainingState
from relu_nmt.training.update import (
    NO_CAUSES,
    PendingUpdate,
    StopCauses,
    UpdatePlan,
    describe_first_not_finite,
    make_update,
    read_update,
)


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
        self._signals: list[int] = []
        self._reads_late = process.device.type != "cpu"  # an update's numbers, in the next one
        self._pending: PendingUpdate | None = None  # the last update, if it was not read
        self._causes = NO_CAUSES  # to stop, at the last update that was read
        self._started = time.monotonic()  # earlier by the time of the runs before a resume
        self._lap = self._started  # end of the last update

    def train(self) -> TrainingResult:
        """Train up to a limit or a signal, and write and return the result."""
        try:
            self._restore()
            # After an interruption go on even at a limit, to make up for the validation that is
            # missing.
            if self.result.ended is None or self.state.interrupted:
                check_before_start(
                    self.learner, self._data, self.log, self.state, self._description
                )
                self.log.begin(self.state.num_updates)
                self._train()
            self.log.say(f"done training in {self._wall():.1f} seconds: {self.result.ended}")
            if self.state.interrupted:
                self.result.signal = [signal.SIGINT, *self._signals][-1]
            self._write_result()
        finally:
            self.log.close()
            self.learner.unwrap()
        self.result.log_lost = self.log.lost
        return self.result

    def _restore(self) -> None:
        """Restore state and result, or begin new ones. The training may have ended already."""
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
        self.result.ended = self._reason_of_scores() or self._reason_of_limits(state.epoch)

    def _train(self) -> None:
        """Train until there is a reason to stop. Note the reason, or an error, in the result."""
        # Validate and save if a signal left that out after the last update.
        makes_up = self.state.interrupted and self.state.batch_offset < self.state.num_batches
        self.state.interrupted = False
        self.result.ended = None
        self._write_result()
        try:
            with noting_signals() as self._signals:
                if makes_up:
                    self._validate_and_save()
                while self.result.ended is None:
                    self._train_epoch()
        except BaseException as error:
            self._end_by(error)
            raise

    def _end_by(self, error: BaseException) -> None:
        """Note an error in the result. After damaged data, of any process, save the updates."""
        self.result.ended = str(error) or type(error).__name__
        self.result.diverged = isinstance(error, TrainingError)
        is_for_data = isinstance(error, DataError) or LOST_PEER in str(error)
        can_save = not self.config.no_save and not is_sharded(self.learner.objective)
        is_saved = is_for_data and can_save and self.state.num_updates > 0
        if is_saved:
            self._save(keeps_last=True)
        with suppress(DataError):  # the first error is the one to show
            self._write_result()
        if is_saved and isinstance(error, DataError):
            where = f"update {self.state.num_updates:,}, which is saved"
            raise DataError(f"{error}; {self.config.same_command} goes on from {where}") from error

    def _train_epoch(self) -> None:
        """Train to the end of the epoch, or until there is a reason to stop."""
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
        # Count the updates of the batches that are done, rounded up.
        num_done = -(-state.batch_offset // (update_freq * process.world_size))
        self.log.begin_epoch(state.epoch, num_done, num_done + len(updates))
        indices = [index for index in itertools.chain.from_iterable(updates) if index is not None]
        on_gpu = process.device.type == "cuda"
        batches = load_ahead(source.load, indices, config.num_workers, on_gpu)
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
                if self.result.ended is not None:
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
        plan = UpdatePlan(number, state.epoch, self._learning_rate(number), seed)
        # Add up the causes to stop in the update, so that all processes stop at the same one.
        causes = StopCauses(len(self._signals), self.config.share_of_time(self._wall()))
        wants_telemetry = self.log.wants_telemetry(number)
        update = make_update(self.learner, plan, batches, causes, wants_telemetry)
        # While a GPU works on this update, read the numbers of the last update.
        self._read_pending()
        # Count the batches even of a skipped update.
        done = state.batch_offset + len(batches) * self._process.world_size
        state.batch_offset = min(done, state.num_batches)
        self.log.advance()
        if update.skipped:
            self.log.say(
                f"gradient overflow, update left out; the loss scale is now {update.loss_scale:g}"
            )
            return False
        state.num_updates = number
        self.learner.average.update(number)
        self._pending = update
        # Read at once if a line is due, or if no GPU is left idle meanwhile.
        if not self._reads_late or number % self.config.log_interval == 0:
            self._read_pending()
        return True

    def _read_pending(self) -> None:
        """Read and log the numbers of the last update, unless that is done."""
        update = self._pending
        self._pending = None
        if update is None:
            return
        plan = update.plan
        try:
            meters, self._causes = read_update(self.learner, update)
        except TrainingError as error:
            if is_sharded(self.learner.objective):  # one process alone cannot repeat the update
                raise
            # The weights are unchanged: repeat the update to name the first value that is not
            # finite.
            torch.manual_seed(plan.seed)
            description = describe_first_not_finite(self.learner, update.batches)
            first = next(filter(None, self._process.gather(description)), None)
            raise TrainingError(f"{error}; {first or 'made again, all of it is finite'}") from error
        # Add the numbers to the meters, with the time since the last numbers.
        state = self.state
        end = time.monotonic()
        meters.seconds = end - self._lap
        self._lap = end
        state.inner.add(meters)
        state.epoch_meters.add(meters)
        self.result.epoch = plan.epoch
        if update.telemetry:
            self.log.telemetry(plan.epoch, plan.num_updates, update.telemetry)
        if plan.num_updates % self.config.log_interval == 0:
            stats = state.inner.stats(plan.num_updates, plan.lr, update.loss_scale, self._wall())
            state.inner = Meters()
            self.log.updates(plan.epoch, stats)
            self.result.train.append(entry(plan.epoch, stats))

    def _between_updates(self) -> None:
        """Stop if there was a signal, else validate and save if that is due inside of an epoch."""
        num_signals: float = len(self._signals)
        if self._process.world_size > 1:
            num_signals = self._causes.num_signals
        if num_signals > 0:
            self._read_pending()
            self.state.interrupted = True
            self._save()
            self.result.ended = f"interrupted; {self.config.same_command} goes on from here"
            if self.config.no_save:
                self.result.ended = "interrupted; nothing saved (--no-save)"
        elif self.state.batch_offset < self.state.num_batches:
            self._validate_and_save()

    def _end_epoch(self) -> None:
        """Log the epoch, validate, move to the next and save."""
        self._read_pending()
        state = self.state
        rate = self._learning_rate(state.num_updates)
        stats = state.epoch_meters.stats(
            state.num_updates, rate, self.learner.loss_scale, self._wall()
        )
        self.log.end_epoch(state.epoch, stats)
        self.result.epochs.append(entry(state.epoch, stats))
        self._validate_and_save(end_of_epoch=True)

    def _validate_and_save(self, end_of_epoch: bool = False) -> None:
        """Validate, move to the next epoch, save, each if it is due. Note the reason to stop."""
        state = self.state
        epoch = state.epoch
        # A limit that is reached makes both due.
        self.result.ended = self._reason_of_limits(epoch + end_of_epoch)
        save_is_due = (
            self.result.ended is not None
            or (end_of_epoch and epoch % self.config.save_interval == 0)
            or is_multiple(state.num_updates, self.config.save_interval_updates)
        )
        validated = NOT_VALIDATED
        if self._validation_is_due(end_of_epoch, save_is_due):
            validated = self._validate()
        if end_of_epoch:
            self.learner.schedule.end_epoch(state.num_updates, validated.score)
            state.begin_next_epoch()
        self.result.ended = self._reason_of_scores() or self.result.ended
        has_ended = self.result.ended is not None
        if save_is_due or validated.is_best or validated.is_kept or has_ended:
            self._save(validated, finished_epoch=epoch if end_of_epoch else None)
        if save_is_due or validated.score is not None:
            self._write_result()

    def _validation_is_due(self, end_of_epoch: bool, save_is_due: bool) -> bool:
        state = self.state
        config = self.config
        is_early = state.num_updates < config.validate_after_updates
        if is_early or config.disable_validation or not self._data.valid:
            return False
        if self.result.ended is not None:
            return True
        if is_multiple(state.num_updates, config.validate_interval_updates):
            return True
        if end_of_epoch:
            return state.epoch % config.validate_interval == 0
        return save_is_due

    def _validate(self) -> Validated:
        # Read the pending numbers first, so that they stand before the scores.
        self._read_pending()
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
        self._read_pending()
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

    def _reason_of_scores(self) -> str | None:
        """Return the reason to stop if rate or patience, which depend on scores, are at an end."""
        state = self.state
        if state.epoch > 1 and state.batch_offset == 0:
            rate = self._learning_rate(state.num_updates + 1)
            if rate <= self.config.schedule.stop_min_lr:
                return f"the learning rate has fallen to {rate:g} (--stop-min-lr)"
        return validation.reason_of_patience(self.config, state, self.result)

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
