"""Settings of the trainer, under fairseq's flag names, for any model and data."""

import math
import re
from contextlib import suppress
from functools import partial

from relu_nmt.config import (
    READ,
    WRITTEN,
    Files,
    checked_by,
    flag_of,
    group,
    option,
    settings,
    shared,
    shown,
)
from relu_nmt.errors import ConfigError
from relu_nmt.training import OPTIMIZERS
from relu_nmt.training.budgets import BUDGET_EXAMPLES, PACED, SECONDS, Budget
from relu_nmt.training.schedules import ScheduleConfig

RESULTS_FILE = "results.json"
LAST = "checkpoint_last.safetensors"
"""The results, and the newest checkpoint, in a --save-dir."""
LOG_FORMATS = ("tqdm", "json", "simple", "none")
ALLOW_UNUSED = ("legacy_ddp", "no_c10d")
FULLY_SHARDED = "fully_sharded"
DDP_BACKENDS = ("pytorch_ddp", "c10d", *ALLOW_UNUSED, FULLY_SHARDED)
SAVED = Files(
    written=True,
    names=rf"checkpoint.*\.safetensors|{re.escape(RESULTS_FILE)}|document_lengths\.json|\.lock",
)
"""The files of a --save-dir."""
RESETS = ("reset_optimizer", "reset_lr_scheduler", "reset_dataloader", "reset_meters")
# The conditions of options.
SAVES = ("no_save", False)
# Options that share a condition or a range.
_adam = partial(option, needs=("optimizer", "adam", "adamw"))
_number = partial(option, least=0, metavar="N")
_ema = partial(option, least=0, needs="store_ema")
_fp16 = partial(option, needs="fp16")
_validating = partial(option, needs=shared.VALIDATES)
_saving = partial(option, needs=SAVES)
_going_on = partial(option, False, needs=("finetune_from_model", None))
# Metrics that are better when larger. All others are losses.
MAXIMIZED_METRICS = ("bleu", "chrf", "accuracy", "acc", "top1", "top5")


@settings
class OptimizerConfig:
    """Settings of the optimizer, and of the exponential moving average of the weights."""

    optimizer: str = option(
        "adam",
        "adam or adamw, both with decoupled weight decay, or adafactor",
        choices=OPTIMIZERS,
        with_options=True,
        metavar="NAME",
    )
    adam_betas: tuple[float, ...] = _adam(
        (0.9, 0.98),
        "decay rates of the moments",
        least=0,
        below=1,
        parts=("optimizer", "beta1", "beta2"),
        metavar="'(B1, B2)'",
    )
    adam_eps: float = _adam(
        1e-8, "added to the denominator", above=0, parts=("optimizer", "eps"), metavar="EPS"
    )
    weight_decay: float = option(
        0.0, "decoupled weight decay", least=0, metavar="WD", flags=("--wd",)
    )
    freeze: tuple[str, ...] = option(
        (),
        "parts that stay as they are: encoder, embeddings, decoder.layers.0...",
        metavar="PART,PART",
    )
    lr_scales: tuple[str, ...] = option(
        (), "factors of --lr by part: encoder=0.1,embeddings=0.5", metavar="PART=X"
    )

    store_ema: bool = option(
        False, "average the weights, and validate, decode and store the average"
    )
    ema_decay: float = _ema(0.9999, "share of the old average per update", below=1, metavar="D")
    ema_start_update: int = _ema(0, "before this update the average equals the weights")
    ema_update_freq: int = _ema(1, "updates between two averagings", least=1)

    def check(self) -> None:
        """Refuse --adam-betas of other than two rates, and --lr-scales that are no numbers."""
        _ = self.scale_by_part
        if len(self.adam_betas) != 2:
            raise ConfigError(
                f"--adam-betas {shown(self.adam_betas)}: expected two numbers, as (0.9, 0.98)"
            )

    @property
    def scale_by_part(self) -> dict[str, float]:
        """The factors of ``--lr-scales`` by the name of the part."""
        scales = {}
        for text in self.lr_scales:
            part, _, factor = text.partition("=")
            if part in scales:
                raise ConfigError(f"--lr-scales {text}: {part} has a factor already; give one")
            scales[part] = 0.0
            with suppress(ValueError):
                scales[part] = float(factor)
            if not 0 < scales[part] < math.inf:
                raise ConfigError(f"--lr-scales {text}: expected PART=X with a number above 0")
        return scales


