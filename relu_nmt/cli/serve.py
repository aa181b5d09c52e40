"""relu-nmt-serve: a model behind HTTP, with a page to try it."""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.recipes.serve_settings import ServeSettings

DESCRIPTION = """\
Serve a model on this machine, for programs and for people:

  relu-nmt-serve checkpoints/checkpoint_best.safetensors
  curl -d '{"lines": ["Das ist ein Haus."]}' -H 'Content-Type: application/json' \\
      http://127.0.0.1:8000/translate

The page at http://127.0.0.1:8000/ translates what is typed or dropped there, sentence beside
sentence, and shows what each word attends to. /openapi.json describes the API; /health and
/metrics (Prometheus) are for those who watch it. Requests at the same time share batches. There is
no encryption and no password: to let others in, put a proxy that has them before it.
"""

main = RecipeCommand("relu-nmt-serve", DESCRIPTION, ServeSettings, "serve")

if __name__ == "__main__":
    raise SystemExit(main())
