"""Translate raw text, line by line, as the lines arrive."""

import io
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from relu_nmt.data.document_settings import SINGLE_SENTENCES
from relu_nmt.errors import DataError, counted, reporting
from relu_nmt.io.process import standard_input
from relu_nmt.io.progress import hidden_progress, progress_bar
from relu_nmt.io.safe_write import check_writable
from relu_nmt.io.text_lines import decode_lines, named_input, open_text, reading, whole_lines
from relu_nmt.jobs.translate.line_format import LineFormat
from relu_nmt.jobs.translate.model import load_translator, source_limit
from relu_nmt.jobs.translate.notes import LineNotes, limit_note, named_lines, print_notes
from relu_nmt.jobs.translate.settings import TranslateLinesSettings
from relu_nmt.jobs.translate.text import InputText, request_template
from relu_nmt.modules.config import AttentionPlace
from relu_nmt.translation.search.translations import SourceSentence, TranslatedLines, Translation

READ_BYTES = 1 << 16
MOST_BYTES = 1 << 28
"""Longest line. A longer one is no text, but a device that never ends, for example."""
LAST_CROSS = AttentionPlace("cross", -1)


def translate_lines(settings: TranslateLinesSettings, *, progress: bool = True) -> TranslatedLines:
    """Translate lines, print each translation at once, and return the best translations."""
    if settings.attention_pictures is not None:
        _check_pictures(Path(settings.attention_pictures))
    # Open the input before loading the model, so that a missing file fails at once.
    with reporting(f"--input {settings.input}: cannot read it"):
        file = standard_input() if settings.input == "-" else open_text(settings.input)
    with file, hidden_progress(settings.no_progress_bar or not progress):
        translation = _LineTranslation(settings, progress)
        try:
            translation.run(file)
        finally:  # print notes also after Ctrl-C at the keyboard
            if progress:
                translation.print_notes()
    return TranslatedLines(translation.texts, translation.at_limit, translation.notes.too_long)


