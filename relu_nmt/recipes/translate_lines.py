"""Translate raw lines from standard input or a file, as they arrive."""

import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from relu_nmt.decoding.config import GenerationConfig
from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import decode_lines, open_text, reading
from relu_nmt.recipes.translation import LineFormat, limit_note, load_translator
from relu_nmt.recipes.translation_settings import TranslateLinesSettings as Settings

READ_BYTES = 1 << 16
MAX_NAMED_LINES = 10


@dataclass
class LinesTranslation:
    """The translation of each line.

    Args:
        texts: the best translation of each.
        at_limit: numbers of the lines, from 1, whose translation reached the longest output and
            may be cut off.
    """

    texts: list[str] = field(default_factory=list)
    at_limit: list[int] = field(default_factory=list)

    def limit_note(self, config: GenerationConfig) -> str:
        """Return the line that tells of outputs that were cut off; empty if none was."""
        if not self.at_limit:
            return ""
        named = ", ".join(map(str, self.at_limit[:MAX_NAMED_LINES]))
        others = len(self.at_limit) - MAX_NAMED_LINES
        named += f" and {others:,} more" if others > 0 else ""
        lines = "line" if len(self.at_limit) == 1 else "lines"
        return f"{limit_note(len(self.at_limit), config)} ({lines} {named})"


def run(settings: Settings, *, progress: bool = True) -> LinesTranslation:
    """Translate lines, and print each translation as soon as it is found.

    Args:
        settings: model, input and search.
        progress: print on standard output, and on standard error which lines may be cut off.

    Raises:
        ConfigError: settings that do not fit the model.
        CheckpointError: a checkpoint is missing or damaged.
        DataError: the input cannot be read, is not UTF-8 or too long for the model.
    """
    options, config, found = settings.lines, settings.search, LinesTranslation()
    with _opened(options.input) as file:
        translator = load_translator(settings.model, settings.data)
        formatted = LineFormat(
            translator.task,
            settings.model.post_process is not None,
            config.print_alignment is not None,
        )
        try:
            for lines in read_buffers(file, options.input, options.buffer_size):
                sources = [translator.encode(line) for line in lines]
                first = len(found.texts)
                translated = translator.translate_sentences(sources, config, first)
                for source, translations in zip(sources, translated, strict=True):
                    number = len(found.texts)
                    found.texts.append(translations[0].text)
                    if translations[0].reached_limit:
                        found.at_limit.append(number + 1)
                    if not progress:
                        continue
                    if options.format == "fairseq":
                        print(formatted.source(number, source.tokens))
                        for translation in translations:
                            print("\n".join(formatted.hypothesis(number, translation)))
                        continue
                    texts = [translation.text for translation in translations]
                    # A line without words has one translation, but a constant number is promised.
                    print("\n".join(texts + [""] * (config.nbest - len(texts))))
                if progress:
                    sys.stdout.flush()
        finally:  # also where someone who types lines ends it with Ctrl-C
            if progress and found.at_limit:
                print(found.limit_note(config), file=sys.stderr)
    return found


def _opened(path: str) -> io.BufferedReader:
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
