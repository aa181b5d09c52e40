"""relu-nmt-vision-train: train an image classifier on class folders."""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.config import REQUIRED, group, option, settings
from relu_nmt.errors import ConfigError
from relu_nmt.modules.config import AttentionBackendConfig, AttentionRegularizerConfig
from relu_nmt.vision.config import VisionTransformerConfig
from relu_nmt.vision.training_config import (
    IMAGES,
    RECIPES,
    AugmentationConfig,
    ImageTaskOptions,
    PreprocessingConfig,
    VisionTrainerConfig,
)


@settings
class ImageTrainingSettings:
    """All settings of the training of an image classifier."""

    data: str = option(
        REQUIRED,
        "images: folder, zip file, NumPy archive or parquet file",
        metavar="DATA",
        positional=True,
        flags=("--data",),
        files=IMAGES,
    )
    task: ImageTaskOptions = group("images and loss", ImageTaskOptions)
    model: VisionTransformerConfig = group("model", VisionTransformerConfig)
    regularizer: AttentionRegularizerConfig = group(
        "attention regulariser", AttentionRegularizerConfig
    )
    backend: AttentionBackendConfig = group(
        "attention back end", AttentionBackendConfig, stored=False
    )
    preprocessing: PreprocessingConfig = group("crops and normalisation", PreprocessingConfig)
    augmentation: AugmentationConfig = group("augmentation", AugmentationConfig)
    trainer: VisionTrainerConfig = group("trainer", VisionTrainerConfig)

    def check(self) -> None:
        """Compare the groups with each other."""
        if self.task.init and self.trainer.checkpoint.finetune_from_model:
            raise ConfigError("--init and --finetune-from-model exclude each other")
        # Refuse mixtures of images that lack a partner.
        if self.task.batch_size == 1:
            for name in ("mixup", "cutmix"):
                if value := getattr(self.augmentation, name):
                    raise ConfigError(
                        f"--{name} {value:g} does nothing with --batch-size 1, where there is no "
                        "other image; set it to 0, or take larger batches"
                    )
        recipe = RECIPES[self.task.recipe]
        self.preprocessing.check_fits(max(self.model.image_size), recipe)


DESCRIPTION = """\
Train an image classifier on a folder or zip file that holds class folders (cat/1.jpg, dog/1.jpg),
or folders train and val that hold them; or on a NumPy archive or parquet file of images:

  relu-nmt-vision-train images.zip --valid-fraction 0.1 --arch vit_ti --image-size 32 \\
      --patch-size 4 --attention sima --batch-size 128 --lr 1e-3 --warmup-updates 500 \\
      --max-epoch 30 --best-checkpoint-metric accuracy --save-dir checkpoints

--recipe deit (xcit, cvt, swin, ...) sets augmentation and schedule as the papers do. The same
command resumes a training that was stopped. In the log wps is images a second, losses are in bits,
and accuracy (top-1) is in percent. Several processes: torchrun --nproc-per-node N -m
relu_nmt.cli.vision_train ... (the batch size is per process).
"""

main = RecipeCommand(
    "relu-nmt-vision-train",
    DESCRIPTION,
    ImageTrainingSettings,
    "train_images",
    most_used="valid_data arch recipe attention image_size batch_size lr max_epoch save_dir",
)

if __name__ == "__main__":
    raise SystemExit(main())
