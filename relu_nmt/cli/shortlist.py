"""Learn the target symbols that the translation of each source symbol may need.

With a shortlist a model scores only these symbols, which takes less time:

  relu-nmt-shortlist data-bin --output shortlist.txt
  relu-nmt-generate data-bin --path model.safetensors --shortlist shortlist.txt
"""

from relu_nmt.cli.command import Command
from relu_nmt.jobs.convert.settings import ShortlistSettings

main = Command(
    "relu-nmt-shortlist",
    __doc__,
    ShortlistSettings,
    "relu_nmt.jobs.convert.job:shortlist",
    user_modules=False,
    computes=False,
)

if __name__ == "__main__":
    raise SystemExit(main())
