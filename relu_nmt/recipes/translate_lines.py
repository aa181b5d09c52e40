"""Translate raw lines from standard input or a file, as they arrive."""

import io
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from relu_nmt.attention.spec import AttentionPlace
from relu_nmt.data.groups import SINGLE_SENTENCES
from relu_nmt.errors import DataError
from relu_nmt.io.process import standard_input
from relu_nmt.io.progress_bar import hidden_progress, progress_bar
from relu_nmt.io.text_lines import decode_lines, open_text, read_lines, reading
from relu_nmt.recipes.output_files import check_writable
from relu_nmt.recipes.translation import (
    LineFormat,
    limit_note,
    load_translator,
    named_lines,
    source_limit,
    tab_note,
    too_long_note,
    without_terms,
)
from relu_nmt.recipes.translation_settings import TranslateLinesSettings as Settings
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.translations import (
    SourceLimit,
    SourceSentence,
    TranslatedLines,
    Translation,
)
from relu_nmt.translator import Translator

READ_BYTES = 1 << 16
MOST_BYTES = 1 << 28
"""Of one line. What has more is no text, such as a device that never ends."""
LAST_CROSS = AttentionPlace("cross", -1)


def run(settings: Settings, *, progress: bool = True) -> TranslatedLines:
    """Translate lines, print each translation as soon as it is found, and return the best ones.

    Args:
        settings: model, input and search.
        progress: print on standard output, and on standard error which lines may be cut off.

    Raises:
        ConfigError: settings that do not fit the model.
        CheckpointError: a checkpoint is missing or damaged.
        DataError: the input cannot be read, or is not UTF-8, or pictures would replace others.
    """
    options, config = settings.lines, settings.search
    texts: list[str] = []
    at_limit: list[int] = []
    too_long: list[int] = []
    prefixes = None if options.prefixes is None else read_lines(options.prefixes)
    banned = [] if options.banned_terms is None else read_lines(options.banned_terms)
    pictures: list[Path] = []
    if options.attention_pictures is not None:
        _check_pictures(Path(options.attention_pictures))
    with _opened(options.input) as file:
        translator = load_translator(settings.model, settings.data)
        limit = source_limit(settings.model, translator)
        formatted = LineFormat(
            translator.task,
            settings.model.post_process is not None,
            config.print_alignment is not None,
        )
        try:
            for line, source, translations in _translated(
                file, settings, translator, limit, prefixes, banned, progress
            ):
                number = len(texts)
                if limit.refuses(source):
                    too_long.append(number)
                    if not limit.truncate:
                        translations = [untranslated(own) for own in translations]
                elif options.attention_pictures is not None and source.tokens:
                    tokens = translations[0].hypothesis.tokens
                    pictures.append(Path(options.attention_pictures, f"{number}.svg"))
                    translator.attention_at(LAST_CROSS, source, tokens).save(pictures[-1])
                texts.append(translations[0].text)
                if translations[0].reached_limit:
                    at_limit.append(number)
                if not progress:
                    continue
                if number == 0:
                    _tell_length(translator.max_doc_tokens)
                shown = [texts[-1]]
                if options.format == "json":
                    shown = [formatted.json(number, line, source, translations)]
                elif options.format == "fairseq":
                    shown = formatted.of_line(number, source, translations)
                elif config.nbest > 1:
                    shown = formatted.nbest(number, translations, config.nbest)
                print("\n".join(shown))
        finally:  # also where someone who types lines ends it with Ctrl-C
            if progress and pictures:
                several = f" to {pictures[-1]}" if len(pictures) > 1 else ""
                print(f"attention pictures: {pictures[0]}{several}", file=sys.stderr)
            if progress:
                _tell_ends(too_long_note(too_long, limit), at_limit, config)
    return TranslatedLines(texts, at_limit, too_long)


def _tell_ends(too_long: str, at_limit: list[int], config: GenerationConfig) -> None:
    """Tell which lines are too long, and which translations may be cut off."""
    if too_long:
        print(too_long, file=sys.stderr)
    if at_limit:
        note = limit_note(len(at_limit), config)
        print(f"{note} ({named_lines(at_limit)})", file=sys.stderr)


