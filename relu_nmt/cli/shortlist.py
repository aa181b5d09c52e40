"""Learn the target symbols that the translation of each source symbol may need.

With a shortlist a model scores only these symbols, which takes less time:

  relu-nmt-shortlist data-bin --output shortlist.txt
  relu-nmt-generate data-bin --path model.safetensors --shortlist shortlist.txt
"""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.config import REQUIRED, WRITTEN, option, settings
from relu_nmt.config.shared import source_lang_option, subset_option, target_lang_option
from relu_nmt.data.data_folder import data_option


@settings
class ShortlistSettings:
    """All settings of :func:`relu_nmt.recipes.convert.shortlist`."""

    source_lang: str | None = source_lang_option()
    target_lang: str | None = target_lang_option()
    data: str = data_option(REQUIRED, "data folder that the model was trained on")
    output: str = option(REQUIRED, "shortlist to write", files=WRITTEN)
    gen_subset: str = subset_option(default="train", help="split to learn from")
    candidates: int = option(
        20, "number of likeliest translations of each source symbol", least=1, most=10**6
    )
    common: int = option(1000, "number of frequent symbols that every translation may use", least=0)
    pairs: int = option(100_000, "most sentence pairs to learn from, evenly spread", least=1)


main = RecipeCommand(
    "relu-nmt-shortlist",
    __doc__,
    ShortlistSettings,
    "convert.shortlist",
    user_modules=False,
    computes=False,
)

if __name__ == "__main__":
    raise SystemExit(main())
