"""relu-nmt-train: train a translation model on a data folder."""

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

from relu_nmt.attention.backend_config import AttentionBackendConfig
from relu_nmt.attention.presets import ATTENTION_PRESETS
from relu_nmt.attention.regularizer_config import AttentionRegularizerConfig
from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.cli.training_flags import TRAINER_OPTIONS, trainer_config
from relu_nmt.config import add_options, from_namespace
from relu_nmt.data.batching import BatchingConfig
from relu_nmt.data.document_config import DocumentConfig
from relu_nmt.models.architectures import architectures
from relu_nmt.models.config import TransformerConfig
from relu_nmt.optim.config import OptimizerConfig, ScheduleConfig
from relu_nmt.recipes.training_settings import (
    EvalBleuOptions,
    TaskOptions,
    TranslationTrainingSettings,
)

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
    parser.add_argument("data", help="data folder")
    for config_class, title in (
        (TaskOptions, "task and loss"),
        (TransformerConfig, "model"),
        (AttentionRegularizerConfig, "attention regulariser"),
        (AttentionBackendConfig, "attention back end"),
        (BatchingConfig, "batches"),
        (DocumentConfig, "documents"),
        (OptimizerConfig, "optimiser"),
        (ScheduleConfig, "learning rate"),
        (EvalBleuOptions, "BLEU in validation"),
        *TRAINER_OPTIONS,
    ):
        add_options(parser, config_class, title)
    return parser


def read_settings(arguments: argparse.Namespace) -> TranslationTrainingSettings:
    """Return the settings: typed flags, then those of ``--arch``, then the defaults.

    Raises:
        ConfigError: settings that contradict each other.
    """
    task = from_namespace(TaskOptions, arguments)
    model, regularizer = split_preset(task.arch, getattr(arguments, "attention_preset", None))
    return TranslationTrainingSettings(
        data=arguments.data,
        backend=from_namespace(AttentionBackendConfig, arguments),
        task=task,
        model=from_namespace(TransformerConfig, arguments, model),
        regularizer=from_namespace(AttentionRegularizerConfig, arguments, regularizer),
        trainer=trainer_config(arguments),
        batching=from_namespace(BatchingConfig, arguments),
        documents=from_namespace(DocumentConfig, arguments),
        bleu=from_namespace(EvalBleuOptions, arguments),
    )


def split_preset(arch: str, attention_preset: str | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a preset says of the model and of the regulariser."""
    preset = architectures[arch]
    chosen = attention_preset or preset.get("attention_preset", "none")
    preset = {**preset, **ATTENTION_PRESETS[chosen]}
    preset.pop("attention_preset", None)
    own = {field.name for field in dataclasses.fields(TransformerConfig)}
    model = {name: value for name, value in preset.items() if name in own}
    return model, {name: value for name, value in preset.items() if name not in own}


def _run(arguments: argparse.Namespace) -> int:
    settings = read_settings(arguments)
    from relu_nmt.recipes import train_translation

    return train_translation.run(settings).exit_code


if __name__ == "__main__":
    raise SystemExit(main())
