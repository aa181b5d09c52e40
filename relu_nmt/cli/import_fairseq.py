"""relu-nmt-import-fairseq: make a checkpoint of a transformer that fairseq trained."""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.recipes.conversion_settings import ImportFairseqSettings

DESCRIPTION = """\
Make a checkpoint of a transformer that fairseq trained. It translates as it did there, can be
trained further (--finetune-from-model, --config), and takes raw text if told how that was split:

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
