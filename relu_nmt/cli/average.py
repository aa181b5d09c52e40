"""relu-nmt-average: the mean of the weights of several checkpoints."""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.recipes.training_settings import AverageSettings

DESCRIPTION = """\
Average the weights of checkpoints, which often translates better than the last one alone:

  relu-nmt-average --inputs checkpoints --num-epoch-checkpoints 5 --output average.safetensors
"""

main = RecipeCommand(
    "relu-nmt-average", DESCRIPTION, AverageSettings, "average", user_modules=False, computes=False
)

if __name__ == "__main__":
    raise SystemExit(main())
