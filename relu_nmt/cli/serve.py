r"""Serve a model on this machine, for programs and for people.

  relu-nmt-serve checkpoints/checkpoint_best.safetensors
  curl -d '{"lines": ["Das ist ein Haus."]}' -H 'Content-Type: application/json' \
      http://127.0.0.1:8000/translate
  relu-nmt-serve de-en.safetensors --further-models en-de.safetensors

The page at http://127.0.0.1:8000/ translates typed or dropped text, sentence beside sentence, and
shows the attention of each word. /openapi.json describes the API. /health and /metrics (Prometheus)
are for monitoring. Simultaneous requests share batches. The server has neither encryption nor
passwords: to let other people in, put a proxy with both before it.
"""

from relu_nmt.cli.command import Command
from relu_nmt.jobs.translate.settings import ServeSettings

main = Command("relu-nmt-serve", __doc__, ServeSettings, "relu_nmt.jobs.translate.serve:serve")

if __name__ == "__main__":
    raise SystemExit(main())
