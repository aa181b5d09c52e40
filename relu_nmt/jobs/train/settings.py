"""Settings of relu-nmt-train."""

from functools import partial
from typing import Any

from relu_nmt.config import REQUIRED, checked_by, from_flat, group, option, settings, shared
from relu_nmt.config.stored import parse_json
from relu_nmt.data.data_folder import DATA_FILES, data_option
from relu_nmt.data.document_settings import DocumentConfig
from relu_nmt.errors import ConfigError
from relu_nmt.evaluation.metrics import tokenizer_option
from relu_nmt.modules.config import (
    AttentionRegularizerConfig,
    arch_option,
    attention_preset_option,
    probability_option,
)
from relu_nmt.training.config import TrainerConfig
from relu_nmt.translation.config import TeacherConfig, TransformerConfig, architectures
from relu_nmt.translation.search.config import GenerationConfig

LABEL_SMOOTHED = "label_smoothed_cross_entropy"
WITH_ALIGNMENT = "label_smoothed_cross_entropy_with_alignment"
# Options that share a condition.
_of_alignment = partial(option, needs=("criterion", WITH_ALIGNMENT))
_of_bleu = partial(option, needs="eval_bleu")
_of_extra_data = partial(option, needs="extra_data")
DETOKENIZER_EXAMPLE = '{"target_lang": "en"}'
DEFAULT_SEARCH = '{"beam": 5, "max_len_a": 1.2, "max_len_b": 10}'


def search_settings(text: str) -> GenerationConfig:
    """Return the search settings in a JSON object with fields of :class:`GenerationConfig`."""
    return from_flat(GenerationConfig, _json_object(text, DEFAULT_SEARCH))


def detokenizer_settings(text: str) -> dict[str, Any]:
    """Return a detokenizer's settings in a JSON object."""
    values = _json_object(text, DETOKENIZER_EXAMPLE)
    if values.keys() - {"source_lang", "target_lang"}:
        raise ValueError(f"expected JSON such as '{DETOKENIZER_EXAMPLE}'")
    return values


def _json_object(text: str, example: str) -> dict[str, Any]:
    """Return the values of a JSON object (ValueError: another text; it shows the ``example``)."""
    try:
        values = parse_json(text)
    except ValueError as error:
        raise ValueError(f"expected JSON such as '{example}' ({error})") from None
    if not isinstance(values, dict):
        raise ValueError(f"expected a JSON object such as '{example}'")
    return values


@settings
class TranslationTrainingSettings(shared.FairseqOptions):
    """All settings of the training of a translation model."""

    data: str = data_option(
        REQUIRED, "data folder; with several shards, a:b:c, each epoch reads one"
    )
    source_lang: str | None = shared.source_lang_option(heading="task and loss")
    target_lang: str | None = shared.target_lang_option()
    arch: str = arch_option("reluformer", architectures, "transformer* or reluformer*")
    attention_preset: str = attention_preset_option()
    criterion: str = option(
        LABEL_SMOOTHED,
        "loss per target token (with_alignment: plus the loss of --alignment-layer)",
        choices=(LABEL_SMOOTHED, "cross_entropy", WITH_ALIGNMENT),
    )
    label_smoothing: float = probability_option(
        0.1,
        "probability that is spread over all words",
        needs=("criterion", LABEL_SMOOTHED, WITH_ALIGNMENT),
    )
    load_alignments: bool = _of_alignment(
        False, "train on word alignments (relu-nmt-preprocess --align-suffix)"
    )
    alignment_lambda: float = _of_alignment(
        0.05, "weight of the alignment loss", above=0, metavar="W"
    )
    report_accuracy: bool = option(False, "also log the percentage of right target tokens")
    train_subset: str = option("train", "split to train on", metavar="SPLIT")
    extra_data: tuple[str, ...] = option(
        (),
        "further data folders to train on, with the same dictionaries",
        metavar="DIRS",
        files=DATA_FILES,
    )
    corpus_weights: tuple[float, ...] = _of_extra_data(
        (), "number of times that an epoch reads each folder: 2,0.5", above=0, metavar="W"
    )
    tag_extra_data: bool = _of_extra_data(False, "tag the sources of each further folder")
    truncate_source: bool = option(False, "cut sources that are longer than --max-source-positions")
    valid_subset: str = option(
        "valid",
        "splits to validate on; the first one decides which checkpoint is best",
        metavar="SPLITS",
        needs=shared.VALIDATES,
    )
    eval_bleu: bool = option(
        False,
        "translate the first validation set and report BLEU",
        needs=shared.VALIDATES,
        heading="BLEU in validation",
    )
    eval_bleu_args: str = _of_bleu(
        DEFAULT_SEARCH, "search settings, JSON", metavar="JSON", parse=checked_by(search_settings)
    )
    eval_bleu_remove_bpe: str | None = _of_bleu(
        None, "marks that join split data: '@@ ', sentencepiece...", metavar="SYMBOL", bare="@@ "
    )
    eval_bleu_detok: str | None = _of_bleu(
        None, "detokenizer for data that came tokenized", choices=("moses", "space", "none")
    )
    eval_bleu_detok_args: str = _of_bleu(
        "{}",
        "as in fairseq; the language is that of the data",
        metavar="JSON",
        parse=checked_by(detokenizer_settings),
    )
    eval_tokenized_bleu: bool = _of_bleu(False, "BLEU of tokenized words, as multi-bleu.perl")
    sacrebleu_tokenizer: str | None = tokenizer_option(
        needs=["eval_bleu", ("eval_tokenized_bleu", False)]
    )
    eval_bleu_print_samples: bool = _of_bleu(False, "print some translations at each validation")
    model: TransformerConfig = group("model", TransformerConfig)
    regularizer: AttentionRegularizerConfig = group(
        "attention regularizer", AttentionRegularizerConfig
    )
    teacher: TeacherConfig = group("teacher", TeacherConfig)
    batching: shared.BatchingConfig = group("batches", shared.BatchingConfig)
    documents: DocumentConfig = group("documents", DocumentConfig)
    trainer: TrainerConfig = group("updates, limits and processes", TrainerConfig)

    def check(self) -> None:
        """Compare the settings with each other."""
        if self.criterion == WITH_ALIGNMENT and not self.load_alignments:
            raise ConfigError(
                f"--criterion {WITH_ALIGNMENT}: give --load-alignments too, and data made with "
                "relu-nmt-preprocess --align-suffix"
            )
        corpora = 1 + len(self.extra_data)
        if self.corpus_weights and len(self.corpus_weights) != corpora:
            raise ConfigError(
                f"--corpus-weights: {len(self.corpus_weights)} numbers, but there are {corpora} "
                "data folders; give one for each"
            )
        self.documents.check_fits(self.batching.max_tokens)
        if self.batching.update_tokens and self.trainer.update_freq != (1,):
            raise ConfigError("--update-tokens sets --update-freq; leave one of the two out")

    @property
    def smoothing(self) -> float:
        """The label smoothing of the chosen criterion."""
        return 0.0 if self.criterion == "cross_entropy" else self.label_smoothing
