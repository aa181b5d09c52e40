"""Settings of the trainer, under fairseq's flag names; nothing here knows what is trained."""

from dataclasses import dataclass

from relu_nmt.config import group, option, settings
from relu_nmt.errors import ConfigError
from relu_nmt.optim.config import OptimizerConfig, ScheduleConfig

LOG_FORMATS = ("tqdm", "json", "simple", "none")
DDP_BACKENDS = ("pytorch_ddp", "c10d", "legacy_ddp", "no_c10d")
# Metrics of which more is better; for the others, losses, less is.
MAXIMIZED_METRICS = ("bleu", "chrf", "accuracy", "acc", "top1", "top5")


def parse_update_freq(text: str) -> tuple[int, ...]:
    """Return the accumulation steps, one number per epoch, the last one for the rest.

    Raises:
        ValueError: not whole numbers from 1.
    """
    try:
        steps = tuple(int(part) for part in text.strip("[]() ").split(","))
    except ValueError:
        steps = ()
    if not steps or min(steps) < 1:
        raise ValueError(f"'{text}': expected whole numbers of 1 or more, such as 4 or 4,2,1")
    return steps


@dataclass(frozen=True)
class RunConfig:
    """How updates are made, and when to stop.

    Raises:
        ConfigError: values out of range, or both 16-bit formats.
    """

    max_epoch: int = option(0, "stop after this epoch; 0: no limit", metavar="N")
    max_update: int = option(0, "stop after this update; 0: no limit", metavar="N")
    stop_time_hours: float = option(
        0.0,
        "stop after this many hours of running, the time before a resume counted in; 0: no limit",
        metavar="H",
    )
    patience: int = option(
        -1,
        "stop after this many validations without a better --best-checkpoint-metric; -1: never",
        metavar="N",
    )
    update_freq: tuple[int, ...] = option(
        (1,),
        "batches per update and process (gradient accumulation), per epoch: N1,N2,...",
        metavar="N",
        parse=parse_update_freq,
    )
    clip_norm: float = option(0.0, "clip the gradient to this norm; 0: do not clip", metavar="NORM")
    seed: int = option(1, "seed of weights, dropout and order of the data", metavar="N")
    cpu: bool = option(False, "train on the CPU even if there is a GPU")
    bf16: bool = option(False, "compute in bfloat16 (weights stay in 32 bits); also on the CPU")
    fp16: bool = option(False, "compute in float16 with loss scaling; needs a CUDA GPU")
    fp16_init_scale: float = option(128.0, "loss scale to begin with", metavar="S")
    fp16_scale_window: int | None = option(
        None,
        "updates without overflow before the loss scale doubles "
        "(default: 2^14 / processes / update-freq)",
        metavar="N",
    )
    min_loss_scale: float = option(1e-4, "stop if the loss scale falls below", metavar="S")
    num_workers: int = option(1, "threads that read batches ahead; 0: none", metavar="N")

    def __post_init__(self) -> None:
        if self.fp16 and self.bf16:
            raise ConfigError("--fp16 and --bf16 exclude each other")
        if self.seed < 0:
            raise ConfigError(f"--seed {self.seed}: expected 0 or more")
        for name in ("max_epoch", "max_update", "stop_time_hours", "clip_norm", "num_workers"):
            if getattr(self, name) < 0:
                flag = "--" + name.replace("_", "-")
                raise ConfigError(f"{flag} {getattr(self, name)}: expected 0 or more")

    def update_freq_of(self, epoch: int) -> int:
        """Return the batches per update and process in ``epoch`` (from 1)."""
        return self.update_freq[min(epoch, len(self.update_freq)) - 1]


@dataclass(frozen=True)
class ValidationConfig:
    """When to validate, and which metric is the best one's.

    Raises:
        ConfigError: an interval out of range.
    """

    validate_interval: int = option(1, "validate every N epochs", metavar="N")
    validate_interval_updates: int = option(
        0, "also validate every N updates; 0: only between epochs", metavar="N"
    )
    validate_after_updates: int = option(0, "do not validate before update N", metavar="N")
    disable_validation: bool = option(False, "never validate")
    best_checkpoint_metric: str = option(
        "loss", "metric of the first validation set that makes a checkpoint the best", metavar="M"
    )
    maximize_best_checkpoint_metric: bool | None = option(
        None,
        "whether more of that metric is better (default: yes for bleu, chrf, accuracy; no for "
        "losses)",
    )

    def __post_init__(self) -> None:
        if self.validate_interval < 1:
            raise ConfigError(f"--validate-interval {self.validate_interval}: expected 1 or more")

    @property
    def maximize(self) -> bool:
        """Whether more of the best metric is better."""
        if self.maximize_best_checkpoint_metric is not None:
            return self.maximize_best_checkpoint_metric
        return self.best_checkpoint_metric in MAXIMIZED_METRICS


