"""Translate raw text, line by line, as the lines arrive."""

import io
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from relu_nmt.data.documents import SINGLE_SENTENCES
from relu_nmt.errors import DataError, counted, reporting
from relu_nmt.io.plain_text import MOST_LINES, refuse_markup
from relu_nmt.io.process import standard_input
from relu_nmt.io.safe_write import check_writable
from relu_nmt.io.text_lines import (
    decode_lines,
    named_input,
    open_text,
    read_lines,
    reading,
    whole_lines,
)
from relu_nmt.io.work import hidden_progress, progress_bar
from relu_nmt.jobs.translate import shared
from relu_nmt.jobs.translate.settings import TranslateLinesSettings
from relu_nmt.modules.config import AttentionPlace
from relu_nmt.translation.search.translations import SourceSentence, TranslatedLines, Translation
from relu_nmt.translator import TranslationRequest

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
    with file:
        translation = _LineTranslation(settings, progress)
        try:
            translation.run(file)
        finally:  # print notes also after Ctrl-C at the keyboard
            if progress:
                translation.print_notes()
    return TranslatedLines(translation.texts, translation.at_limit, translation.too_long)


class _LineTranslation:
    """Translates lines as they arrive, and prints each translation at once.

    Attributes:
        texts: the best translation of each line.
        at_limit, too_long: numbers of lines from 0, see :class:`TranslatedLines`.
    """

    def __init__(self, settings: TranslateLinesSettings, progress: bool) -> None:
        self._settings = settings
        self._progress = progress
        self._translator = shared.load_translator(settings.model, settings.data)
        self._limit = shared.source_limit(settings.model, self._translator)
        self._format = shared.LineFormat(self._translator.task, settings.model, settings.search)
        self._options = shared.term_options(settings)
        if settings.attention_pictures is not None:
            # A picture shows the attention of a whole line.
            self._options["split_sentences"] = False
        else:
            # Refuse a missing library for --split-sentences before the first line.
            self._translator.sources.splitter(settings.split_sentences)
        self._prefixes = None
        if settings.prefixes is not None:
            self._prefixes = read_lines(settings.prefixes)
        # The results.
        self.texts: list[str] = []
        self.at_limit: list[int] = []
        self.too_long: list[int] = []
        # The facts that the notes tell.
        self._beginning: list[str] = []  # the first lines, to look for markup
        self._has_tabs = False
        self._split_lines: list[int] = []  # numbers of lines of several sentences
        self._split_note = ""
        self._pictures: list[Path] = []

    def run(self, file: io.BufferedReader) -> None:
        """Translate all lines of a file."""
        settings = self._settings
        config = settings.search.resolved(workers=0)
        # Make one search for all buffers. It moves the progress bar of the current one.
        search = self._translator.searcher(config, on_progress=lambda number: advance(number))
        for lines in read_buffers(file, settings.input, settings.buffer_size):
            self._check(lines)
            request = self._request(lines)
            sources = self._translator.sources.encode(request)
            self._split_note = sources.note or self._split_note
            lengths: list[int] = []
            for source in sources.sentences:
                lengths += [len(sentence.ids) for sentence in source.sentences]
            label = f"translate {counted(len(lines), 'line')} of up to {max(lengths):,} tokens"
            with (
                hidden_progress(settings.no_progress_bar or not self._progress),
                progress_bar(
                    label, len(lengths), "lines", shows_waiting=True, only_if_slow=True
                ) as advance,
            ):
                translated = self._translator.answer(sources, config, search)
            for line, source, window in zip(
                request.lines, sources.whole, translated.windows, strict=True
            ):
                self._take(line, source, window.translations)
            if self._progress:  # show these translations before waiting for more lines
                sys.stdout.flush()
        if self._prefixes is not None and len(self._prefixes) > len(self.texts):
            number = f"input has only {len(self.texts):,}"
            raise shared.wrong_prefixes(settings.prefixes, self._prefixes, number)

    def _check(self, lines: Sequence[str]) -> None:
        """Refuse markup, and tell once that tabs are text."""
        num_done = len(self.texts)
        # Look for markup at the beginning, which may arrive line by line.
        if num_done < MOST_LINES:
            self._beginning += lines
            refuse_markup(self._beginning, named_input(self._settings.input))
        if self._progress and not self._has_tabs:
            note = shared.tab_note(lines, self._settings.constraints, num_done)
            self._has_tabs = bool(note)
            shared.print_notes(note)

    def _request(self, lines: list[str]) -> TranslationRequest:
        """Return a request for lines, with their prefixes and terms."""
        begin = len(self.texts)
        end = begin + len(lines)
        prefixes = None
        if self._prefixes is not None:
            # Compare the prefixes with the lines so far, since their total is not known yet.
            if len(self._prefixes) < end:
                raise shared.wrong_prefixes(
                    self._settings.prefixes, self._prefixes, "input has more"
                )
            prefixes = self._prefixes[begin:end]
        texts, forced = shared.split_terms(lines, self._settings.constraints)
        numbers = range(begin + 1, end + 1)
        return TranslationRequest(
            texts,
            limit=self._limit,
            prefixes=prefixes,
            forced=forced,
            numbers=numbers,
            **self._options,
        )

    def _take(self, line: str, source: SourceSentence, translations: list[Translation]) -> None:
        """Keep the best translation of a line, and print its translations."""
        number = len(self.texts)
        if source.parts:
            self._split_lines.append(number)
        # A line that is too long is marked. All other lines get pictures.
        if self._limit.refuses(source):
            self.too_long.append(number)
            if not self._limit.truncate:
                translations = list(map(_untranslated, translations))
        elif self._settings.attention_pictures is not None and source.tokens:
            tokens = translations[0].hypothesis.tokens
            path = Path(self._settings.attention_pictures, f"{number}.svg")
            self._translator.attention_at(LAST_CROSS, source, tokens).save(path)
            self._pictures.append(path)
        best = translations[0]
        self.texts.append(best.text)
        if best.reached_limit:
            self.at_limit.append(number)
        if self._progress:
            if number == 0:
                shared.print_notes(_length_note(self._translator.max_doc_tokens))
            print("\n".join(self._printed(number, line, source, translations)))

    def _printed(
        self, number: int, line: str, source: SourceSentence, translations: list[Translation]
    ) -> list[str]:
        """Return the output lines for an input line, in the format of ``--format``."""
        num_best = self._settings.search.nbest
        if self._settings.format == "json":
            return [self._format.json(number, line, source, translations)]
        if self._settings.format == "fairseq":
            return self._format.of_line(number, source, translations)
        if num_best > 1:
            return self._format.nbest(number, translations, num_best)
        return [translations[0].text]

    def print_notes(self) -> None:
        """Print notes on pictures, and on lines that were cut, split or may end too early."""
        if self._pictures:
            note = f"attention pictures: {self._pictures[0]}"
            if len(self._pictures) > 1:
                note += f" to {self._pictures[-1]}"
            shared.print_notes(note)
        shared.print_notes(shared.too_long_note(self.too_long, self._limit))
        if self._settings.split_sentences is None:
            shared.print_notes(shared.split_note(self._split_lines, self._split_note))
        if self.at_limit:
            note = shared.limit_note(len(self.at_limit), self._settings.search)
            shared.print_notes(f"{note} ({shared.named_lines(self.at_limit)})")


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