def _check_pictures(folder: Path) -> None:
    """See that pictures can be written, and that none of an earlier run is in their place.

    Raises:
        DataError: one is, or the folder cannot be made.
    """
    earlier = sorted(path.name for path in folder.glob("*.svg") if path.stem.isdecimal())
    if earlier:
        raise DataError(
            f"--attention-pictures {folder}: {earlier[0]} is there already; give another folder"
        )
    check_writable("--attention-pictures", f"{folder}/0.svg")


def _tell_length(trained: int) -> None:
    """Tell that lines are not joined, to a model that was trained on more."""
    if trained != SINGLE_SENTENCES:
        print(
            "NOTE: each line is translated on its own, but the model was trained on up to "
            f"{trained} tokens; relu-nmt-translate-document joins the lines of a document",
            file=sys.stderr,
        )


def _translated(
    file: io.BufferedReader,
    settings: Settings,
    translator: Translator,
    limit: SourceLimit,
    prefixes: list[str] | None,
    banned: list[str],
    progress: bool,
) -> Iterator[tuple[str, SourceSentence, list[Translation]]]:
    """Yield each line, the same as the model reads it, and its translations, as lines arrive.

    Raises:
        DataError: there are not as many prefixes as lines, or one cannot be forced.
    """
    options, done, never = settings.lines, 0, translator.sources.banned_ids(banned)
    has_tabs = False
    for lines in read_buffers(file, options.input, options.buffer_size):
        own = _prefixes_of(prefixes, done, len(lines), options.prefixes)
        if progress and not has_tabs and (note := tab_note(lines, options.constraints, done)):
            has_tabs = True  # told once
            print(note, file=sys.stderr)
        lines, terms = without_terms(lines, options.constraints)
        is_ordered = options.constraints != "unordered"
        numbers = range(done + 1, done + 1 + len(lines))
        encoded = translator.sources.sentences(lines, own, never, terms, is_ordered, numbers)
        sources = [limit.applied(source) for source in encoded]
        longest = max(len(source.ids) for source in sources)
        label = f"translate {len(lines):,} lines of up to {longest:,} tokens"
        with (
            hidden_progress(options.no_progress_bar or not progress),
            progress_bar(
                label, len(lines), "lines", shows_waiting=True, only_if_slow=True
            ) as advance,
        ):
            found = translator.translate_sentences(sources, settings.search, done, advance)
        yield from zip(lines, encoded, found, strict=True)
        done += len(lines)
        if progress:  # what became of these lines is told before others are waited for
            sys.stdout.flush()
    if prefixes is not None and len(prefixes) > done:
        raise DataError(
            f"--prefixes {options.prefixes}: {len(prefixes):,} lines, but the input has only "
            f"{done:,}; give one for each, empty for none"
        )


def _prefixes_of(prefixes: list[str] | None, first: int, count: int, path: str | None) -> list[str]:
    """Return the prefixes of lines from ``first`` on.

    Raises:
        DataError: there are not as many.
    """
    if prefixes is None:
        return [""] * count
    if len(prefixes) < first + count:
        raise DataError(
            f"--prefixes {path}: {len(prefixes):,} lines, but the input has more; give one for "
            "each, empty for none"
        )
    return prefixes[first : first + count]


def untranslated(translation: Translation) -> Translation:
    """Return the empty translation of a line that is too long, marked by its score."""
    hypothesis = replace(translation.hypothesis, score=-math.inf)
    return replace(translation, hypothesis=hypothesis)


def _opened(path: str) -> io.BufferedReader:
    try:
        return standard_input() if path == "-" else open_text(path)
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
        DataError: the file cannot be read, or a line is not UTF-8 or has no end.
    """
    origin = "standard input" if origin == "-" else origin
    rest: list[bytes] = []  # joined when its line ends: a line may be as long as a file
    number, unended = 1, 0
    while True:
        with reading(origin):
            block = file.read1(READ_BYTES)
        end = block.rfind(b"\n") + 1
        rest.append(block[:end] if end else block)
        unended += len(block)
        if unended > MOST_BYTES:
            raise DataError(f"{origin}:{number}: a line without an end; expected text")
        if block and not end:
            continue
        lines = decode_lines(b"".join(rest), origin, number)
        rest, unended = [block[end:]], len(block) - end
        number += len(lines)
        size = buffer_size or max(1, len(lines))
        for first in range(0, len(lines), size):
            yield lines[first : first + size]
        if not block:
            return
