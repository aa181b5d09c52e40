r"""Train the features of any vision model without labels, by self-distillation (DINO).

    python examples/dino/train.py images --setting small --save-dir dino/xca
    relu-nmt-vision-probe dino/xca/teacher.safetensors --train images/train --test images/val \
        --method knn

The same command continues a stopped training. At its end it writes the teacher as the checkpoint of
an image classifier with an untrained head. teacher.py does so with any checkpoint.
"""

import os
import sys
from pathlib import Path
from typing import Any

from distillation import DistillationConfig, SelfDistillation, StudentAndTeacher
from teacher import TASK_NAME, save_teacher
from views import ViewBatches, ViewConfig, Views

from relu_nmt.cli.command import Command
from relu_nmt.config import (
    REQUIRED,
    group,
    like,
    option,
    settings,
    to_dict,
)
from relu_nmt.config.shared import batch_size_option
from relu_nmt.errors import CheckpointError, ConfigError
from relu_nmt.jobs.training import training_run
from relu_nmt.jobs.vision_train.job import config_for_data, updates_of_epochs
from relu_nmt.jobs.vision_train.settings import (
    ImageTrainingSettings,
    VisionOptimizerConfig,
    VisionTrainerConfig,
)
from relu_nmt.modules.config import arch_option, attention_preset_option
from relu_nmt.training.batches import TrainingData
from relu_nmt.training.checkpoint import read_metadata
from relu_nmt.training.save_dir import TrainingResult
from relu_nmt.vision.config import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    PreprocessingConfig,
    VisionTransformerConfig,
    architectures,
    shown_sides,
)
from relu_nmt.vision.images import open_images

LAST = "checkpoint_last.safetensors"
TEACHER = "teacher.safetensors"
_COMMON: dict[str, Any] = {"clip_norm": 3.0, "min_lr": 1e-6}
SETTINGS: dict[str, dict[str, Any]] = {
    # Use the stochastic depth of the public code.
    "paper": {
        **_COMMON,
        "arch": "xcit_small_12_p16_224",
        "drop_path": 0.1,
        "batch_size": 256,
        "max_epoch": 100,
        "warmup_epochs": 10.0,
        "lr": (2.5e-4,),
    },
    "small": {
        **_COMMON,
        "arch": "xcit_nano_12_p8_32",
        "local_crops": 4,
        "local_size": 16,
        "head_dim": 256,
        "bottleneck_dim": 64,
        "outputs": 1024,
        "batch_size": 64,
        "max_epoch": 2,
        "warmup_epochs": 0.2,
        "lr": (5e-4,),
    },
}


@settings
class TaskOptions:
    """The setting of a training and its batches."""

    setting: str = option(
        "small",
        "settings of a training: small (images of 32 pixels on a CPU) or paper (ImageNet on "
        "GPUs). Other flags win over this one",
        presets=SETTINGS,
        metavar="NAME",
    )
    arch: str = arch_option("xcit_nano_12_p8_32", architectures, "as relu-nmt-vision-train's")
    attention_preset: str = attention_preset_option()
    batch_size: int = batch_size_option(default=64, help="images of a batch, per process")
    pixel_mean: tuple[float, ...] = like(PreprocessingConfig, "pixel_mean", IMAGENET_MEAN)
    pixel_std: tuple[float, ...] = like(PreprocessingConfig, "pixel_std", IMAGENET_STD)


@settings
class DinoOptimizerConfig(VisionOptimizerConfig):
    """The optimizer's settings with the defaults of self-distillation."""

    weight_decay: float = like(
        VisionOptimizerConfig, "weight_decay", 0.04, "decoupled weight decay, at first"
    )


@settings
class DinoTrainerConfig(VisionTrainerConfig):
    """The trainer's settings with the defaults of self-distillation.

    Validation would need labels, and the frozen last layer has no gradient.
    """

    ddp_backend: str = like(VisionTrainerConfig, "ddp_backend", "legacy_ddp")
    disable_validation: bool = like(VisionTrainerConfig, "disable_validation", True)
    optimizer: DinoOptimizerConfig = group("optimizer and averaged weights", DinoOptimizerConfig)


