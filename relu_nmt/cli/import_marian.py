"""Convert a Marian (OPUS-MT), M2M100 or NLLB model of Hugging Face into a checkpoint.

It gives the same translations of raw text, and can be trained further (--finetune-from-model,
--config):

  relu-nmt-import-marian opus-mt-de-en --output model.safetensors
  relu-nmt-import-marian opus-mt-en-ROMANCE --target-lang fr --output en-fr.safetensors
  relu-nmt-import-marian nllb-200-distilled-600M -s deu_Latn -t fra_Latn --output de-fr.safetensors
"""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.config import REQUIRED, WRITTEN, Files, option, settings
from relu_nmt.config.shared import source_lang_option, target_lang_option

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
    source_lang: str | None = source_lang_option(
        help="source language: fr, fra_Latn (M2M100, NLLB)"
    )
    target_lang: str | None = target_lang_option(
        help="target language of a model of several: fra for >>fra<<"
    )


main = RecipeCommand(
    "relu-nmt-import-marian",
    __doc__,
    ImportMarianSettings,
    "convert.import_marian",
    user_modules=False,
)

if __name__ == "__main__":
    raise SystemExit(main())
