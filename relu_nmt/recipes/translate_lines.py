"""Translate raw lines from standard input or a file, as they arrive."""

import io
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from relu_nmt.cli.interactive import TranslateLinesSettings as Settings
from relu_nmt.data.documents import SINGLE_SENTENCES
from relu_nmt.errors import DataError
from relu_nmt.io.process import standard_input
from relu_nmt.io.safe_write import check_writable
from relu_nmt.io.text_lines import decode_lines, open_text, read_lines, reading
from relu_nmt.io.work import hidden_progress, progress_bar
from relu_nmt.modules.config import AttentionPlace
from relu_nmt.recipes.translation import (
    LineFormat,
    limit_note,
    load_translator,
    named_lines,
    print_notes,
    source_limit,
    split_terms,
    tab_note,
    too_long_note,
)
from relu_nmt.translation.search.translations import (
    SourceLimit,
    SourceSentence,
    TranslatedLines,
    Translation,
)
from relu_nmt.translator import TranslationRequest, Translator

READ_BYTES = 1 << 16
MOST_BYTES = 1 << 28
"""Longest line. A longer one is no text; a device that never ends, for example."""
LAST_CROSS = AttentionPlace("cross", -1)


def run(settings: Settings, *, progress: bool = True) -> TranslatedLines:
    """Translate lines, print each translation at once, and return the best translations.

    Raises:
        ConfigError: the settings do not fit the model.
        CheckpointError: a checkpoint is missing or damaged.
        DataError: the input cannot be read or is not UTF-8, or pictures would replace others.
    """
    config = settings.search
    texts: list[str] = []
    at_limit: list[int] = []
    too_long: list[int] = []
    pictures: list[Path] = []
    if settings.attention_pictures is not None:
        _check_pictures(Path(settings.attention_pictures))
    # Open the input before loading the model, so that a missing file fails at once.
    with _opened(settings.input) as file:
        translator = load_translator(settings.model, settings.data)
        limit = source_limit(settings.model, translator)
        formatted = LineFormat(
            translator.task,
            settings.model.post_process is not None,
            config.print_alignment is not None,
        )
        try:
            for line, source, translations in _translated(
                file, settings, translator, limit, progress
            ):
                number = len(texts)
                # A line that is too long is marked; pictures are drawn of all others.
                if limit.refuses(source):
                    too_long.append(number)
                    if not limit.truncate:
                        translations = [_untranslated(own) for own in translations]
                elif settings.attention_pictures is not None and source.tokens:
                    tokens = translations[0].hypothesis.tokens
                    pictures.append(Path(settings.attention_pictures, f"{number}.svg"))
                    translator.attention_at(LAST_CROSS, source, tokens).save(pictures[-1])
                # Keep the best translation, and note the line if it may be cut off.
                texts.append(translations[0].text)
                if translations[0].reached_limit:
                    at_limit.append(number)
                if not progress:
                    continue
                # Print the line in the format that was asked for.
                if number == 0:
                    print_notes(_length_note(translator.max_doc_tokens))
                shown = [texts[-1]]
                if settings.format == "json":
                    shown = [formatted.json(number, line, source, translations)]
                elif settings.format == "fairseq":
                    shown = formatted.of_line(number, source, translations)
                elif config.nbest > 1:
                    shown = formatted.nbest(number, translations, config.nbest)
                print("\n".join(shown))
        finally:  # print notes also after Ctrl-C at the keyboard
            if progress:
                if pictures:
                    several = f" to {pictures[-1]}" if len(pictures) > 1 else ""
                    print_notes(f"attention pictures: {pictures[0]}{several}")
                print_notes(too_long_note(too_long, limit))
                if note := limit_note(len(at_limit), config):
                    print_notes(f"{note} ({named_lines(at_limit)})")
    return TranslatedLines(texts, at_limit, too_long)


def _check_pictures(folder: Path) -> None:
    """Check that the folder can be written and has no pictures of an earlier run."""
    earlier = sorted(path.name for path in folder.glob("*.svg") if path.stem.isdecimal())
    if earlier:
        raise DataError(
            f"--attention-pictures {folder}: {earlier[0]} is there already; give another folder"
        )
    check_writable("--attention-pictures", f"{folder}/0.svg")


