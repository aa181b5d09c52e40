"""Average the weights of checkpoints.

The average often translates better than the last checkpoint alone:

  relu-nmt-average --inputs checkpoints --num-epoch-checkpoints 5 --output average.safetensors
"""

from relu_nmt.cli.command import Command
from relu_nmt.jobs.convert.settings import AverageSettings

main = Command(
    "relu-nmt-average",
    __doc__,
    AverageSettings,
    "relu_nmt.jobs.convert.job:average",
    user_modules=False,
    computes=False,
)

if __name__ == "__main__":
    raise SystemExit(main())
