"""Join the documents of a corpus to longer ones, so many in a row.

    python examples/document_sweep/join_documents.py corpus/ long/ 16

reads train, valid and test, each .de and .en, with an empty line between documents, and writes the
same files to the other folder.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.io.safe_write import write_text


def join_documents(text: str, count: int) -> str:
    """Return a text in which each document holds ``count`` documents of the given one.

    Empty lines separate documents. The last one may hold fewer.
    """
    documents = text.strip("\n").split("\n\n")
    joined = []
    for start in range(0, len(documents), count):
        joined.append("\n".join(documents[start : start + count]))
    return "\n\n".join(joined) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""

    def run(arguments: argparse.Namespace) -> None:
        if arguments.count < 1:
            raise ConfigError(f"N: got {arguments.count}; a document holds at least 1")
        arguments.out.mkdir(parents=True, exist_ok=True)
        for split in ("train", "valid", "test"):
            for language in ("de", "en"):
                source = arguments.corpus / f"{split}.{language}"
                try:
                    text = source.read_text("utf-8")
                except (OSError, UnicodeDecodeError) as error:
                    raise DataError(f"{source}: cannot be read: {error}") from error
                write_text(arguments.out / source.name, join_documents(text, arguments.count))

    parser = make_parser("join_documents", __doc__)
    parser.add_argument("corpus", type=Path, metavar="CORPUS", help="folder to read")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write")
    parser.add_argument("count", type=int, metavar="N", help="documents in each")
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