def _length_note(trained: int) -> str:
    """Return a note that lines are not joined, for a model that was trained on longer groups."""
    if trained == SINGLE_SENTENCES:
        return ""
    return (
        "NOTE: each line is translated on its own, but the model was trained on up to "
        f"{trained} tokens; relu-nmt-translate-document joins the lines of a document"
    )


def _translated(
    file: io.BufferedReader,
    settings: Settings,
    translator: Translator,
    limit: SourceLimit,
    progress: bool,
) -> Iterator[tuple[str, SourceSentence, list[Translation]]]:
    """Yield each line, its token ids before the limit, and its translations, as lines arrive."""
    done, has_tabs = 0, False
    config = settings.search.resolved(workers=0)
    prefixes = None if settings.prefixes is None else read_lines(settings.prefixes)
    banned = () if settings.banned_terms is None else read_lines(settings.banned_terms)
    # Read lines as they arrive; ``done`` counts the lines of earlier buffers.
    for lines in read_buffers(file, settings.input, settings.buffer_size):
        if progress and not has_tabs and (note := tab_note(lines, settings.constraints, done)):
            has_tabs = True  # print this note once
            print_notes(note)
        # Encode the lines with their prefixes and terms.
        lines, terms = split_terms(lines, settings.constraints)
        request = TranslationRequest.of_lines(
            lines,
            _prefixes_of(prefixes, done, len(lines), settings),
            terms,
            settings.constraints != "unordered",
            banned,
            range(done + 1, done + 1 + len(lines)),
        )
        encoded = translator.sources.encode(request)
        limited = encoded.limited(limit)
        # Translate them.
        longest = max(len(source.ids) for source in limited.sentences)
        label = f"translate {len(lines):,} lines of up to {longest:,} tokens"
        with (
            hidden_progress(settings.no_progress_bar or not progress),
            progress_bar(
                label, len(lines), "lines", shows_waiting=True, only_if_slow=True
            ) as advance,
        ):
            found = translator.answer(limited, config, first_id=done, on_progress=advance)
        # Yield the sentences before the limit, so that the caller can mark long ones.
        translations = [window.translations for window in found.windows]
        yield from zip(lines, encoded.sentences, translations, strict=True)
        done += len(lines)
        if progress:  # show these translations before waiting for more lines
            sys.stdout.flush()
    if prefixes is not None and len(prefixes) > done:
        raise DataError(
            f"--prefixes {settings.prefixes}: {len(prefixes):,} lines, but the input has only "
            f"{done:,}; give one for each, empty for none"
        )


def _prefixes_of(
    prefixes: list[str] | None, first: int, count: int, settings: Settings
) -> list[str] | None:
    """Return the prefixes of ``count`` lines from ``first`` on."""
    if prefixes is None:
        return None
    # Compare with the lines so far, since their total is not known yet.
    if len(prefixes) < first + count:
        raise DataError(
            f"--prefixes {settings.prefixes}: {len(prefixes):,} lines, but the input has more; "
            "give one for each, empty for none"
        )
    return prefixes[first : first + count]


def _untranslated(translation: Translation) -> Translation:
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

    A read waits only while no byte has arrived.
    """
    origin = "standard input" if origin == "-" else origin
    # Parts of a line without its end yet; join them once, as a line may be as long as a file.
    rest: list[bytes] = []
    number, unended = 1, 0
    while True:
        # Read a block; keep the bytes after its last line end for the next block.
        with reading(origin):
            block = file.read1(READ_BYTES)
        end = block.rfind(b"\n") + 1
        rest.append(block[:end] if end else block)
        unended += len(block)
        # Refuse endless input before it fills the memory.
        if unended > MOST_BYTES:
            raise DataError(f"{origin}:{number}: a line without an end; expected text")
        # Go on reading until a line ends or the input does.
        if block and not end:
            continue
        # Decode the whole lines, and yield them in buffers.
        lines = decode_lines(b"".join(rest), origin, number)
        rest, unended = [block[end:]], len(block) - end
        number += len(lines)
        size = buffer_size or max(1, len(lines))
        for first in range(0, len(lines), size):
            yield lines[first : first + size]
        if not block:
            return
