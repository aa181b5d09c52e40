r"""Train an image classifier.

DATA is a folder or zip file that holds class folders (cat/1.jpg, dog/1.jpg) or folders train and
val with class folders. It may also be a NumPy archive or parquet file of images:

  relu-nmt-vision-train images.zip --valid-fraction 0.1 --arch vit_ti --image-size 32 \
      --patch-size 4 --attention sima --batch-size 128 --lr 1e-3 --warmup-updates 500 \
      --max-epoch 30 --best-checkpoint-metric accuracy --save-dir checkpoints

--budget 10m in place of --max-epoch ends after ten minutes, with the schedule of the rate complete.
--recipe deit (xcit, cvt, swin, ...) sets augmentation and schedule as the papers do. The same
command resumes a training that was stopped. In the log wps is images a second, losses are in bits,
and accuracy (top-1) is in percent. Several processes: torchrun --nproc-per-node N -m
relu_nmt.cli.vision_train ... (the batch size is per process).
"""

from relu_nmt.cli.command import Command
from relu_nmt.jobs.vision_train.settings import ImageTrainingSettings

main = Command(
    "relu-nmt-vision-train",
    __doc__,
    ImageTrainingSettings,
    "relu_nmt.jobs.vision_train.job:run",
    most_used="valid_data arch recipe attention image_size batch_size lr max_epoch budget save_dir",
)

if __name__ == "__main__":
    raise SystemExit(main())
