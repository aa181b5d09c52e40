r"""Convert a transformer trained by fairseq into a checkpoint.

The checkpoint gives the same translations and can be trained further (--finetune-from-model,
--config). It takes raw text if flags say how the text was split:

  relu-nmt-import-fairseq checkpoint_best.pt --data data-bin --output model.safetensors \
      --tokenizer moses --subword subword-nmt --subword-model codes --trust-pickle
"""

from relu_nmt.cli.command import Command
from relu_nmt.jobs.convert.settings import ImportFairseqSettings

main = Command(
    "relu-nmt-import-fairseq",
    __doc__,
    ImportFairseqSettings,
    "relu_nmt.jobs.convert.job:import_fairseq",
    user_modules=False,
)

if __name__ == "__main__":
    raise SystemExit(main())
