r"""Train a translation model on a data folder that relu-nmt-preprocess or fairseq-preprocess made.

In the time that you have, with all else chosen for the text and the device:

  relu-nmt-train data-bin/corpus --arch reluformer --budget 1h

By hand:

  relu-nmt-train data-bin/corpus --arch reluformer_iwslt_de_en --share-all-embeddings \
      --lr 5e-4 --warmup-updates 4000 --dropout 0.3 --weight-decay 1e-4 --max-tokens 4096 \
      --eval-bleu --best-checkpoint-metric bleu --save-dir checkpoints

The same command continues a stopped training. Losses in the log are in bits. Several processes:
torchrun --nproc-per-node N -m relu_nmt.cli.train ... (the batch size is per process).
"""

from relu_nmt.cli.command import Command
from relu_nmt.jobs.train.settings import TranslationTrainingSettings

main = Command(
    "relu-nmt-train",
    __doc__,
    TranslationTrainingSettings,
    "relu_nmt.jobs.train.job:run",
    most_used="budget arch share_all_embeddings lr warmup_updates dropout max_tokens "
    "max_update eval_bleu best_checkpoint_metric save_dir",
)

if __name__ == "__main__":
    raise SystemExit(main())
