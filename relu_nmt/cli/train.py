"""relu-nmt-train: train a translation model on a data folder."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from relu_nmt.attention.backend_config import AttentionBackendConfig
from relu_nmt.attention.regularizer_config import AttentionRegularizerConfig
from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.cli.train_options import EvalBleuOptions, TaskOptions, search_settings
from relu_nmt.cli.training_run import (
    TRAINER_OPTIONS,
    checkpoint_to_continue,
    report_size,
    train_in_process_group,
    trainer_config,
)
from relu_nmt.config import add_options, from_namespace, to_dict
from relu_nmt.data.batching import BatchingConfig
from relu_nmt.data.dictionary import SENTENCE_SEPARATOR
from relu_nmt.data.groups import DocumentConfig
from relu_nmt.errors import CheckpointError, ConfigError
from relu_nmt.evaluation.config import ScoringConfig
from relu_nmt.models.architectures import architectures
from relu_nmt.models.config import TransformerConfig
from relu_nmt.optim.config import OptimizerConfig, ScheduleConfig
from relu_nmt.training.config import TrainerConfig

if TYPE_CHECKING:
    from relu_nmt.corpus.translation import TranslationTask
    from relu_nmt.data.batches import TranslationBatches
    from relu_nmt.evaluation.validation_bleu import ValidationBleu
    from relu_nmt.models.encoder_decoder import EncoderDecoder
    from relu_nmt.training.distributed import ProcessGroup
    from relu_nmt.training.reporting import Reporter
    from relu_nmt.training.trainer import Trainer

DESCRIPTION = """\
Train a translation model on a data folder that relu-nmt-preprocess or fairseq-preprocess made:

  relu-nmt-train data-bin/corpus --arch reluformer_iwslt_de_en --share-all-embeddings \\
      --lr 5e-4 --warmup-updates 4000 --dropout 0.3 --weight-decay 1e-4 --max-tokens 4096 \\
      --eval-bleu --best-checkpoint-metric bleu --save-dir checkpoints

The same command goes on where it was stopped. Several processes:
torchrun --nproc-per-node N -m relu_nmt.cli.train ... (the batch size is that of each process).
"""
ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True)
class Settings:
    """All settings of the command, by purpose; a checkpoint keeps all but the back end."""

    data: str
    backend: AttentionBackendConfig
    task: TaskOptions
    model: TransformerConfig
    regularizer: AttentionRegularizerConfig
    batching: BatchingConfig
    documents: DocumentConfig
    bleu: EvalBleuOptions
    trainer: TrainerConfig

    def to_args(self) -> dict[str, Any]:
        """Return them as what a checkpoint stores."""
        return {
            "data": self.data,
            **{
                field.name: to_dict(getattr(self, field.name))
                for field in dataclasses.fields(self)
                if field.name not in ("data", "backend")
            },
        }


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


def read_settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings: typed flags, then those of ``--arch``, then the defaults.

    Raises:
        ConfigError: settings that contradict each other.
    """
    task = from_namespace(TaskOptions, arguments)
    preset = architectures[task.arch]
    batching = from_namespace(BatchingConfig, arguments)
    documents = from_namespace(DocumentConfig, arguments)
    documents.check_fits(batching.max_tokens)
    return Settings(
        arguments.data,
        from_namespace(AttentionBackendConfig, arguments),
        task,
        _with_preset(TransformerConfig, arguments, preset),
        _with_preset(AttentionRegularizerConfig, arguments, preset),
        batching,
        documents,
        from_namespace(EvalBleuOptions, arguments),
        trainer_config(arguments),
    )


def _with_preset(
    config_class: type[ConfigT], arguments: argparse.Namespace, preset: Mapping[str, Any]
) -> ConfigT:
    """Return the config whose fields not typed come from the preset, which has others too."""
    fields = {field.name for field in dataclasses.fields(config_class)}  # type: ignore[arg-type]
    base = {name: value for name, value in preset.items() if name in fields}
    return from_namespace(config_class, arguments, base)


def _run(arguments: argparse.Namespace) -> int:
    settings = read_settings(arguments)
    return train_in_process_group(settings.trainer, lambda group: _Training(settings, group))


