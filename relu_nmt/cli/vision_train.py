"""relu-nmt-vision-train: train an image classifier on class folders."""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.recipes.training_settings import ImageTrainingSettings

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
    most_used=(
        "valid_data",
        "arch",
        "recipe",
        "attention",
        "image_size",
        "batch_size",
        "lr",
        "max_epoch",
        "save_dir",
    ),
)

if __name__ == "__main__":
    raise SystemExit(main())
