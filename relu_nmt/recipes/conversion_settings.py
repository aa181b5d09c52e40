"""Settings of the recipes that read or write models of other toolkits."""

from relu_nmt.config import REQUIRED, like, option, settings
from relu_nmt.config.files import READ, WRITTEN, Files
from relu_nmt.config.shared import CommonOptions
from relu_nmt.data.data_folder import DATA_FILES
from relu_nmt.errors import ConfigError
from relu_nmt.recipes.preprocess_settings import PreprocessSettings

MARIAN_NAMES = (
    r"model\.safetensors|pytorch_model\.bin|(tokenizer_)?config\.json|vocab\.json"
    r"|(source|target)\.spm"
)


@settings
class ImportFairseqSettings:
    """All settings of :mod:`relu_nmt.recipes.import_fairseq`."""

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
        False,
        "read the file, a pickle: the reader calls no function in it, but a malicious file may "
        "still do harm",
    )
    tokenizer: str = like(
        PreprocessSettings,
        "tokenizer",
        "none",
        "tokeniser of the training text, so that the model takes raw text",
    )
    lowercase: bool = like(PreprocessSettings, "lowercase", False, "the text was lower-cased")
    subword: str = like(PreprocessSettings, "subword", "none", "method that split its words")
    subword_model: str | None = like(
        PreprocessSettings,
        "subword_model",
        None,
        "codes of subword-nmt or model of SentencePiece that split the words",
        needs=("subword", "subword-nmt", "sentencepiece"),
    )

    def check(self) -> None:
        """Check that the user trusts the file and gives the subword model.

        Raises:
            ConfigError: ``--trust-pickle`` or ``--subword-model`` is missing.
        """
        if not self.trust_pickle:
            raise ConfigError(
                f"{self.checkpoint}: checkpoints of fairseq are pickles, which may do harm when "
                "read; if you trust the author of this one, give --trust-pickle"
            )
        if self.subword in ("subword-nmt", "sentencepiece") and self.subword_model is None:
            raise ConfigError(f"--subword {self.subword}: give its --subword-model, too")


@settings
class ImportMarianSettings:
    """All settings of :mod:`relu_nmt.recipes.import_marian`."""

    folder: str = option(
        REQUIRED,
        "folder with config.json, vocab.json, source.spm, target.spm, and model.safetensors or "
        "pytorch_model.bin",
        metavar="DIR",
        positional=True,
        files=Files(names=MARIAN_NAMES),
    )
    output: str = option(REQUIRED, "checkpoint to write", files=WRITTEN)
    target_lang: str | None = like(
        CommonOptions,
        "target_lang",
        None,
        "target language, for a model of several: fra if the vocabulary has >>fra<<",
    )


@settings
class ConvertSettings:
    """All settings of :mod:`relu_nmt.recipes.convert`."""

    checkpoint: str = option(
        REQUIRED, "checkpoint of relu_nmt", metavar="FILE", positional=True, files=READ
    )
    to: str = option(
        "checkpoint",
        "checkpoint: for decoding alone, without the optimiser's state, a third of the size; "
        "ctranslate2: fast translation, for softmax attention; onnx: for many runtimes, and for "
        "more models",
        choices=("checkpoint", "ctranslate2", "onnx"),
    )
    output: str = option(
        REQUIRED,
        "file to write, or the folder for ctranslate2 and onnx",
        metavar="PATH",
        files=WRITTEN,
    )