class _Training:
    """Makes the parts of a translation training."""

    def __init__(self, settings: Settings, process: ProcessGroup) -> None:
        from relu_nmt.corpus.translation import TranslationTask
        from relu_nmt.training.reporting import Reporter

        self.settings = settings
        self.process = process
        options, bleu = settings.task, settings.bleu
        task = TranslationTask.from_data_folder(
            settings.data, options.source_lang, options.target_lang
        )
        if task.target_text.keeps_text:
            task = task.with_post_processing(bleu.eval_bleu_remove_bpe, bleu.eval_bleu_detok)
        if settings.documents.sentence_separator:
            task = task.with_sentence_separator()
        self.task: TranslationTask = task
        self.reporter: Reporter = Reporter(settings.trainer.logging, quiet=not process.is_first)

    def trainer(self) -> Trainer:
        """Return the trainer of a new model."""
        from relu_nmt.models.objective import TranslationObjective
        from relu_nmt.training.trainer import Trainer, TrainingData

        settings, say = self.settings, self.reporter.say
        model = self._model()
        self._check_checkpoint()
        objective = TranslationObjective(model, settings.task.smoothing, settings.regularizer)
        train, valid = self._batches()
        scorers = {}
        if settings.bleu.eval_bleu and valid:
            first = next(iter(valid))
            scorers[first] = self._bleu_of(model, valid[first])
        description = {
            "model_config": to_dict(settings.model),
            "task": self.task.to_state(),
            "args": settings.to_args(),
        }
        trainer = Trainer(
            model,
            objective,
            TrainingData(train, valid, scorers),
            settings.trainer,
            description,
            self.process,
            self.reporter,
        )
        say(
            f"training on {self.process.world_size} device(s) ({self.process.device.type}); "
            f"max tokens per device = {settings.batching.max_tokens} and max sentences per "
            f"device = {settings.batching.batch_size}"
        )
        return trainer

    def _model(self) -> EncoderDecoder:
        """Return a new model; its size is printed."""
        import torch

        from relu_nmt.attention.backends.choice import set_attention_backend
        from relu_nmt.loading import build_model

        task, config, say = self.task, self.settings.model, self.reporter.say
        for language, dictionary in (
            (task.source_lang, task.source_dictionary),
            (task.target_lang, task.target_dictionary),
        ):
            say(f"[{language}] dictionary: {len(dictionary)} types")
        if config.share_all_embeddings and not task.joined_dictionary:
            raise ConfigError(
                f"--share-all-embeddings: {self.settings.data} has two dictionaries; preprocess "
                "with --joined-dictionary, or use --share-decoder-input-output-embed"
            )
        torch.manual_seed(self.settings.trainer.run.seed)
        model = build_model(config, task)
        set_attention_backend(model, self.settings.backend.attention_backend)
        say(f"model: {self.settings.task.arch}, attention {_attention_names(config)}")
        report_size(model, say)
        return model

    def _check_checkpoint(self) -> None:
        """Compare the checkpoint to go on from with this model and data.

        Raises:
            CheckpointError: its dictionaries are not the data's.
        """
        from relu_nmt.corpus.translation import TranslationTask
        from relu_nmt.training.checkpoint import read_metadata

        path = checkpoint_to_continue(self.settings.trainer)
        if path is None:
            return
        stored = read_metadata(path)
        if "task" in stored:
            theirs = TranslationTask.from_state(stored["task"])
            for side in ("source", "target"):
                self._check_dictionary(path, theirs, side)
        own = to_dict(self.settings.model)
        for name, value in stored.get("model_config", {}).items():
            if name in own and own[name] != value:
                self.reporter.say(f"note: --{name.replace('_', '-')} was {value}, is {own[name]}")

    def _check_dictionary(self, path: Path | str, theirs: TranslationTask, side: str) -> None:
        """Compare a dictionary of a checkpoint with the data's.

        A model of sentences may go on with separators: the new symbol replaces a filler.
        """
        stored, own = (getattr(task, f"{side}_dictionary") for task in (theirs, self.task))
        if stored == own:
            return
        if theirs.has_sentence_separator and not self.task.has_sentence_separator:
            raise CheckpointError(f"{path}: trained with --sentence-separator; give it here too")
        adds_symbol = self.task.has_sentence_separator and SENTENCE_SEPARATOR not in stored
        if adds_symbol and stored.with_symbol(SENTENCE_SEPARATOR) == own:
            if len(stored) == len(own):
                return
            raise CheckpointError(
                f"{path}: trained without --sentence-separator, and its {side} dictionary has no "
                "free place for the symbol; leave the flag out"
            )
        raise CheckpointError(
            f"{path}: trained with another {side} dictionary than that of "
            f"{self.settings.data}; preprocess with its dictionary (--srcdict, "
            "--tgtdict), or choose another --save-dir for a fresh start"
        )

    def _batches(self) -> tuple[TranslationBatches, dict[str, TranslationBatches]]:
        """Return the batches to train and to validate on; what is in them is printed."""
        from relu_nmt.cli.training_data import TrainingSplits

        settings = self.settings
        splits = TrainingSplits(self.task, settings.batching, settings.documents, self.reporter.say)
        train = splits.training(settings.task.train_subset, settings.trainer.run.seed)
        names = settings.task.valid_subset.split(",")
        if settings.trainer.validation.disable_validation:
            names = []
        valid = {name: splits.validation(name) for name in names}
        if self.process.is_first and not settings.trainer.checkpoint.no_save:
            splits.write_lengths(Path(settings.trainer.checkpoint.save_dir))
        return train, valid

    def _bleu_of(self, model: EncoderDecoder, batches: TranslationBatches) -> ValidationBleu:
        import torch

        from relu_nmt.decoding.generator import Generator
        from relu_nmt.evaluation.validation_bleu import SAMPLES, ValidationBleu

        options, run = self.settings.bleu, self.settings.trainer.run
        dtype = torch.bfloat16 if run.bf16 else torch.float16 if run.fp16 else None
        search = search_settings(options.eval_bleu_args)
        return ValidationBleu(
            Generator([model], search, self.task.target_dictionary, dtype),
            self.task,
            batches.split,
            ScoringConfig(scoring="bleu" if options.eval_tokenized_bleu else "sacrebleu"),
            self.process,
            self.reporter.say,
            SAMPLES if options.eval_bleu_print_samples else 0,
            batches.groups if self.settings.documents.active else None,
        )


def _attention_names(config: TransformerConfig) -> str:
    names = {slot: config.attention_of(slot) for slot in ("encoder", "decoder", "cross")}
    if len(set(names.values())) == 1:
        return names["encoder"]
    return ", ".join(f"{slot} {name}" for slot, name in names.items())


if __name__ == "__main__":
    raise SystemExit(main())
