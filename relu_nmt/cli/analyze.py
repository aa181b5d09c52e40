r"""Compare the attention of models on sentences or documents of a data folder.

  relu-nmt-analyze data-bin --path relu/checkpoint_best.safetensors \
      softmax/checkpoint_best.safetensors --examples 0,5 --output report.html

The page is one file and begins with answers: which model translates better, whether the context
counts, where the heads look, how many weights are zero, and which heads could go. Then it has heat
maps of some sentences, the course of training, the statistics of weights by slot, layer and head,
and the use of the feed-forward networks' memories. CSV files beside it hold the numbers. Targets
are the references, read in one pass.

  relu-nmt-analyze --log train.log other/results.json --output curves.html

draws the course of trainings alone.
"""

from relu_nmt.cli.command import Command
from relu_nmt.jobs.analyze.settings import AnalysisSettings

main = Command("relu-nmt-analyze", __doc__, AnalysisSettings, "relu_nmt.jobs.analyze.job:run")

if __name__ == "__main__":
    raise SystemExit(main())
