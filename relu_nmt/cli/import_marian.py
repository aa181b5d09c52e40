"""relu-nmt-import-marian: convert a Marian (OPUS-MT), M2M100 or NLLB model of Hugging Face."""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.config import REQUIRED, like, option, settings
from relu_nmt.config.files import WRITTEN, Files
from relu_nmt.config.shared import CommonOptions

MARIAN_NAMES = (
    r"model\.safetensors|pytorch_model\.bin|(tokenizer_)?config\.json|vocab\.json"
    r"|(source|target)\.spm|sentencepiece\.bpe\.model|special_tokens_map\.json"
)


@settings
class ImportMarianSettings:
    """All settings of :func:`relu_nmt.recipes.convert.import_marian`."""

    folder: str = option(
        REQUIRED,
        "folder of the model: config.json, weights, vocabulary and SentencePiece models",
        metavar="DIR",
        positional=True,
        files=Files(names=MARIAN_NAMES),
    )
    output: str = option(REQUIRED, "checkpoint to write", files=WRITTEN)
    source_lang: str | None = like(
        CommonOptions, "source_lang", None, "source language: fr, fra_Latn (M2M100, NLLB)"
    )
    target_lang: str | None = like(
        CommonOptions, "target_lang", None, "target language of a model of several: fra for >>fra<<"
    )


DESCRIPTION = """\
Convert a model in the format of Hugging Face's transformers into a checkpoint: Marian (OPUS-MT),
M2M100 and NLLB. It gives the same translations of raw text, and can be trained further
(--finetune-from-model, --config):

  relu-nmt-import-marian opus-mt-de-en --output model.safetensors
  relu-nmt-import-marian opus-mt-en-ROMANCE --target-lang fr --output en-fr.safetensors
  relu-nmt-import-marian nllb-200-distilled-600M -s deu_Latn -t fra_Latn --output de-fr.safetensors
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
