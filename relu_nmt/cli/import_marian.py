"""Convert a Marian (OPUS-MT), M2M100 or NLLB model of Hugging Face into a checkpoint.

The checkpoint gives the same translations of raw text, and can be trained further
(--finetune-from-model, --config):

  relu-nmt-import-marian opus-mt-de-en --output model.safetensors
  relu-nmt-import-marian opus-mt-en-ROMANCE --target-lang fr --output en-fr.safetensors
  relu-nmt-import-marian nllb-200-distilled-600M -s deu_Latn -t fra_Latn --output de-fr.safetensors
"""

from relu_nmt.cli.command import Command
from relu_nmt.jobs.convert.settings import ImportMarianSettings

main = Command(
    "relu-nmt-import-marian",
    __doc__,
    ImportMarianSettings,
    "relu_nmt.jobs.convert.job:import_marian",
    user_modules=False,
)

if __name__ == "__main__":
    raise SystemExit(main())
