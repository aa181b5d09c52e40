"""Settings of the commands that convert models, and of relu-nmt-shortlist."""

from relu_nmt.config import READ, REQUIRED, WRITTEN, Files, like, option, settings
from relu_nmt.config.shared import source_lang_option, subset_option, target_lang_option
from relu_nmt.data.data_folder import DATA_FILES, data_option
from relu_nmt.errors import ConfigError
from relu_nmt.jobs.preprocess.settings import SPLIT, PreprocessSettings


@settings
class ConvertSettings:
    """All settings of :mod:`relu_nmt.jobs.convert.job`."""

    checkpoint: str = option(
        REQUIRED, "checkpoint of relu_nmt", metavar="FILE", positional=True, files=READ
    )
    to: str = option(
        "checkpoint",
        "form: a checkpoint for decoding alone, or a folder for another runtime",
        choices=("checkpoint", "ctranslate2", "onnx"),
    )
    output: str = option(
        REQUIRED,
        "file to write, or the folder for ctranslate2 and onnx",
        metavar="PATH",
        files=WRITTEN,
    )


NUMBERED = r"checkpoint(\d+|_\d+_\d+)\.safetensors"
"""Names of the checkpoints that are saved by epochs and by updates."""


@settings
class AverageSettings:
    """Checkpoints to average, and the file for the average."""

    inputs: tuple[str, ...] = option(
        REQUIRED, "checkpoints, or their folder", several=True, files=Files(names=NUMBERED)
    )
    output: str = option(REQUIRED, "checkpoint to write", files=WRITTEN)
    num_epoch_checkpoints: int | None = option(
        None,
        "average the last N checkpoints of the folder saved by epochs",
        least=1,
        needs=("num_update_checkpoints", None),
    )
    num_update_checkpoints: int | None = option(
        None, "average the last N checkpoints of the folder saved by updates", least=1
    )
    checkpoint_upper_bound: int | None = option(None, "take none after this epoch (or update)")

    def check(self) -> None:
        """Compare the settings with each other."""
        flags = "--num-epoch-checkpoints and --num-update-checkpoints"
        has_count = bool(self.num_epoch_checkpoints or self.num_update_checkpoints)
        if not has_count and self.checkpoint_upper_bound is not None:
            raise ConfigError(f"--checkpoint-upper-bound needs {flags.replace('and', 'or')}")
        if has_count and len(self.inputs) != 1:
            raise ConfigError(f"{flags} need one folder as --inputs")


@settings
class ShortlistSettings:
    """All settings of :func:`relu_nmt.jobs.convert.job.shortlist`."""

    source_lang: str | None = source_lang_option()
    target_lang: str | None = target_lang_option()
    data: str = data_option(REQUIRED, "data folder that the model was trained on")
    output: str = option(REQUIRED, "shortlist to write", files=WRITTEN)
    gen_subset: str = subset_option(default="train", help="split to learn from")
    candidates: int = option(
        20, "number of likeliest translations of each source symbol", least=1, most=10**6
    )
    common: int = option(1000, "number of frequent symbols that every translation may use", least=0)
    pairs: int = option(100_000, "most sentence pairs to learn from, evenly spread", least=1)


@settings
class ImportFairseqSettings:
    """All settings of :func:`relu_nmt.jobs.convert.job.import_fairseq`."""

    checkpoint: str = option(
        REQUIRED, "checkpoint of fairseq", metavar="MODEL.pt", positional=True, files=READ
    )
    data: str = option(
        REQUIRED,
        "data folder of the model's training, or its dictionaries alone",
        metavar="DIR",
        files=DATA_FILES,
    )
    output: str = option(REQUIRED, "checkpoint to write", files=WRITTEN)
    trust_pickle: bool = option(
        False, "read the file, a pickle, which may do harm if its author is malicious"
    )
    tokenizer: str = like(PreprocessSettings, "tokenizer", "none", "tokenizer of the training text")
    lowercase: bool = like(PreprocessSettings, "lowercase", False, "the text was lower-cased")
    subword: str = like(PreprocessSettings, "subword", "none", "method that split the words")
    subword_model: str | None = like(
        PreprocessSettings,
        "subword_model",
        None,
        "codes of subword-nmt or model of SentencePiece",
    )

    def check(self) -> None:
        """Check that the user trusts the file and gives the subword model."""
        if not self.trust_pickle:
            raise ConfigError(
                f"{self.checkpoint}: checkpoints of fairseq are pickles, which may do harm when "
                "read; if you trust the author of this one, give --trust-pickle"
            )
        if self.subword in SPLIT[1:] and self.subword_model is None:
            raise ConfigError(f"--subword {self.subword}: give --subword-model, too")


MARIAN_NAMES = (
    r"model\.safetensors|pytorch_model\.bin|(tokenizer_)?config\.json|vocab\.json"
    r"|(source|target)\.spm|sentencepiece\.bpe\.model|special_tokens_map\.json"
)


@settings
class ImportMarianSettings:
    """All settings of :func:`relu_nmt.jobs.convert.job.import_marian`."""

    folder: str = option(
        REQUIRED,
        "folder of the model: config.json, weights, vocabulary and SentencePiece models",
        metavar="DIR",
        positional=True,
        files=Files(names=MARIAN_NAMES),
    )
    output: str = option(REQUIRED, "checkpoint to write", files=WRITTEN)
    source_lang: str | None = source_lang_option(
        help="source language: fr, fra_Latn (M2M100, NLLB)"
    )
    target_lang: str | None = target_lang_option(
        help="target language of a multilingual model: fra for >>fra<<"
    )
