"""Write a model in another form.

The result is a smaller checkpoint, or a folder for other runtimes:

  relu-nmt-convert checkpoint_best.safetensors --output model.safetensors    # no optimizer state
  relu-nmt-convert checkpoint_best.safetensors --to ctranslate2 --output ct2-model
  relu-nmt-convert checkpoint_best.safetensors --to onnx --output onnx-model
"""

from relu_nmt.cli.command import Command
from relu_nmt.jobs.convert.settings import ConvertSettings

main = Command("relu-nmt-convert", __doc__, ConvertSettings, "relu_nmt.jobs.convert.job:run")

if __name__ == "__main__":
    raise SystemExit(main())
