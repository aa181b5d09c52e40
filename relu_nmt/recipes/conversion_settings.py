"""Settings of the recipes that read and write models of other toolkits."""

from relu_nmt.config import REQUIRED, like, option, settings
from relu_nmt.config.files import READ, WRITTEN, Files
from relu_nmt.config.shared import CommonOptions
from relu_nmt.data.data_folder import DATA_FILES
from relu_nmt.errors import ConfigError
from relu_nmt.tokenization.preprocess_config import PreprocessConfig

MARIAN_NAMES = (
    r"model\.safetensors|pytorch_model\.bin|(tokenizer_)?config\.json|vocab\.json"
    r"|(source|target)\.spm"
)


@settings
class ImportFairseqSettings:
    """All settings of :mod:`relu_nmt.recipes.import_fairseq`.

    Raises:
        ConfigError: settings that contradict each other, or no consent.
    """

    checkpoint: str = option(
        REQUIRED, "checkpoint of fairseq", metavar="MODEL.pt", positional=True, files=READ
    )
    data: str = option(
        REQUIRED,
        "data folder that the model was trained on; its dictionaries are enough",
        metavar="DIR",
        files=DATA_FILES,
    )
    output: str = option(REQUIRED, "checkpoint to write", files=WRITTEN)
    trust_pickle: bool = option(
        False,
        "read the file, which is a pickle: nothing that it names is called, but a file made to "
        "do harm may yet find a way",
    )
    tokenizer: str = like(
        PreprocessConfig,
        "tokenizer",
        "none",
        "how the training text was tokenised, so that the model takes raw text",
    )
    lowercase: bool = like(PreprocessConfig, "lowercase", False, "it was lower-cased")
    subword: str = like(PreprocessConfig, "subword", "none", "how its words were split")
    subword_model: str | None = like(
        PreprocessConfig,
        "subword_model",
        None,
        "codes of subword-nmt, or a model of SentencePiece, which split them",
        needs=("subword", "subword-nmt", "sentencepiece"),
    )

    def check(self) -> None:
        """Ask for consent, and for the model that splits words."""
        if not self.trust_pickle:
            raise ConfigError(
                f"{self.checkpoint}: checkpoints of fairseq are pickles, which may do harm when "
                "read; if you trust those who made it, give --trust-pickle"
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
        "the language to translate into, of a model of several: fra, if its vocabulary has >>fra<<",
    )


@settings
class ConvertSettings:
    """All settings of :mod:`relu_nmt.recipes.convert`."""

    checkpoint: str = option(
        REQUIRED, "checkpoint of relu_nmt", metavar="FILE", positional=True, files=READ
    )
    to: str = option(
        "checkpoint",
        "checkpoint: one for decoding alone, without what the optimiser needs, a third as large; "
        "ctranslate2: for its fast translation of softmax models; onnx: for any runtime, of more "
        "models",
        choices=("checkpoint", "ctranslate2", "onnx"),
    )
    output: str = option(
        REQUIRED,
        "file to write, or the folder for ctranslate2 and onnx",
        metavar="PATH",
        files=WRITTEN,
    )
