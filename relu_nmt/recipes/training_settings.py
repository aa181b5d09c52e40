"""Settings of the recipes that train: :mod:`train_translation` and :mod:`train_images`."""

import json
from typing import Any

from relu_nmt.attention.spec import (
    AttentionBackendConfig,
    AttentionPresetOptions,
    AttentionRegularizerConfig,
)
from relu_nmt.config import REQUIRED, checked_by, from_flat, group, like, option, settings
from relu_nmt.config.files import WRITTEN, Files
from relu_nmt.config.shared import BatchingConfig, CommonOptions, FairseqOptions
from relu_nmt.data.data_folder import DATA_FILES
from relu_nmt.data.documents import DocumentConfig
from relu_nmt.errors import ConfigError
from relu_nmt.evaluation.metrics import TokenizerOptions
from relu_nmt.modules.config import arch_option
from relu_nmt.training.config import TrainerConfig
from relu_nmt.translation.config import TransformerConfig, architectures
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.vision.config import VisionTransformerConfig
from relu_nmt.vision.training_config import (
    IMAGES,
    RECIPES,
    AugmentationConfig,
    ImageTaskOptions,
    PreprocessingConfig,
    VisionTrainerConfig,
)

NUMBERED = r"checkpoint(\d+|_\d+_\d+)\.safetensors"
"""Names of the checkpoints that are saved by epochs and by updates."""
LABEL_SMOOTHED = "label_smoothed_cross_entropy"
WITH_ALIGNMENT = "label_smoothed_cross_entropy_with_alignment"
DEFAULT_SEARCH = '{"beam": 5, "max_len_a": 1.2, "max_len_b": 10}'


@settings
class TaskOptions(FairseqOptions):
    """Languages, shape of the model, loss and corpora.

    Raises:
        ConfigError: a value out of range.
    """

    source_lang: str | None = like(CommonOptions, "source_lang")
    target_lang: str | None = like(CommonOptions, "target_lang")
    arch: str = arch_option(
        "reluformer",
        architectures,
        "transformer*; reluformer* is the same with --attention-preset reluformer",
    )
    attention_preset: str = like(AttentionPresetOptions, "attention_preset", "none")
    criterion: str = option(
        LABEL_SMOOTHED,
        "loss per target token; cross_entropy is without smoothing; with alignment, "
        "cross-attention learns to attend to the words aligned with each token (Garg et al. 2019)",
        choices=(LABEL_SMOOTHED, "cross_entropy", WITH_ALIGNMENT),
    )
    label_smoothing: float = option(
        0.1,
        "probability taken from the right word and spread over all",
        metavar="P",
        least=0,
        below=1,
        needs=("criterion", LABEL_SMOOTHED, WITH_ALIGNMENT),
    )
    load_alignments: bool = option(
        False,
        "train on the word alignments of relu-nmt-preprocess --align-suffix, in the attention of "
        "--alignment-layer and --alignment-heads",
        needs=("criterion", WITH_ALIGNMENT),
    )
    alignment_lambda: float = option(
        0.05,
        "weight of the alignment loss",
        above=0,
        metavar="W",
        needs=("criterion", WITH_ALIGNMENT),
    )
    report_accuracy: bool = option(
        False, "also log how many percent of the target tokens are predicted right"
    )
    train_subset: str = option("train", "split to train on", metavar="SPLIT")
    extra_data: tuple[str, ...] = option(
        (),
        "further data folders to train on, with commas: same dictionaries, but back-translated "
        "text, say, or sentences beside documents",
        metavar="DIRS",
        files=DATA_FILES,
    )
    corpus_weights: tuple[float, ...] = option(
        (),
        "how often an epoch reads DATA and each further folder: 2,0.5 reads DATA twice and a half "
        "of the other, another half in each epoch; by default all once",
        above=0,
        needs="extra_data",
        metavar="W",
    )
    tag_extra_data: bool = option(
        False,
        "begin the source sentences (or documents) of each further folder with a tag of its own, "
        "an unused entry of the dictionary, so that later translations are like DATA",
        needs="extra_data",
    )
    truncate_source: bool = option(
        False,
        "train on the beginning of source sentences that are longer than --max-source-positions",
    )
    valid_subset: str = option(
        "valid",
        "splits to validate on, with commas; the first one decides which checkpoint is the best",
        metavar="SPLITS",
    )

    def check(self) -> None:
        """Refuse a criterion without alignments, or corpus weights for other folders."""
        if self.criterion == WITH_ALIGNMENT and not self.load_alignments:
            raise ConfigError(
                f"--criterion {WITH_ALIGNMENT}: give --load-alignments too, and data made with "
                "relu-nmt-preprocess --align-suffix"
            )
        corpora = 1 + len(self.extra_data)
        if self.corpus_weights and len(self.corpus_weights) != corpora:
            raise ConfigError(
                f"--corpus-weights: {len(self.corpus_weights)} numbers, but there are {corpora} "
                "data folders"
            )

    @property
    def smoothing(self) -> float:
        """The label smoothing of the chosen criterion."""
        return 0.0 if self.criterion == "cross_entropy" else self.label_smoothing


