"""relu-nmt-shortlist: the target symbols that the translation of each source symbol may need."""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.recipes.shortlist_settings import ShortlistSettings

DESCRIPTION = """\
Learn the target symbols that the translation of each source symbol may need. With a shortlist a
model scores only these symbols, which takes less time:

  relu-nmt-shortlist data-bin --output shortlist.txt
  relu-nmt-generate data-bin --path model.safetensors --shortlist shortlist.txt
"""

main = RecipeCommand(
    "relu-nmt-shortlist",
    DESCRIPTION,
    ShortlistSettings,
    "shortlist",
    user_modules=False,
    computes=False,
)

if __name__ == "__main__":
    raise SystemExit(main())
