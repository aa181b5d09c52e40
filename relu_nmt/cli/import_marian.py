"""relu-nmt-import-marian: make a checkpoint of a Marian model of Hugging Face (OPUS-MT)."""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.recipes.conversion_settings import ImportMarianSettings

DESCRIPTION = """\
Make a checkpoint of a Marian model as Hugging Face's transformers keep it, such as OPUS-MT. It
translates raw text as it did there, and can be trained further (--finetune-from-model, --config):

  relu-nmt-import-marian opus-mt-de-en --output model.safetensors
  relu-nmt-import-marian opus-mt-en-ROMANCE --target-lang fr --output en-fr.safetensors
"""

main = RecipeCommand(
    "relu-nmt-import-marian",
    DESCRIPTION,
    ImportMarianSettings,
    "import_marian",
    user_modules=False,
)

if __name__ == "__main__":
    raise SystemExit(main())
