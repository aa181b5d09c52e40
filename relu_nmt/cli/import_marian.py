"""relu-nmt-import-marian: convert a Marian model of Hugging Face (OPUS-MT)."""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.recipes.conversion_settings import ImportMarianSettings

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
    "import_marian",
    user_modules=False,
)

if __name__ == "__main__":
    raise SystemExit(main())