def search_settings(text: str) -> GenerationConfig:
    """Return the search settings in a JSON object with fields of :class:`GenerationConfig`.

    Raises:
        ValueError: the text is not a JSON object.
        ConfigError: unknown field or a value out of range.
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ValueError(f"expected JSON such as '{DEFAULT_SEARCH}' ({error})") from None
    if not isinstance(values, dict):
        raise ValueError(f"expected a JSON object such as '{DEFAULT_SEARCH}'")
    return from_flat(GenerationConfig, values)


def detokenizer_settings(text: str) -> dict[str, Any]:
    """Return a detokeniser's settings in a JSON object.

    Raises:
        ValueError: the text is not a JSON object, or has an unknown setting.
    """
    values = json.loads(text)
    if not isinstance(values, dict) or values.keys() - {"source_lang", "target_lang"}:
        raise ValueError('expected JSON such as \'{"target_lang": "en"}\'')
    return values


@settings
class EvalBleuOptions:
    """BLEU of the validation set during training."""

    eval_bleu: bool = option(False, "translate the first validation set and report BLEU")
    eval_bleu_args: str = option(
        DEFAULT_SEARCH,
        "settings of the search as JSON",
        metavar="JSON",
        parse=checked_by(search_settings),
        needs="eval_bleu",
    )
    eval_bleu_remove_bpe: str | None = option(
        None,
        "how data that came split (fairseq's folders) is joined: '@@ ' (also without a value), "
        "sentencepiece...",
        metavar="SYMBOL",
        bare="@@ ",
        needs="eval_bleu",
    )
    eval_bleu_detok: str | None = option(
        None,
        "how data that came tokenised is detokenised",
        choices=("moses", "space", "none"),
        needs="eval_bleu",
    )
    eval_bleu_detok_args: str = option(
        "{}",
        "as in fairseq, JSON: target_lang, which is the data's anyway",
        metavar="JSON",
        parse=checked_by(detokenizer_settings),
        needs="eval_bleu",
    )
    eval_tokenized_bleu: bool = option(
        False,
        "BLEU of the tokenised words, as multi-bleu.perl, instead of sacreBLEU of raw text",
        needs="eval_bleu",
    )
    sacrebleu_tokenizer: str | None = like(
        TokenizerOptions,
        "sacrebleu_tokenizer",
        None,
        needs=["eval_bleu", ("eval_tokenized_bleu", False)],
    )
    eval_bleu_print_samples: bool = option(
        False, "print some translations at each validation", needs="eval_bleu"
    )


class TrainingSettings:
    """The fields that the settings of every training have.

    Args:
        data: path of the data.
        model: shape of the model.
        backend: back end of attention; not stored.
        trainer: updates, optimiser, validation, checkpoints and log.
    """

    data: str
    model: Any
    backend: AttentionBackendConfig
    trainer: TrainerConfig


@settings
class TranslationTrainingSettings(TrainingSettings):
    """All settings of the training of a translation model.

    Raises:
        ConfigError: settings that contradict each other.

    Example:
        >>> settings = TranslationTrainingSettings.of(
        ...     data="data-bin", arch="reluformer_tiny", max_tokens=4096
        ... )
        >>> settings.model.encoder_layers
        2
    """

    data: str = option(
        REQUIRED,
        "data folder; of several (shards), a:b:c, each epoch trains on one, in turn",
        metavar="DATA",
        positional=True,
        files=DATA_FILES,
    )
    task: TaskOptions = group("task and loss", TaskOptions)
    model: TransformerConfig = group("model", TransformerConfig)
    regularizer: AttentionRegularizerConfig = group(
        "attention regulariser", AttentionRegularizerConfig
    )
    backend: AttentionBackendConfig = group(
        "attention back end", AttentionBackendConfig, stored=False
    )
    batching: BatchingConfig = group("batches", BatchingConfig)
    documents: DocumentConfig = group("documents", DocumentConfig)
    bleu: EvalBleuOptions = group("BLEU in validation", EvalBleuOptions)
    trainer: TrainerConfig = group("trainer", TrainerConfig)

    def check(self) -> None:
        """Compare the groups with each other."""
        self.documents.check_fits(self.batching.max_tokens)


@settings
class ImageTrainingSettings(TrainingSettings):
    """All settings of the training of an image classifier.

    Raises:
        ConfigError: settings that contradict each other.
    """

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


@settings
class AverageSettings:
    """Checkpoints to average, and the file for the average.

    Raises:
        ConfigError: settings that contradict each other.
    """

    inputs: tuple[str, ...] = option(
        REQUIRED,
        "checkpoints, or their folder",
        metavar="FILE",
        several=True,
        files=Files(names=NUMBERED),
    )
    output: str = option(REQUIRED, "checkpoint to write", files=WRITTEN)
    num_epoch_checkpoints: int | None = option(
        None, "average the last N of the folder that were saved by epochs", metavar="N", least=1
    )
    num_update_checkpoints: int | None = option(
        None, "average the last N of the folder that were saved by updates", metavar="N", least=1
    )
    checkpoint_upper_bound: int | None = option(
        None, "take none of a later epoch (or update)", metavar="N"
    )

    def check(self) -> None:
        """Compare the settings with each other."""
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
        if given and len(self.inputs) != 1:
            raise ConfigError(
                "--num-epoch-checkpoints and --num-update-checkpoints need one folder as --inputs"
            )
