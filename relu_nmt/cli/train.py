"""relu-nmt-train: train a translation model on a data folder."""

from collections.abc import Sequence

from relu_nmt.cli.command import make_parser, run_recipe
from relu_nmt.recipes.training_settings import TranslationTrainingSettings

DESCRIPTION = """\
Train a translation model on a data folder that relu-nmt-preprocess or fairseq-preprocess made:

  relu-nmt-train data-bin/corpus --arch reluformer_iwslt_de_en --share-all-embeddings \\
      --lr 5e-4 --warmup-updates 4000 --dropout 0.3 --weight-decay 1e-4 --max-tokens 4096 \\
      --eval-bleu --best-checkpoint-metric bleu --save-dir checkpoints

The same command goes on where it was stopped. Several processes:
torchrun --nproc-per-node N -m relu_nmt.cli.train ... (the batch size is that of each process).
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = make_parser("relu-nmt-train", DESCRIPTION, user_modules=True)
    return run_recipe(parser, TranslationTrainingSettings, _run, argv)


def _run(settings: TranslationTrainingSettings) -> int:
    from relu_nmt.recipes import train_translation

    return train_translation.run(settings).exit_code


if __name__ == "__main__":
    raise SystemExit(main())
