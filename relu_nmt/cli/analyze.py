"""relu-nmt-analyze: a page on what trained models attend to, and on how they were trained."""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.recipes.analysis_settings import AnalysisSettings

DESCRIPTION = """\
Show what models attend to, side by side, on sentences or documents of a data folder:

  relu-nmt-analyze data-bin --path relu/checkpoint_best.safetensors \\
      softmax/checkpoint_best.safetensors --examples 0,5 --output report.html

The page needs nothing but itself: entropies by every definition, row sums, zeros, null rows, sums
of the largest weights, distances, and what the weight lies on, by slot, layer and head; how the
feed-forward networks use their memories; heat maps of some sentences; and the course of the
trainings. The numbers stand in CSV files beside it. Targets are the references, read in one pass.

  relu-nmt-analyze --log train.log other/results.json --output curves.html

draws the course of trainings alone.
"""

main = RecipeCommand("relu-nmt-analyze", DESCRIPTION, AnalysisSettings, "analyze")

if __name__ == "__main__":
    raise SystemExit(main())