@dataclass(frozen=True)
class CheckpointConfig:
    """Where checkpoints go, which are kept, and what training starts from.

    Raises:
        ConfigError: settings that exclude each other.
    """

    save_dir: str = option("checkpoints", "folder of the checkpoints", metavar="DIR")
    restore_file: str = option(
        "checkpoint_last.safetensors",
        "checkpoint to go on from: a path, or a name in --save-dir; a missing "
        "checkpoint_last means a fresh start",
        metavar="FILE",
    )
    finetune_from_model: str | None = option(
        None, "start from the weights of this checkpoint, everything else fresh", metavar="FILE"
    )
    reset_optimizer: bool = option(False, "restore weights but not the optimiser, and count from 0")
    reset_lr_scheduler: bool = option(False, "do not restore the learning-rate schedule")
    reset_dataloader: bool = option(False, "begin with epoch 1 instead of the stored position")
    reset_meters: bool = option(False, "forget averages, times and the best score so far")
    save_interval: int = option(1, "save every N epochs", metavar="N")
    save_interval_updates: int = option(0, "also save (and validate) every N updates", metavar="N")
    keep_interval_updates: int = option(
        -1, "keep the last N of those saved by updates; -1: all", metavar="N"
    )
    keep_last_epochs: int = option(-1, "keep the last N epoch checkpoints; -1: all", metavar="N")
    keep_best_checkpoints: int = option(
        -1, "keep the N best as checkpoint.best_METRIC_VALUE; -1: only checkpoint_best", metavar="N"
    )
    no_save: bool = option(False, "write no checkpoint")
    no_epoch_checkpoints: bool = option(False, "keep only checkpoint_last and checkpoint_best")
    no_last_checkpoints: bool = option(False, "do not write checkpoint_last")
    no_save_optimizer_state: bool = option(
        False, "leave the optimiser's state out (smaller files; training cannot be resumed exactly)"
    )

    def __post_init__(self) -> None:
        if self.save_interval < 1:
            raise ConfigError(f"--save-interval {self.save_interval}: expected 1 or more")
        resets = (
            self.reset_optimizer,
            self.reset_lr_scheduler,
            self.reset_dataloader,
            self.reset_meters,
        )
        if self.finetune_from_model and any(resets):
            raise ConfigError("--finetune-from-model resets everything; leave --reset-... out")


@dataclass(frozen=True)
class LoggingConfig:
    """What is printed and logged.

    Raises:
        ConfigError: an interval out of range.
    """

    log_interval: int = option(100, "updates between two log lines", metavar="N")
    log_format: str | None = option(
        None, "form of the log (default: tqdm on a terminal, otherwise simple)", choices=LOG_FORMATS
    )
    no_progress_bar: bool = option(False, "no progress bar on a terminal: --log-format simple")
    log_file: str | None = option(None, "write the log to this file too", metavar="FILE")
    tensorboard_logdir: str | None = option(
        None,
        "folder for TensorBoard: losses, learning rate, gradient norm, speed, attention statistics",
        metavar="DIR",
    )
    telemetry_interval: int = option(
        100,
        "gather attention statistics every N updates, for TensorBoard and --log-format json; "
        "0: never",
        metavar="N",
    )

    def __post_init__(self) -> None:
        if self.log_interval < 1:
            raise ConfigError(f"--log-interval {self.log_interval}: expected 1 or more")
        if self.telemetry_interval < 0:
            raise ConfigError(f"--telemetry-interval {self.telemetry_interval}: expected 0 or more")


@dataclass(frozen=True)
class EmaConfig:
    """Exponential moving average of the weights.

    Raises:
        ConfigError: a decay outside 0 to 1.
    """

    store_ema: bool = option(
        False, "average the weights; validation, decoding and the stored model use the average"
    )
    ema_decay: float = option(0.9999, "share of the old average at each update", metavar="D")
    ema_start_update: int = option(0, "copy the weights before this update", metavar="N")
    ema_update_freq: int = option(1, "updates between two steps of the average", metavar="N")

    def __post_init__(self) -> None:
        if not 0 <= self.ema_decay < 1 or self.ema_update_freq < 1:
            raise ConfigError("--ema-decay must be from 0 to below 1, --ema-update-freq above 0")


@dataclass(frozen=True)
class DistributedConfig:
    """Several processes, started by torchrun (from its RANK, WORLD_SIZE and LOCAL_RANK)."""

    ddp_backend: str = option(
        "pytorch_ddp",
        "legacy_ddp also allows weights that a batch does not use, and is slower; "
        "c10d and no_c10d are older names of the two",
        choices=DDP_BACKENDS,
    )

    @property
    def find_unused_parameters(self) -> bool:
        """Whether a batch may leave weights unused."""
        return self.ddp_backend in ("legacy_ddp", "no_c10d")


@settings
class TrainerConfig:
    """All settings of a :class:`~relu_nmt.training.trainer.Trainer`, by purpose."""

    optimizer: OptimizerConfig = group("optimiser", OptimizerConfig)
    schedule: ScheduleConfig = group("learning rate", ScheduleConfig)
    run: RunConfig = group("updates and limits", RunConfig)
    validation: ValidationConfig = group("validation", ValidationConfig)
    checkpoint: CheckpointConfig = group("checkpoints", CheckpointConfig)
    ema: EmaConfig = group("averaged weights", EmaConfig)
    logging: LoggingConfig = group("log", LoggingConfig)
    distributed: DistributedConfig = group("several processes", DistributedConfig)
