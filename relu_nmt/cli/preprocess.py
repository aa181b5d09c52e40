"""relu-nmt-preprocess: from text files to a data folder."""

from collections.abc import Sequence

from relu_nmt.cli.command import make_parser, run_recipe
from relu_nmt.corpus.preprocess_config import PreprocessConfig

DESCRIPTION = """\
Make a data folder: dictionaries, binarised text, and everything needed to start from raw text
and to end in raw text. The text is either prepared (tokens between spaces, as fairseq-preprocess
wants it; the folder is then the same as fairseq's) or raw:

  relu-nmt-preprocess -s de -t en --trainpref corpus/train --validpref corpus/valid \\
      --testpref corpus/test --destdir data-bin/corpus --joined-dictionary \\
      --tokenizer moses --lowercase --subword subword-nmt --subword-size 8000

A run that was interrupted goes on where it was when it is started again.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = make_parser("relu-nmt-preprocess", DESCRIPTION, user_modules=True)
    return run_recipe(parser, PreprocessConfig, _run, argv)


def _run(settings: PreprocessConfig) -> None:
    from relu_nmt.recipes import preprocess

    preprocess.run(settings)


if __name__ == "__main__":
    raise SystemExit(main())
