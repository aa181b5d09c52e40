r"""Serve a model on this machine, for programs and for people.

  relu-nmt-serve checkpoints/checkpoint_best.safetensors
  curl -d '{"lines": ["Das ist ein Haus."]}' -H 'Content-Type: application/json' \
      http://127.0.0.1:8000/translate

The page at http://127.0.0.1:8000/ translates typed or dropped text, sentence beside sentence, and
shows the attention of each word. /openapi.json describes the API. /health and /metrics (Prometheus)
are for monitoring. Simultaneous requests share batches. The server has neither encryption nor
passwords: to let other people in, put a proxy with both before it.
"""

from typing import ClassVar

from relu_nmt.applications.serving import ServerOptions
from relu_nmt.cli.command import RecipeCommand
from relu_nmt.cli.generate import NEED_REFERENCES, ModelOptions
from relu_nmt.config import group, like, settings
from relu_nmt.data.documents import WindowOptions
from relu_nmt.translation.search.config import GenerationConfig


@settings
class ServeSettings(ServerOptions, WindowOptions):
    """All settings of :func:`relu_nmt.recipes.translate_text.serve`."""

    model: ModelOptions = group(
        "model", ModelOptions, path=like(ModelOptions, "path", metavar="CKPT", positional=True)
    )
    # Refuse these without advice to add --sampling, which is refused too.
    search: GenerationConfig = group(
        "search",
        GenerationConfig,
        **{
            name: like(GenerationConfig, name, needs=())
            for name in ("sampling_topk", "sampling_topp", "seed")
        },
    )
    refused: ClassVar = {
        **NEED_REFERENCES,
        **dict.fromkeys(
            (
                *("nbest", "print_alignment", "truncate_source", "max_source_length"),
                *("sampling", "sampling_topk", "sampling_topp", "seed"),
            ),
            "the server gives one translation for each line, of the whole line and the same for "
            "every client; leave it out",
        ),
    }


main = RecipeCommand("relu-nmt-serve", __doc__, ServeSettings, "translate_text.serve")

if __name__ == "__main__":
    raise SystemExit(main())
