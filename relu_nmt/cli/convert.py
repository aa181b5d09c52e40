"""relu-nmt-convert: write a model for other programs, or for decoding alone."""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.recipes.conversion_settings import ConvertSettings

DESCRIPTION = """\
Write a model in another form:

  relu-nmt-convert checkpoint_best.safetensors --output model.safetensors    # no optimiser state
  relu-nmt-convert checkpoint_best.safetensors --to ctranslate2 --output ct2-model
  relu-nmt-convert checkpoint_best.safetensors --to onnx --output onnx-model
"""

main = RecipeCommand("relu-nmt-convert", DESCRIPTION, ConvertSettings, "convert")

if __name__ == "__main__":
    raise SystemExit(main())