@settings
class DinoSettings:
    """All settings of a training.

    Raises:
        ConfigError: settings that contradict each other.
    """

    data: str = like(ImageTrainingSettings, "data", REQUIRED)
    task: TaskOptions = group("task", TaskOptions)
    model: VisionTransformerConfig = group("model", VisionTransformerConfig)
    views: ViewConfig = group("views", ViewConfig)
    distillation: DistillationConfig = group("self-distillation", DistillationConfig)
    trainer: DinoTrainerConfig = group("trainer", DinoTrainerConfig)

    def check(self) -> None:
        """Compare the groups with each other."""
        if not self.trainer.max_epoch:
            raise ConfigError("--max-epoch 0: teacher and weight decay follow it; give a number")
        if len(set(self.model.image_size)) > 1:
            raise ConfigError(
                f"--image-size {shown_sides(self.model.image_size)}: views are squares; give one "
                "number"
            )
        if not self.trainer.disable_validation:
            raise ConfigError("without labels there is nothing to validate on; see vision-probe")
        if self.model.head_bias:
            raise ConfigError("--head-bias: the head is not trained; leave it out")
        if self.trainer.optimizer.store_ema:
            raise ConfigError("--store-ema: the teacher is an average already; leave it out")


def run(settings: DinoSettings) -> TrainingResult:
    """Train up to a limit or a signal, from a checkpoint if the folder has one.

    Raises:
        DataError: images are missing or damaged.
        CheckpointError: the checkpoint to continue from belongs to another kind of training.
    """
    with training_run(settings, progress=True) as training:
        options = settings.task
        path = training.checkpoint
        if path is not None and read_metadata(path).get("task", {}).get("name") != TASK_NAME:
            raise CheckpointError(
                f"{path}: not of self-distillation; choose another --save-dir for a fresh start"
            )
        images, *_ = open_images(settings.data).values()
        training.say(f"{images.origin}: {images.name}: {len(images):,} images")
        preprocessing = PreprocessingConfig(
            pixel_mean=options.pixel_mean, pixel_std=options.pixel_std
        )
        views = Views(settings.views, settings.model.image_size[0], preprocessing)
        batches = ViewBatches(images, views, options.batch_size, settings.trainer.seed)
        model = training.new_model(
            lambda: StudentAndTeacher(settings.model, len(images.classes), settings.distillation),
            settings.trainer,
        )
        training.say(f"student and teacher: {options.arch}, attention {settings.model.attention}")
        training.say_size(model)
        count = batches.begin_epoch(1)
        processes = training.process.world_size
        total = updates_of_epochs(settings.trainer, count, processes)
        objective = SelfDistillation(model, settings.distillation, total)
        config = config_for_data(
            settings.trainer, options.batch_size, count, processes, training.say
        )
        task = {
            "name": TASK_NAME,
            "classes": list(images.classes),
            "preprocessing": to_dict(preprocessing),
        }
        data = TrainingData(batches, valid={})
        batch_size = f"images per device = {options.batch_size}"
        trainer = training.trainer(objective, data, settings, batch_size, task, config)
        objective.follow(trainer)
        return trainer.train()


def train(settings: DinoSettings) -> TrainingResult:
    """Train, and write the teacher beside the last checkpoint.

    Raises:
        ReluNmtError: settings, images or checkpoints that do not fit.
    """
    result = run(settings)
    last = Path(settings.trainer.save_dir) / LAST
    is_first = os.environ.get("RANK", "0") == "0"  # the first process of torchrun
    if is_first and result.save_dir is not None and last.exists():
        save_teacher(last, last.with_name(TEACHER))
    return result


main = Command("dino", __doc__, DinoSettings, train)

if __name__ == "__main__":
    sys.exit(main())
