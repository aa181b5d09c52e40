"""relu-nmt-interactive: translate raw lines from standard input or a file."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.cli.translation_options import (
    LineFormat,
    ModelOptions,
    load_translator,
    refuse_references,
)
from relu_nmt.config import add_options, from_namespace, option
from relu_nmt.decoding.config import GenerationConfig
from relu_nmt.errors import ConfigError, DataError

DESCRIPTION = """\
Translate raw text, one sentence a line:

  relu-nmt-interactive --path checkpoints/checkpoint_best.safetensors < text.de > text.en

Every line gives one line (with --nbest N: N lines); an empty line gives an empty one.
"""
READ_BYTES = 1 << 16


@dataclass(frozen=True)
class InteractiveOptions:
    """Where lines come from, and how they go out.

    Raises:
        ConfigError: a negative buffer size.
    """

    input: str = option("-", "file to translate; - is standard input", metavar="FILE")
    buffer_size: int = option(
        0,
        "translate at most N lines together; 0: all that have arrived, so that a file goes in "
        "large batches and a line typed or sent alone is answered at once",
        metavar="N",
    )
    format: str = option(
        "text",
        "text: translations only; fairseq: S-, H-, D- and P- lines with scores",
        choices=("text", "fairseq"),
    )

    def __post_init__(self) -> None:
        if self.buffer_size < 0:
            raise ConfigError(f"--buffer-size {self.buffer_size}: expected 0 or more")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = make_parser("relu-nmt-interactive", DESCRIPTION, user_modules=True)
    parser.add_argument("data", nargs="?", help="data folder; not needed, the checkpoint has all")
    add_options(parser, ModelOptions, "model")
    add_options(parser, InteractiveOptions, "input and output")
    add_options(parser, GenerationConfig, "search")
    return run_command(parser, _run, argv)


def _run(arguments: argparse.Namespace) -> None:
    model = from_namespace(ModelOptions, arguments)
    options = from_namespace(InteractiveOptions, arguments)
    config = from_namespace(GenerationConfig, arguments)
    refuse_references(config)
    with _opened(options.input) as file:
        translator = load_translator(model, arguments.data)
        formatted = LineFormat(
            translator.task, model.post_process is not None, config.print_alignment is not None
        )
        number = 0
        for lines in read_buffers(file, options.input, options.buffer_size):
            sources = [translator.encode(line) for line in lines]
            found = translator.translate_sentences(sources, config, number)
            for source, translations in zip(sources, found, strict=True):
                if options.format == "fairseq":
                    print(formatted.source(number, source.tokens))
                for translation in translations:
                    if options.format == "fairseq":
                        print("\n".join(formatted.hypothesis(number, translation)))
                    else:
                        print(translation.text)
                # A line without words has one translation, but a constant number is promised.
                if options.format == "text":
                    print("\n" * (config.nbest - len(translations)), end="")
                number += 1
            sys.stdout.flush()


def _opened(path: str) -> io.BufferedReader:
    from relu_nmt.io.text_lines import open_text

    try:
        return open(sys.stdin.fileno(), "rb", closefd=False) if path == "-" else open_text(path)
    except OSError as error:
        raise DataError(f"--input {path}: cannot read it: {error.strerror}") from error


def read_buffers(file: io.BufferedReader, origin: str, buffer_size: int) -> Iterator[list[str]]:
    """Yield lines as they arrive, at most ``buffer_size`` together (0: no limit).

    A read waits only while nothing at all has arrived.

    Args:
        file: where to read; decompressing, if need be.
        origin: its name, for messages.
        buffer_size: most lines together.

    Raises:
        DataError: the file cannot be read, or a line is not UTF-8.
    """
    from relu_nmt.io.text_lines import decode_lines, reading

    origin = "standard input" if origin == "-" else origin
    rest, number = b"", 1
    while True:
        with reading(origin):
            block = file.read1(READ_BYTES)
        rest += block
        end = rest.rfind(b"\n") + 1 if block else len(rest)
        lines = decode_lines(rest[:end], origin, number)
        rest = rest[end:]
        number += len(lines)
        size = buffer_size or max(1, len(lines))
        for first in range(0, len(lines), size):
            yield lines[first : first + size]
        if not block:
            return


if __name__ == "__main__":
    raise SystemExit(main())
