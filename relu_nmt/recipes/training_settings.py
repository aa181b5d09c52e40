"""Settings of the recipes that train: :mod:`train_translation` and :mod:`train_images`."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from relu_nmt.attention.config import (
    AttentionBackendConfig,
    AttentionPresetOptions,
    AttentionRegularizerConfig,
)
from relu_nmt.config import from_strings, like, option, to_dict
from relu_nmt.data.batching import BatchingConfig
from relu_nmt.data.groups import DocumentConfig
from relu_nmt.decoding.config import GenerationConfig
from relu_nmt.errors import ConfigError
from relu_nmt.models.architectures import architectures
from relu_nmt.models.config import TransformerConfig
from relu_nmt.training.config import TrainerConfig
from relu_nmt.vision.config import (
    ImageTaskOptions,
    PreprocessingConfig,
    VisionTransformerConfig,
)

LABEL_SMOOTHED = "label_smoothed_cross_entropy"
DEFAULT_SEARCH = '{"beam": 5, "max_len_a": 1.2, "max_len_b": 10}'


@dataclass(frozen=True)
class TaskOptions:
    """What is translated, by which model, and what is minimised.

    Raises:
        ConfigError: a value out of range.
    """

    source_lang: str | None = option(
        None, "source language; by default as the data was binarised", flags=("-s",), metavar="SRC"
    )
    target_lang: str | None = option(
        None, "target language; by default as the data was binarised", flags=("-t",), metavar="TGT"
    )
    task: str = option("translation", "what is learnt", choices=("translation",))
    arch: str = option(
        "reluformer",
        "shape of the model: transformer*; reluformer* is the same with --attention-preset "
        "reluformer; other model flags go before it",
        flags=("-a",),
        metavar="NAME",
        presets=architectures,
    )
    attention_preset: str = like(AttentionPresetOptions, "attention_preset", "none")
    criterion: str = option(
        LABEL_SMOOTHED,
        "loss per target token; cross_entropy is without smoothing",
        choices=(LABEL_SMOOTHED, "cross_entropy"),
    )
    label_smoothing: float = option(
        0.1, "probability taken from the right word and spread over all", metavar="P"
    )
    dataset_impl: str = option("mmap", "format of the binarised data", choices=("mmap",))
    train_subset: str = option("train", "split to train on", metavar="SPLIT")
    valid_subset: str = option(
        "valid",
        "splits to validate on, with commas; the first one decides which checkpoint is the best",
        metavar="SPLITS",
    )

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"--label-smoothing {self.label_smoothing}: expected 0 to below 1")

    @property
    def smoothing(self) -> float:
        """The label smoothing of the chosen criterion."""
        return self.label_smoothing if self.criterion == LABEL_SMOOTHED else 0.0


def parse_search(text: str) -> str:
    """Return the JSON text if it describes a search.

    Raises:
        ValueError: no JSON object.
        ConfigError: a field that the search does not have.
    """
    search_settings(text)
    return text


def search_settings(text: str) -> GenerationConfig:
    """Return the search that JSON with fields of :class:`GenerationConfig` describes.

    Raises:
        ValueError: no JSON object.
        ConfigError: unknown field or a value out of range.
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ValueError(f"expected JSON such as '{DEFAULT_SEARCH}' ({error})") from None
    if not isinstance(values, dict):
        raise ValueError(f"expected a JSON object such as '{DEFAULT_SEARCH}'")
    texts = {name.replace("-", "_"): str(value) for name, value in values.items()}
    return from_strings(GenerationConfig, texts)


@dataclass(frozen=True)
class EvalBleuOptions:
    """BLEU of the validation set during training."""

    eval_bleu: bool = option(False, "translate the first validation set and report BLEU")
    eval_bleu_args: str = option(
        DEFAULT_SEARCH, "settings of the search as JSON", metavar="JSON", parse=parse_search
    )
    eval_bleu_remove_bpe: str | None = option(
        None,
        "how data that came split (fairseq's folders) is joined: '@@ ' (also without a value), "
        "sentencepiece...",
        metavar="SYMBOL",
        bare="@@ ",
    )
    eval_bleu_detok: str | None = option(
        None,
        "how data that came tokenised is detokenised",
        choices=("moses", "space", "none"),
    )
    eval_tokenized_bleu: bool = option(
        False, "BLEU of the tokenised words, as multi-bleu.perl, instead of sacreBLEU of raw text"
    )
    eval_bleu_print_samples: bool = option(False, "print some translations at each validation")


@dataclass(frozen=True)
class TrainingSettings:
    """What the settings of every training have; a checkpoint keeps all but the back end.

    Args:
        data: what to train on.
        backend: how attention is computed.
        task: what is learnt.
        model: its shape.
        regularizer: of the attention.
        trainer: updates, optimiser, validation, checkpoints and log.
    """

    data: str
    backend: AttentionBackendConfig
    task: Any
    model: Any
    regularizer: AttentionRegularizerConfig
    trainer: TrainerConfig

    def to_args(self) -> dict[str, Any]:
        """Return them as what a checkpoint stores."""
        fields = (field.name for field in dataclasses.fields(self))
        return {
            "data": self.data,
            **{
                name: to_dict(getattr(self, name))
                for name in fields
                if name not in ("data", "backend")
            },
        }


@dataclass(frozen=True)
class TranslationTrainingSettings(TrainingSettings):
    """All settings of the training of a translation model.

    Raises:
        ConfigError: settings that contradict each other.
    """

    task: TaskOptions
    model: TransformerConfig
    batching: BatchingConfig
    documents: DocumentConfig
    bleu: EvalBleuOptions

    def __post_init__(self) -> None:
        self.documents.check_fits(self.batching.max_tokens)


@dataclass(frozen=True)
class ImageTrainingSettings(TrainingSettings):
    """All settings of the training of an image classifier."""

    task: ImageTaskOptions
    model: VisionTransformerConfig
    preprocessing: PreprocessingConfig


@dataclass(frozen=True)
class AverageSettings:
    """Which checkpoints to average.

    Args:
        inputs: checkpoints, or the folder that holds them.
        output: the checkpoint to write.
        num_epoch_checkpoints: average the last so many of the folder that were saved by epochs.
        num_update_checkpoints: the same of those saved by updates.
        checkpoint_upper_bound: take none of a later epoch (or update).

    Raises:
        ConfigError: settings that contradict each other.
    """

    inputs: tuple[str, ...]
    output: str
    num_epoch_checkpoints: int | None = None
    num_update_checkpoints: int | None = None
    checkpoint_upper_bound: int | None = None

    def __post_init__(self) -> None:
        counts = [self.num_epoch_checkpoints, self.num_update_checkpoints]
        given = [count for count in counts if count is not None]
        if len(given) > 1:
            raise ConfigError(
                "--num-epoch-checkpoints and --num-update-checkpoints exclude each other"
            )
        if not given and self.checkpoint_upper_bound is not None:
            raise ConfigError(
                "--checkpoint-upper-bound needs --num-epoch-checkpoints or --num-update-checkpoints"
            )
        if given and (given[0] < 1 or len(self.inputs) != 1):
            raise ConfigError(
                "--num-epoch-checkpoints and --num-update-checkpoints need 1 or more, and one "
                "folder as --inputs"
            )
