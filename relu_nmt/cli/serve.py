"""relu-nmt-serve: a model behind HTTP, with a page to try it."""

from typing import ClassVar

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.cli.translation_settings import NEED_REFERENCES, ModelOptions, WindowOptions
from relu_nmt.config import group, like, option, settings
from relu_nmt.translation.search.config import GenerationConfig

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@settings
class ServeSettings(WindowOptions):
    """All settings of :mod:`relu_nmt.recipes.serve`."""

    host: str = option(LOOPBACK[0], "address to listen at; the default serves this machine only")
    port: int = option(
        8000, "port to listen at; 0: any that is free", least=0, most=65535, metavar="PORT"
    )
    allowed_hosts: tuple[str, ...] = option(
        (), "host names that browsers may use (default: those of this machine)", metavar="NAMES"
    )
    max_request_bytes: int = option(
        131_072, "longest request, in bytes; longer ones get status 413", least=1, metavar="BYTES"
    )
    max_request_tokens: int = option(
        4096, "most tokens of a request, source and forced; else status 413", least=2
    )
    max_waiting: int = option(
        64, "most requests that wait; further ones get status 429", least=1, most=1024
    )
    request_seconds: float = option(
        60.0, "time limit of a request, in seconds; then status 504", above=0, metavar="SECONDS"
    )
    batch_wait: float = option(
        0.005,
        "seconds that a batch below --max-tokens waits for more requests",
        least=0,
        most=1,
        metavar="SECONDS",
    )
    model: ModelOptions = group(
        "model", ModelOptions, path=like(ModelOptions, "path", metavar="CKPT", positional=True)
    )
    search: GenerationConfig = group("search", GenerationConfig)
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


DESCRIPTION = """\
Serve a model on this machine, for programs and for people:

  relu-nmt-serve checkpoints/checkpoint_best.safetensors
  curl -d '{"lines": ["Das ist ein Haus."]}' -H 'Content-Type: application/json' \\
      http://127.0.0.1:8000/translate

The page at http://127.0.0.1:8000/ translates typed or dropped text, sentence beside sentence, and
shows the attention of each word. /openapi.json describes the API; /health and /metrics (Prometheus)
are for monitoring. Simultaneous requests share batches. The server has neither encryption nor
passwords: to let others in, put a proxy with both before it.
"""

main = RecipeCommand("relu-nmt-serve", DESCRIPTION, ServeSettings, "serve")

if __name__ == "__main__":
    raise SystemExit(main())
