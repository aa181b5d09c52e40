"""The training loop: updates, validation, checkpoints, for any objective and any batches."""

import math
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from relu_nmt.errors import ConfigError, DataError, TrainingError
from relu_nmt.io.progress_bar import progress_bar
from relu_nmt.training.batches import Batch, Share, TrainingData, load_ahead
from relu_nmt.training.checkpoint_manager import CheckpointFolder
from relu_nmt.training.config import TrainerConfig
from relu_nmt.training.distributed import LOST_PEER, ProcessGroup, SignalWatch
from relu_nmt.training.log import Meters, TrainingLog
from relu_nmt.training.preflight import first_not_finite, try_batch
from relu_nmt.training.results import Stats, TrainingResult, entry
from relu_nmt.training.score_checks import (
    forget_other_measure,
    loss_without_score,
    zero_warning,
)
from relu_nmt.training.sharding import is_sharded, whole_weights
from relu_nmt.training.state import Components, StartWeights, TrainingState, weights_of
from relu_nmt.training.update import LaunchedUpdate, UpdatePlan, Updater, UpdateResult, update_seed


class Trainer:
    """Trains a model.

    Args:
        objective: gives the loss, ``objective(batch, telemetry=False) -> LossOutput``; its module
            ``model`` is what is trained and stored.
        data: batches for training and validation.
        config: all settings.
        description: what a checkpoint tells about the model, as JSON can hold it
            (``model_config``, ``task``, ``args``).
        process: this process, see :func:`~relu_nmt.training.distributed.join_processes`.
        log: where the log goes; by default as ``config.logging`` says.
        start: returns the weights to start from, of the checkpoint of ``--finetune-from-model``.

    Raises:
        ConfigError: settings that contradict each other or the device.

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> from relu_nmt.modules.objective import LossOutput
        >>> from relu_nmt.training.batches import TrainingData
        >>> from relu_nmt.training.config import CheckpointConfig, LoggingConfig, RunConfig
        >>> class Batches:
        ...     def begin_epoch(self, epoch):
        ...         return 5
        ...     def largest(self):
        ...         return 0
        ...     def load(self, index):
        ...         batch = SimpleNamespace(ids=torch.ones(1), num_tokens=1, num_sentences=1)
        ...         batch.to = lambda device: batch
        ...         return batch
        >>> class Square(nn.Module):
        ...     def __init__(self, model):
        ...         super().__init__()
        ...         self.model = model
        ...     def forward(self, batch, telemetry=False):
        ...         return LossOutput(self.model(torch.ones(1)).square().sum(), sample_size=1)
        >>> config = TrainerConfig(
        ...     run=RunConfig(max_epoch=2),
        ...     checkpoint=CheckpointConfig(no_save=True),
        ...     logging=LoggingConfig(log_format="json"),
        ... )
        >>> data = TrainingData(Batches(), valid={}, scorers={})
        >>> process = ProcessGroup(0, 1, torch.device("cpu"))
        >>> trainer = Trainer(Square(nn.Linear(1, 1)), data, config, {}, process)
        >>> trainer.train().num_updates  # doctest: +ELLIPSIS
        {...
        10
    """

    def __init__(
        self,
        objective: nn.Module,
        data: TrainingData,
        config: TrainerConfig,
        description: Mapping[str, Any],
        process: ProcessGroup,
        log: TrainingLog | None = None,
        start: StartWeights = weights_of,
    ) -> None:
        self.config = config
        self._start = start
        self.state = TrainingState()
        self.result = TrainingResult()
        # Sharding makes new parameters, which the optimiser and the average are to know.
        wrapped = process.wrap(objective.train(), config.distributed.ddp_backend)
        self.parts = Components(objective, config, process)
        self.log = log or TrainingLog(config.logging, quiet=not process.is_first)
        self._description = description
        self._process = process
        self._data = data
        self._updater = Updater(
            wrapped,
            self.parts.optimizer,
            self.parts.precision,
            config.run.clip_norm,
            process,
        )
        self._folder = CheckpointFolder(config.checkpoint, config.validation)
        # A GPU works on its own: waiting for each update's numbers would leave it idle.
        self._reads_late = process.device.type != "cpu"
        self._watch = SignalWatch()
        self._share = Share(0, 0, 1, process.rank, process.world_size)
        self._launched: LaunchedUpdate | None = None
        self._last: UpdateResult | None = None
        self._reason: str | None = None
        self._warned: set[str] = set()
        self._started = self._lap = time.monotonic()

    def train(self) -> TrainingResult:
        """Train until a limit is reached or a signal comes; goes on from a checkpoint if there is.

        The result is also written beside the checkpoints, at each of them, at each validation
        and at the end.

        Raises:
            CheckpointError: a checkpoint cannot be read or written.
            ConfigError: a check before the first update fails.
            DataError: data are damaged, or the result cannot be read or written.
            TrainingError: the loss or the gradient is not finite.
        """
        metric, say = self.config.validation.best_checkpoint_metric, self.log.say
        try:
            path = self._folder.restore_path()
            config = self.config.checkpoint
            self.state = self.parts.restore(path, config, metric, say, self._start)
            done = self.state.num_updates
            self.result = TrainingResult.to_continue(self._folder.path, path, done)
            if forget_other_measure(self.state, metric, self._data.signatures.get(metric), say):
                self.result.best = None
                self.parts.schedule.forget_best()
            if self.config.checkpoint.no_save:
                self.result.save_dir = None
            self.result.settings = dict(self._description.get("args", {}))
            self.result.parameters = sum(p.numel() for p in self.parts.model.parameters())
            self._started = time.monotonic() - self.state.seconds
            self._reason = self._limit_reached(self.state.epoch) or self._patience_is_over()
            if self.state.epoch > 1 and self.state.batch_offset == 0:
                self._reason = self._reason or self._rate_has_fallen()
            if self._reason is None or self.state.interrupted:
                self._check_before_start()
                self.log.begin(self.state.num_updates)
                self._train()
            say(f"done training in {self._wall():.1f} seconds: {self._reason}")
            self.result.ended = self._reason
            if self.state.interrupted:
                self.result.signal = self._watch.received or signal.SIGINT
            self._write_result()
        finally:
            self.log.close()
        self.result.log_lost = self.log.lost
        return self.result

    def _train(self) -> None:
        """Train until there is a reason to stop; an error is noted in the result."""
        self._write_result()
        try:
            with self._watch:
                if self.state.interrupted:
                    self._make_up_for_interruption()
                while self._reason is None:
                    self._train_epoch()
        except BaseException as error:
            self.result.ended = str(error) or type(error).__name__
            self.result.diverged = isinstance(error, TrainingError)
            is_saved = self._save_before(error)
            with suppress(DataError):  # the first error is the one to show
                self._write_result()
            if is_saved and isinstance(error, DataError):
                where = f"update {self.state.num_updates:,}, which is saved"
                raise DataError(f"{error}; the same command goes on from {where}") from error
            raise

    def _save_before(self, error: BaseException) -> bool:
        """Save the training up to the last update if data are damaged; return whether it was.

        The damage may also have ended another process.
        """
        is_for_data = isinstance(error, DataError) or LOST_PEER in str(error)
        keeps = not self.config.checkpoint.no_save and not is_sharded(self.parts.objective)
        if not (is_for_data and keeps and self.state.num_updates):
            return False
        self._save(end_of_epoch=False, keeps_last=True)
        return True

    def _make_up_for_interruption(self) -> None:
        """Validate and save if that was due after the update that a signal came with."""
        self.state.interrupted = False
        if self.state.batch_offset < self.state.num_batches:
            self._validate_and_save(end_of_epoch=False)
        else:
            self._reason = None  # what is left of the epoch is its end

    def _check_before_start(self) -> None:
        """Find the mistakes that would otherwise show after hours."""
        if self._process.is_first:
            self._folder.check(self.result.parameters, self.config.ema.store_ema)
        validates = bool(self._data.valid) and not self.config.validation.disable_validation
        with progress_bar(
            "preflight", 2, "steps", shows_waiting=True, only_if_slow=True, say=self.log.say
        ) as advance:
            if self.config.run.preflight:
                self._preflight()
            advance(1)
            if not validates:
                return
            subset, source = next(iter(self._data.valid.items()))
            names = list(self.parts.validate(source, largest_only=True))
        if (scorer := self._data.scorers.get(subset)) is not None:
            names += scorer.metric_names
            with self.parts.evaluating(), whole_weights(self.parts.objective):
                scorer.check(largest=self.config.run.preflight)
        metric = self.config.validation.best_checkpoint_metric
        if metric not in names:
            raise ConfigError(
                f"--best-checkpoint-metric {metric}: the validation set '{subset}' has only "
                f"{', '.join(names)}{'; bleu needs --eval-bleu' * (metric == 'bleu')}"
            )

    def _preflight(self) -> None:
        """Try the largest batch and a checkpoint; the training is as without it."""
        source = self._data.train
        source.begin_epoch(self.state.epoch)
        batch = source.load(source.largest())
        self.log.say(try_batch(self.parts, batch))
        if self.config.checkpoint.no_save:
            return
        if self._process.is_first or is_sharded(self.parts.objective):
            with self.parts.snapshot(self.state, self._description) as checkpoint:
                if self._process.is_first:
                    self._folder.try_out(checkpoint)

    def _train_epoch(self) -> None:
        """Train from the stored position to the end of the epoch, or until a reason to stop."""
        state, config, source = self.state, self.config.run, self._data.train
        if state.begin_epoch(source.begin_epoch(state.epoch)):
            self.log.say(
                f"the epoch now has {state.num_batches} batches; the position in it is carried "
                "over in proportion"
            )
        self._share = share = Share(
            state.num_batches,
            state.batch_offset,
            config.update_freq_of(state.epoch),
            self._process.rank,
            self._process.world_size,
        )
        updates = share.updates()
        wanted = [index for update in updates for index in update if index is not None]
        on_gpu = self._process.device.type == "cuda"
        batches = load_ahead(source.load, wanted, config.num_workers, on_gpu)
        self.log.begin_epoch(state.epoch, share.updates_done(share.offset), share.num_updates)
        self._lap = time.monotonic()
        for update in updates:
            # Where this process has no batch, another one counts with weight 0.
            if self._update(
                [(next(batches), 1) if i is not None else (source.load(0), 0) for i in update]
            ):
                self._between_updates()
            if self._reason:
                batches.close()
                return
        self._end_epoch()

    def _update(self, batches: list[tuple[Batch, int]]) -> bool:
        """Make an update; return False if float16 gradients overflowed and it was left out.

        Afterwards its numbers may still be on their way from a GPU.
        """
        state = self.state
        number = state.num_updates + 1
        plan = UpdatePlan(
            number,
            state.epoch,
            self._learning_rate(number),
            seed=update_seed(self.config.run.seed, number, self._process.rank),
            telemetry=self.log.wants_telemetry(number),
            interrupt_vote=self._watch.received is not None,
            time_vote=self.config.run.time_is_up(self._wall()),
        )
        launched = self._updater.run(batches, plan)
        # While a GPU works on this update, look at the numbers of the one before.
        self._read_launched()
        state.batch_offset = min(
            state.batch_offset + self._share.batches_per_update, state.num_batches
        )
        if launched.skipped:
            self.log.say(
                f"gradient overflow, update left out; the loss scale is now {launched.loss_scale:g}"
            )
            return False
        state.num_updates = number
        self.parts.average.update(number)
        self._launched = launched
        if not self._reads_late or number % self.config.logging.log_interval == 0:
            self._read_launched()
        return True

    def _read_launched(self) -> None:
        """Wait for the numbers of the last update, if they are not read yet."""
        launched, self._launched = self._launched, None
        if launched is None:
            return
        try:
            self._last = result = launched.read(self.config.run.clip_norm, self._process)
        except TrainingError as error:
            if is_sharded(self.parts.objective):  # the processes would have to keep step
                raise
            raise TrainingError(f"{error}; {self._origin_of_divergence(launched)}") from error
        state, plan = self.state, launched.plan
        now = time.monotonic()
        result.meters.seconds, self._lap = now - self._lap, now
        for meters in (state.inner, state.epoch_meters):
            meters.add(result.meters)
        self.result.epoch = plan.epoch
        self.log.advance()
        if launched.telemetry:
            self.log.telemetry(plan.epoch, plan.num_updates, launched.telemetry)
        if plan.num_updates % self.config.logging.log_interval == 0:
            stats = state.inner.stats(plan.num_updates, plan.lr, launched.loss_scale, self._wall())
            state.inner = Meters()
            position = self._share.updates_done(state.batch_offset)
            self.log.updates(plan.epoch, position, self._share.num_updates, stats)
            self.result.train.append(entry(plan.epoch, stats))

    def _origin_of_divergence(self, launched: LaunchedUpdate) -> str:
        """Return what is not finite first in an update, whose weights are as they were before."""
        torch.manual_seed(launched.plan.seed)
        found = self._process.gather(first_not_finite(self.parts, launched.batches))
        first = next(filter(None, found), None)
        return f"{first} that is not finite" if first else "made again, all of it is finite"

    def _between_updates(self) -> None:
        """Stop, validate or save if it is time; the end of the epoch is not treated here."""
        if self._signalled():
            self._read_launched()
            self.state.interrupted = True
            saved = not self.config.checkpoint.no_save
            goes_on = "the same command goes on from here" if saved else "nothing saved (--no-save)"
            self._reason = f"interrupted; {goes_on}"
            self._save(end_of_epoch=False)
        elif self.state.batch_offset < self.state.num_batches:
            self._reason = self._limit_reached(self.state.epoch)
            self._validate_and_save(end_of_epoch=False)

    def _end_epoch(self) -> None:
        self._read_launched()
        state, scale = self.state, self.parts.precision.loss_scale
        rate = self._learning_rate(state.num_updates)
        stats = state.epoch_meters.stats(state.num_updates, rate, scale, self._wall())
        self.log.end_epoch(state.epoch, stats)
        self.result.epochs.append(entry(state.epoch, stats))
        self._reason = self._limit_reached(state.epoch + 1)
        self._validate_and_save(end_of_epoch=True)

    def _validate_and_save(self, end_of_epoch: bool) -> None:
        """Do what is due after an update: validate, move to the next epoch, save."""
        state, config = self.state, self.config.checkpoint
        save = (
            (end_of_epoch and state.epoch % config.save_interval == 0)
            or self._reason is not None
            or _is_multiple(state.num_updates, config.save_interval_updates)
        )
        score, is_best, is_kept = None, False, False
        if self._validation_is_due(end_of_epoch, save):
            try:
                score = self._validate()
            except DataError:
                state.interrupted = True  # going on makes up for it
                for entries in (self.result.epochs, *self.result.valid.values()):
                    entries[:] = [e for e in entries if e["num_updates"] != state.num_updates]
                raise
            metric = self.config.validation.best_checkpoint_metric
            is_best = state.add_score(score, self.config.validation.maximize)
            is_kept = self._process.from_first(self._process.is_first and self._folder.keeps(score))
            self.result.set_best(metric, state.best_score)
            self._reason = self._patience_is_over() or self._reason
        if end_of_epoch:
            self.parts.schedule.end_epoch(state.num_updates, score)
            state.next_epoch()
            self._reason = self._rate_has_fallen() or self._reason
        if save or is_best or is_kept or self._reason is not None:
            self._save(end_of_epoch, score, is_best, is_kept)
        if save or score is not None:
            self._write_result()

    def _validation_is_due(self, end_of_epoch: bool, save: bool) -> bool:
        config, state = self.config.validation, self.state
        if config.disable_validation or not self._data.valid:
            return False
        if state.num_updates < config.validate_after_updates:
            return False
        return (
            (end_of_epoch and state.epoch % config.validate_interval == 0)
            or (not end_of_epoch and save)
            or self._reason is not None
            or _is_multiple(state.num_updates, config.validate_interval_updates)
        )

    def _validate(self) -> float:
        """Validate on all sets and return the metric of the best checkpoint."""
        self._read_launched()
        scores: list[float] = []
        metric = self.config.validation.best_checkpoint_metric
        for subset, source in self._data.valid.items():
            self.log.say(f"begin validation on '{subset}' subset", subset)
            stats = self.parts.validate(source, self._data.scorers.get(subset))
            stats["num_updates"] = self.state.num_updates
            if not scores and metric in stats:
                choose = max if self.config.validation.maximize else min
                best = self.state.best_score
                score = stats[metric]
                stats[f"best_{metric}"] = score if best is None else choose(score, best)
            self.log.validation(self.state.epoch, subset, stats)
            scorer = self._data.scorers.get(subset)
            names = () if scorer is None else scorer.metric_names
            signatures = self._data.signatures.items()
            signed = {f"{name}_signature": text for name, text in signatures if name in stats}
            validations = self.result.valid.setdefault(subset, [])
            validations.append({**entry(self.state.epoch, stats), **signed})
            self._warn_of_zeros(validations, names)
            scores.append(stats.get(metric, math.nan))
        self._lap = time.monotonic()
        return scores[0]

    def _warn_of_zeros(self, validations: list[Stats], names: Iterable[str]) -> None:
        """Warn once of each score that stays 0 while the loss falls."""
        config = self.config
        for name in set(names) - self._warned:
            is_best = name == config.validation.best_checkpoint_metric
            if warning := zero_warning(validations, name, is_best and config.run.patience > 0):
                self._warned.add(name)
                self.log.say(warning)

    def _save(
        self,
        end_of_epoch: bool,
        score: float | None = None,
        is_best: bool = False,
        is_kept: bool = False,
        keeps_last: bool = False,
    ) -> None:
        """Write a checkpoint; after the end of an epoch the state is that of the next."""
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
        if names and (self._process.is_first or is_sharded(self.parts.objective)):
            start = time.monotonic()
            shown = "none" if score is None else f"{score:g}"
            with_optimizer = not self.config.checkpoint.no_save_optimizer_state
            with self.parts.snapshot(state, self._description, with_optimizer) as checkpoint:
                if self._process.is_first:
                    self._folder.write(checkpoint, names)
            self.log.say(
                f"saved checkpoint {self._folder.path / names[0]} (epoch {epoch} @ "
                f"{state.num_updates} updates, score {shown}) (writing took "
                f"{time.monotonic() - start:.2f} seconds)"
            )
        self._lap = time.monotonic()

    def _write_result(self) -> None:
        """Bring the result up to now and write it."""
        self.result.measure(self.state.num_updates, self._wall())
        if self._process.is_first:
            self.result.write()

    def _limit_reached(self, epoch: int) -> str | None:
        """Return why training must not go on with an update in ``epoch``, or None."""
        if self._process.world_size == 1:
            out_of_time = self.config.run.time_is_up(self._wall())
        else:
            # Processes must agree, so they use the vote that came with the last update.
            out_of_time = self._last is not None and self._last.time_is_up
        return self.config.run.limit_reached(self.state.num_updates, epoch, out_of_time)

    def _patience_is_over(self) -> str | None:
        """Return why training must not go on, if that is the lack of a better score."""
        patience = self.config.run.patience
        if not 0 < patience <= self.state.bad_validations:
            return None
        metric = self.config.validation.best_checkpoint_metric
        reason = f"no better {metric} in {patience} validations (--patience)"
        validations = next(iter(self.result.valid.values()), [])
        if self.config.validation.maximize and loss_without_score(validations, metric):
            reason += f"; {metric} stayed 0 while the loss fell, so the model may still learn"
        return reason

    def _rate_has_fallen(self) -> str | None:
        """Return why no further epoch is to begin, if that is the learning rate."""
        rate = self._learning_rate(self.state.num_updates + 1)
        if rate > self.config.schedule.stop_min_lr:
            return None
        return f"the learning rate has fallen to {rate:g} (--stop-min-lr)"

    def _signalled(self) -> bool:
        if self._process.world_size == 1:
            return self._watch.received is not None
        return self._last is not None and self._last.interrupted

    def _learning_rate(self, num_updates: int) -> float:
        return self.parts.schedule.learning_rate(num_updates, self.state.epoch)

    def _wall(self) -> float:
        """Return the seconds of running, those before a resume included."""
        return time.monotonic() - self._started


def _is_multiple(number: int, interval: int) -> bool:
    return interval > 0 and number > 0 and number % interval == 0
