r"""Train Mask R-CNN on a vision transformer, on a folder in COCO's format.

    python examples/detection/shapes.py shapes
    python examples/detection/train.py shapes --setting small --save-dir detection/xca
    python examples/detection/evaluate.py detection/xca/checkpoint_last.safetensors shapes

The same command continues a stopped training. It needs pycocotools:
pip install 'relu-nmt[detection]'.
"""

import sys
from typing import Any

from coco import CocoSet, DetectionBatches, data_option
from detector import DetectionObjective, DetectorConfig, build_detector
from torch import nn

from relu_nmt.cli.command import Command
from relu_nmt.config import READ, flag_of, group, like, option, settings, to_dict
from relu_nmt.config.shared import batch_size_option
from relu_nmt.errors import CheckpointError, ConfigError
from relu_nmt.jobs.training import training_run
from relu_nmt.jobs.vision_train.job import config_for_data
from relu_nmt.jobs.vision_train.settings import VisionTrainerConfig
from relu_nmt.modules.config import arch_option, attention_preset_option
from relu_nmt.training.batches import TrainingData
from relu_nmt.training.checkpoint import load_checkpoint, load_weights, read_metadata
from relu_nmt.training.save_dir import TrainingResult
from relu_nmt.vision.config import VisionTransformerConfig, architectures
from relu_nmt.vision.loading import classifier_metadata

TASK_NAME = "detection"
SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {
        "arch": "xcit_small_12_p16_224",
        "drop_path": 0.05,
        "train_set": "train2017",
        "min_size": tuple(range(480, 801, 32)),
        "anchor_scale": 8.0,
        "batch_size": 16,
        "max_epoch": 36,
        "lr_scheduler": "fixed",
        "lr": (*27 * (1e-4,), *6 * (1e-5,), *3 * (1e-6,)),
        "warmup_updates": 500,
    },
    "small": {
        "arch": "xcit_nano_12_p8_128",
        "layers": 6,
        "anchor_scale": 6.0,
        "proposals": 100,
        "sampled_boxes": 32,
        "batch_size": 4,
        "max_epoch": 10,
        "lr": (5e-4,),
        "warmup_updates": 50,
        "clip_norm": 1.0,
    },
}

CLASSIFIER = (
    *("tanh_layer", "head_bias"),
    *("class_layers", "class_attention", "class_layers_norm_patches"),
)
"""Settings of a vision model that concern its classifier."""


@settings
class TaskOptions:
    """The setting, the images and the start of a training."""

    setting: str = option(
        "small",
        "settings of a training: small (images of 128 pixels on a CPU) or paper (COCO on GPUs). "
        "Other flags win over this one",
        presets=SETTINGS,
        metavar="NAME",
    )
    arch: str = arch_option("xcit_nano_12_p8_128", architectures, "as relu-nmt-vision-train's")
    attention_preset: str = attention_preset_option()
    train_set: str = option("train", "name of the set: DATA/annotations/instances_NAME.json")
    init: str | None = option(
        None,
        "start the backbone from the weights of an image classifier of the same shape",
        metavar="CKPT",
        files=READ,
    )
    batch_size: int = batch_size_option(default=4, help="images of a batch, per process")


@settings
class DetectionTrainerConfig(VisionTrainerConfig):
    """The trainer's settings without validation: evaluate.py computes the average precision."""

    disable_validation: bool = like(VisionTrainerConfig, "disable_validation", True)


@settings
class DetectionSettings:
    """All settings of a training.

    Raises:
        ConfigError: settings that contradict each other.
    """

    data: str = data_option()
    task: TaskOptions = group("task", TaskOptions)
    model: VisionTransformerConfig = group("backbone", VisionTransformerConfig)
    detector: DetectorConfig = group("detector", DetectorConfig)
    trainer: DetectionTrainerConfig = group("trainer", DetectionTrainerConfig)

    def check(self) -> None:
        """Check that the settings need no missing part."""
        if not self.trainer.disable_validation:
            raise ConfigError("there is no validation in training; evaluate.py judges a checkpoint")
        plain = VisionTransformerConfig.of(**architectures[self.task.arch])
        for name in CLASSIFIER:
            if getattr(self.model, name) != getattr(plain, name):
                raise ConfigError(f"{flag_of(name)}: a detector has no classifier; leave it out")


def run(settings: DetectionSettings) -> TrainingResult:
    """Train up to a limit or a signal, from a checkpoint if the folder has one.

    Raises:
        DataError: images or annotations are missing or damaged.
        CheckpointError: the checkpoint to continue from belongs to another kind of training.
        MissingExtraError: pycocotools is not installed.
    """
    with training_run(settings, progress=True) as training:
        options = settings.task
        path = training.checkpoint
        if path is not None and read_metadata(path).get("task", {}).get("name") != TASK_NAME:
            raise CheckpointError(
                f"{path}: not of detection; choose another --save-dir for a fresh start"
            )
        data = CocoSet(settings.data, options.train_set)
        batches = DetectionBatches(data, options.batch_size, settings.trainer.seed)
        training.say(
            f"{data.images}: {len(batches.numbers):,} images with things of {len(data.names)} "
            f"kinds, and {len(data.numbers) - len(batches.numbers):,} without any, left out"
        )
        model = training.new_model(
            lambda: build_detector(settings.detector, settings.model, len(data.names)),
            settings.trainer,
        )
        training.say(f"Mask R-CNN on {options.arch}, attention {settings.model.attention}")
        training.say_size(model)
        if options.init is not None and path is None:
            start_backbone(model, options.init)
            training.say(f"the backbone starts from the weights of {options.init}")
        count = batches.begin_epoch(1)
        processes = training.process.world_size
        config = config_for_data(
            settings.trainer, options.batch_size, count, processes, training.say
        )
        task = {
            "name": TASK_NAME,
            "categories": data.categories,
            "names": data.names,
            "detector": to_dict(settings.detector),
        }
        trainer = training.trainer(
            DetectionObjective(model),
            TrainingData(batches, valid={}),
            settings,
            f"images per device = {options.batch_size}",
            task,
            config,
        )
        return trainer.train()


def start_backbone(model: nn.Module, path: str) -> None:
    """Load the weights of an image classifier, without its last layer, into the backbone.

    Raises:
        CheckpointError: the file is damaged, or of another shape or kind.
    """
    checkpoint = load_checkpoint(path)
    classifier_metadata(checkpoint.metadata, path)
    backbone = model.get_submodule("backbone.maps.model")
    names = backbone.state_dict().keys()
    weights = {name: x for name, x in checkpoint.model_tensors.items() if name in names}
    load_weights(backbone, weights, path)


main = Command(
    "detection",
    __doc__,
    DetectionSettings,
    run,
)

if __name__ == "__main__":
    sys.exit(main())
