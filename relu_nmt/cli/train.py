"""relu-nmt-train: train a translation model on a data folder."""

import argparse
from collections.abc import Sequence

from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.config import add_settings, read_settings
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
    return run_command(train_parser(), _run, argv)


def train_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = make_parser("relu-nmt-train", DESCRIPTION, user_modules=True)
    add_settings(parser, TranslationTrainingSettings)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    settings = read_settings(TranslationTrainingSettings, arguments)
    from relu_nmt.recipes import train_translation

    return train_translation.run(settings).exit_code


if __name__ == "__main__":
    raise SystemExit(main())
