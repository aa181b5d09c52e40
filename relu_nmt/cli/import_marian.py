"""relu-nmt-import-marian: convert a Marian model of Hugging Face (OPUS-MT)."""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.config import REQUIRED, like, option, settings
from relu_nmt.config.files import WRITTEN, Files
from relu_nmt.config.shared import CommonOptions

MARIAN_NAMES = (
    r"model\.safetensors|pytorch_model\.bin|(tokenizer_)?config\.json|vocab\.json"
    r"|(source|target)\.spm"
)


@settings
class ImportMarianSettings:
    """All settings of :func:`relu_nmt.recipes.convert.import_marian`."""

    folder: str = option(
        REQUIRED,
        "folder with config.json, vocab.json, source.spm, target.spm and weights",
        metavar="DIR",
        positional=True,
        files=Files(names=MARIAN_NAMES),
    )
    output: str = option(REQUIRED, "checkpoint to write", files=WRITTEN)
    target_lang: str | None = like(
        CommonOptions, "target_lang", None, "target language of a model of several: fra for >>fra<<"
    )


DESCRIPTION = """\
Convert a Marian model in the format of Hugging Face's transformers, such as OPUS-MT, into a
checkpoint. It gives the same translations of raw text, and can be trained further
(--finetune-from-model, --config):

  relu-nmt-import-marian opus-mt-de-en --output model.safetensors
  relu-nmt-import-marian opus-mt-en-ROMANCE --target-lang fr --output en-fr.safetensors
"""

main = RecipeCommand(
    "relu-nmt-import-marian",
    DESCRIPTION,
    ImportMarianSettings,
    "convert.import_marian",
    user_modules=False,
)

if __name__ == "__main__":
    raise SystemExit(main())