@settings
class TrainerConfig(shared.PrecisionOptions):
    """All settings of a :class:`~relu_nmt.training.trainer.Trainer`."""

    seed: int = shared.seed_option()
    budget: str | None = option(
        None,
        f"train this long, and choose all that no flag gives; {BUDGET_EXAMPLES}",
        metavar="N[u|s|m|h|e]",
        parse=checked_by(Budget.parse),
        brings={
            "max_tokens": shared.AUTO_TOKENS,
            "skip_invalid_size_inputs": True,
            "lr_scheduler": "polynomial_decay",
            "store_ema": True,
            "no_epoch_checkpoints": True,
        },
        determines=PACED,
    )
    max_epoch: int = _number(0, "stop after this epoch; 0: no limit")
    max_update: int = _number(0, "stop after this update; 0: no limit")
    stop_time_hours: float = _number(
        0.0, "stop after this many hours, earlier runs included; 0: no limit", metavar="H"
    )
    patience: int = _number(
        -1, "end after N validations without progress; -1: never", least=-1, needs=shared.VALIDATES
    )
    update_freq: tuple[int, ...] = _number(
        (1,), "batches per update and process; per epoch: N1,N2,...", least=1
    )
    clip_norm: float = option(
        0.0, "clip the gradient to this norm (0: do not clip)", least=0, metavar="NORM"
    )
    fp16_init_scale: float = _fp16(128.0, "loss scale to begin with", above=0, metavar="S")
    fp16_scale_window: int | None = _fp16(
        None, "updates without overflow before the scale doubles", least=1
    )
    min_loss_scale: float = _fp16(
        1e-4, "stop if the loss scale falls below this", above=0, metavar="S"
    )
    num_workers: int = _number(1, "threads that read batches ahead; 0: none", most=1024)
    preflight: bool = option(True, "try the largest batch first, and print its memory")
    ddp_backend: str = option(
        "pytorch_ddp",
        "legacy_ddp allows unused weights, fully_sharded shards the model",
        choices=DDP_BACKENDS,
    )
    disable_validation: bool = option(False, "never validate", heading="validation and checkpoints")
    validate_interval: int = _validating(1, "validate every N epochs", least=1)
    validate_interval_updates: int = _validating(
        0, "also validate every N updates; 0: only between epochs", least=0
    )
    validate_after_updates: int = _validating(0, "do not validate before update N", least=0)
    best_checkpoint_metric: str = _validating(
        "loss", "metric that decides which checkpoint is best", metavar="M"
    )
    maximize_best_checkpoint_metric: bool | None = _validating(
        None, "larger values of that metric are better (default: of bleu, chrf, accuracy)"
    )
    save_dir: str = option("checkpoints", "folder of the checkpoints", metavar="DIR", files=SAVED)
    restore_file: str = option(
        LAST,
        "checkpoint to go on from: a path, or a name in --save-dir",
        files=Files(part_of=("save_dir",)),
    )
    finetune_from_model: str | None = option(
        None, "start from the weights of this checkpoint, all else fresh", files=READ
    )
    reset_optimizer: bool = _going_on("restore only the weights, and count updates from 0")
    reset_lr_scheduler: bool = _going_on("do not restore the learning-rate schedule")
    reset_dataloader: bool = _going_on("begin with epoch 1 instead of the stored position")
    reset_meters: bool = _going_on("forget averages, times and the best score so far")
    save_interval: int = _saving(1, "save every N epochs", least=1)
    save_interval_updates: int = _number(0, "also save (and validate) every N updates")
    keep_interval_updates: int = _number(
        -1, "keep the last N of those; -1: all", least=-1, needs=[SAVES, "save_interval_updates"]
    )
    keep_last_epochs: int = _number(
        -1,
        "keep the last N epoch checkpoints; -1: all",
        least=-1,
        needs=[SAVES, ("no_epoch_checkpoints", False)],
    )
    keep_best_checkpoints: int = _number(
        -1,
        "keep the N best as checkpoint.best_METRIC_VALUE",
        least=-1,
        needs=[SAVES, shared.VALIDATES],
    )
    no_save: bool = option(False, "write no checkpoint")
    no_epoch_checkpoints: bool = _saving(False, "keep only checkpoint_last and checkpoint_best")
    no_last_checkpoints: bool = _saving(False, "do not write checkpoint_last")
    no_save_optimizer_state: bool = _saving(
        False, "leave out the optimizer's state; training cannot resume exactly"
    )
    no_progress_bar: bool = shared.no_progress_bar_option(heading="log")
    log_interval: int = _number(100, "updates between two log lines", least=1)
    log_format: str | None = option(
        None, "form of the log (default: tqdm on a terminal, else simple)", choices=LOG_FORMATS
    )
    log_file: str | None = option(None, "write the log to this file too", files=WRITTEN)
    tensorboard_logdir: str | None = option(
        None,
        "folder for TensorBoard",
        metavar="DIR",
        files=Files(written=True, names=r"events\.out\.tfevents\..*"),
    )
    telemetry_interval: int = _number(100, "attention statistics every N updates; 0: never")
    optimizer: OptimizerConfig = group("optimizer and averaged weights", OptimizerConfig)
    schedule: ScheduleConfig = group("learning rate", ScheduleConfig)

    def check(self) -> None:
        """Refuse --finetune-from-model with --restore-file. Refuse to save nothing."""
        if self.finetune_from_model and self.restore_file != LAST:
            raise ConfigError(
                "--finetune-from-model begins a training and --restore-file goes on; leave one out"
            )
        saves = self.no_save or self.save_interval_updates or not self.disable_validation
        if self.no_epoch_checkpoints and self.no_last_checkpoints and not saves:
            raise ConfigError(
                "--no-epoch-checkpoints, --no-last-checkpoints and --disable-validation leave no "
                "checkpoint to be saved; leave one out, or say --no-save in their place"
            )

    @property
    def maximize(self) -> bool:
        """True if a larger value of ``best_checkpoint_metric`` is better."""
        if self.maximize_best_checkpoint_metric is not None:
            return self.maximize_best_checkpoint_metric
        return self.best_checkpoint_metric in MAXIMIZED_METRICS

    @property
    def same_command(self) -> str:
        """The command that goes on with this training, in words."""
        flags = [flag_of(name) for name in RESETS if getattr(self, name)]
        if self.restore_file != LAST:
            flags.insert(0, "--restore-file")
        if not flags:
            return "the same command"
        return f"the same command without {' '.join(flags)}"

    def fresh_start(self, goes_on: bool) -> str:
        """Return advice on flags for a training that takes nothing from an earlier checkpoint."""
        if not goes_on:
            return "leave --finetune-from-model out for a fresh start"
        without = ""
        if self.restore_file != LAST:
            without = " without --restore-file"
        elif self.finetune_from_model:
            without = " without --finetune-from-model"
        return f"choose another --save-dir{without} for a fresh start"

    def update_freq_of(self, epoch: int) -> int:
        """Return the batches per update and process in ``epoch`` (from 1)."""
        return self.update_freq[min(epoch, len(self.update_freq)) - 1]

    def share_of_time(self, seconds: float) -> float:
        """Return the share of ``--stop-time-hours`` that ``seconds`` of running have used up."""
        if not self.stop_time_hours:
            return 0.0
        return seconds / (self.stop_time_hours * SECONDS["h"])

    @property
    def follows_time(self) -> bool:
        """True if a ``--budget`` of time drives the schedule, and ``max_update`` is an estimate."""
        has_time = self.budget is not None and Budget.parse(self.budget).seconds is not None
        return has_time and self.max_update > 0 and self.stop_time_hours > 0
