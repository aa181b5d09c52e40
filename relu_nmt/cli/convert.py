"""Write a model in another form.

It is a smaller checkpoint, or a folder for other runtimes:

  relu-nmt-convert checkpoint_best.safetensors --output model.safetensors    # no optimizer state
  relu-nmt-convert checkpoint_best.safetensors --to ctranslate2 --output ct2-model
  relu-nmt-convert checkpoint_best.safetensors --to onnx --output onnx-model
"""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.config import READ, REQUIRED, WRITTEN, option, settings


@settings
class ConvertSettings:
    """All settings of :mod:`relu_nmt.recipes.convert`."""

    checkpoint: str = option(
        REQUIRED, "checkpoint of relu_nmt", metavar="FILE", positional=True, files=READ
    )
    to: str = option(
        "checkpoint",
        "form: a checkpoint for decoding alone, or one for other runtimes",
        choices=("checkpoint", "ctranslate2", "onnx"),
    )
    output: str = option(
        REQUIRED,
        "file to write, or the folder for ctranslate2 and onnx",
        metavar="PATH",
        files=WRITTEN,
    )


main = RecipeCommand("relu-nmt-convert", __doc__, ConvertSettings, "convert")

if __name__ == "__main__":
    raise SystemExit(main())