class _LineTranslation:
    """Translates lines as they arrive, and prints each translation at once.

    Attributes:
        texts: the best translation of each line.
        at_limit: numbers of lines from 0, see :class:`TranslatedLines`.
        notes: further numbers of lines.
    """

    def __init__(self, settings: TranslateLinesSettings, progress: bool) -> None:
        self._settings = settings
        self._progress = progress
        self._translator = load_translator(settings.model, settings.data)
        limit = source_limit(settings.model, self._translator)
        self._format = LineFormat(self._translator.task, settings.model, settings.search)
        self._input = InputText(settings, settings.input)
        self._template = request_template(settings, limit)
        if settings.attention_pictures is not None:
            # A picture shows the attention of a whole line.
            self._template = replace(self._template, split_sentences=False)
        else:
            # Refuse a missing library for --split-sentences before the first line.
            self._translator.sources.splitter(settings.split_sentences)
        self.texts: list[str] = []
        self.at_limit: list[int] = []
        self.notes = LineNotes(limit, settings.split_sentences)
        self._pictures: list[Path] = []

    def run(self, file: io.BufferedReader) -> None:
        """Translate all lines of a file."""
        settings = self._settings
        text = self._input
        config = settings.search.resolved(workers=0)
        translate = self._translator.window_translator(config)
        num_sentences = 0
        tab_note = ""
        for lines in read_buffers(file, settings.input, settings.buffer_size):
            begin = len(text.lines)
            text.add(lines)
            if self._progress and not tab_note:
                tab_note = text.tab_note(begin)
                print_notes(tab_note)
            # Compare the prefixes with the lines so far, since their total is not known yet.
            text.check_prefixes(is_complete=False)
            numbers = range(begin, len(text.lines))
            request = text.request(self._template, text.lines[begin:], numbers)
            sources = self._translator.sources.encode(request)
            self.notes.missing_splitter = sources.note or self.notes.missing_splitter
            lengths: list[int] = []
            for source in sources.sentences:
                lengths += [len(sentence.ids) for sentence in source.sentences]
            label = f"translate {counted(len(lines), 'line')} of up to {max(lengths):,} tokens"
            with progress_bar(
                label, len(lengths), "lines", shows_waiting=True, only_if_slow=True
            ) as advance:
                translated = self._translator.translate_sources(
                    sources, config, partial(translate, on_progress=advance), num_sentences
                )
            num_sentences += len(lengths)
            for number, source, window in zip(
                numbers, sources.whole, translated.windows, strict=True
            ):
                self._add(number, source, window.translations)
            if self._progress:  # show these translations before waiting for more lines
                sys.stdout.flush()
        text.check_prefixes()

    def _add(self, number: int, source: SourceSentence, translations: list[Translation]) -> None:
        """Keep the best translation of a line, and print its translations."""
        self.notes.add(number, source)
        limit = self.notes.limit
        if limit.refuses(source):
            if not limit.truncate:  # mark the line
                translations = list(map(_untranslated, translations))
        elif self._settings.attention_pictures is not None and source.tokens:
            self._draw(self._settings.attention_pictures, number, source, translations[0])
        best = translations[0]
        self.texts.append(best.text)
        if best.reached_limit:
            self.at_limit.append(number)
        if self._progress:
            if number == 0:
                print_notes(_length_note(self._translator.max_doc_tokens))
            print("\n".join(self._printed(number, source, translations)))

    def _draw(
        self, folder: str, number: int, source: SourceSentence, translation: Translation
    ) -> None:
        """Draw the attention of a translation."""
        path = Path(folder, f"{number}.svg")
        ids = translation.hypothesis.ids
        self._translator.attention_at(LAST_CROSS, source, ids).save(path)
        self._pictures.append(path)

    def _printed(
        self, number: int, source: SourceSentence, translations: list[Translation]
    ) -> list[str]:
        """Return the output lines for an input line, in the format of ``--format``."""
        num_best = self._settings.search.nbest
        if self._settings.format == "json":
            return [self._format.json(number, self._input.lines[number], source, translations)]
        if self._settings.format == "fairseq":
            lines = self._format.source(number, source, source.tokens)
            for translation in translations:
                lines += self._format.hypothesis(number, translation)
            return lines
        if num_best > 1:
            return self._format.nbest(number, translations, num_best)
        return [translations[0].text]

    def print_notes(self) -> None:
        """Print notes on pictures, and on lines that were cut, split or may end too early."""
        if self._pictures:
            note = f"attention pictures: {self._pictures[0]}"
            if len(self._pictures) > 1:
                note += f" to {self._pictures[-1]}"
            print_notes(note)
        print_notes(*self.notes.texts())
        if self.at_limit:
            note = limit_note(len(self.at_limit), self._settings.search)
            print_notes(f"{note} ({named_lines(self.at_limit)})")


def _check_pictures(folder: Path) -> None:
    """Check that the folder can be written and has no pictures of an earlier run."""
    for path in sorted(folder.glob("*.svg")):
        if path.stem.isdecimal():
            raise DataError(
                f"--attention-pictures {folder}: {path.name} is there already; give another folder"
            )
    check_writable("--attention-pictures", f"{folder}/0.svg")


def _length_note(trained: int) -> str:
    """Return a note that lines are not joined, although the model was trained on longer groups."""
    if trained == SINGLE_SENTENCES:
        return ""
    return (
        "NOTE: each line is translated on its own, but the model was trained on up to "
        f"{trained} tokens; relu-nmt-translate-document joins the lines of a document"
    )


def _untranslated(translation: Translation) -> Translation:
    """Return an empty translation for a line that is too long. Its score marks it."""
    hypothesis = replace(translation.hypothesis, score=-math.inf)
    return replace(translation, hypothesis=hypothesis)


def read_buffers(file: io.BufferedReader, origin: str, buffer_size: int) -> Iterator[list[str]]:
    """Yield lines as they arrive, at most ``buffer_size`` together (0: no limit)."""
    origin = named_input(origin)
    number = 1
    unended = 0

    def read() -> bytes:
        nonlocal unended
        with reading(origin):
            block = file.read1(READ_BYTES)
        # Refuse endless input before it fills the memory.
        unended = len(block) if b"\n" in block else unended + len(block)
        if unended > MOST_BYTES:
            raise DataError(f"{origin}:{number}: a line that does not end; expected text")
        return block

    for data in whole_lines(read):
        lines = decode_lines(data, origin, number)
        number += len(lines)
        size = buffer_size or max(1, len(lines))  # a byte-order mark alone is no line
        for first in range(0, len(lines), size):
            yield lines[first : first + size]
