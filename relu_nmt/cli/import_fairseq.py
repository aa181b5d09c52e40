r"""Convert a transformer trained by fairseq into a checkpoint.

It gives the same translations, can be trained further (--finetune-from-model, --config), and takes
raw text if flags say how it was split:

  relu-nmt-import-fairseq checkpoint_best.pt --data data-bin --output model.safetensors \
      --tokenizer moses --subword subword-nmt --subword-model codes --trust-pickle
"""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.cli.preprocess import SPLIT, PreprocessSettings
from relu_nmt.config import READ, REQUIRED, WRITTEN, like, option, settings
from relu_nmt.data.data_folder import DATA_FILES
from relu_nmt.errors import ConfigError


@settings
class ImportFairseqSettings:
    """All settings of :func:`relu_nmt.recipes.convert.import_fairseq`."""

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
    subword: str = like(PreprocessSettings, "subword", "none", "method that split its words")
    subword_model: str | None = like(
        PreprocessSettings,
        "subword_model",
        None,
        "codes of subword-nmt or model of SentencePiece",
        needs=SPLIT,
    )

    def check(self) -> None:
        """Check that the user trusts the file and gives the subword model."""
        if not self.trust_pickle:
            raise ConfigError(
                f"{self.checkpoint}: checkpoints of fairseq are pickles, which may do harm when "
                "read; if you trust the author of this one, give --trust-pickle"
            )
        if self.subword in SPLIT[1:] and self.subword_model is None:
            raise ConfigError(f"--subword {self.subword}: give its --subword-model, too")


main = RecipeCommand(
    "relu-nmt-import-fairseq",
    __doc__,
    ImportFairseqSettings,
    "convert.import_fairseq",
    user_modules=False,
)

if __name__ == "__main__":
    raise SystemExit(main())
