"""relu-nmt-import-fairseq: convert a transformer trained by fairseq."""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.recipes.conversion_settings import ImportFairseqSettings

DESCRIPTION = """\
Convert a transformer trained by fairseq into a checkpoint. It gives the same translations, can be
trained further (--finetune-from-model, --config), and takes raw text if flags say how it was split:

  relu-nmt-import-fairseq checkpoint_best.pt --data data-bin --output model.safetensors \\
      --tokenizer moses --subword subword-nmt --subword-model codes --trust-pickle
"""

main = RecipeCommand(
    "relu-nmt-import-fairseq",
    DESCRIPTION,
    ImportFairseqSettings,
    "import_fairseq",
    user_modules=False,
)

if __name__ == "__main__":
    raise SystemExit(main())
