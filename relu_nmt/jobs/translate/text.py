"""Raw text to translate: its lines with their prefixes and terms, and notes on them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from relu_nmt.errors import DataError, counted, some_of
from relu_nmt.io.plain_text import MOST_LINES, refuse_markup
from relu_nmt.io.text_lines import named_input, read_lines
from relu_nmt.jobs.translate.settings import TermOptions
from relu_nmt.translation.search.translations import SourceLimit, SourceSentence
from relu_nmt.translator import TranslationRequest

MOST_NAMED = 10
"""Most line numbers in one note."""


class InputText:
    """The lines of a text, which may arrive in parts.

    Attributes:
        lines: the lines so far, without the terms behind their tabs.
        terms: the forced terms of each line.
    """

    def __init__(self, settings: TermOptions, origin: str, lines: Sequence[str] = ()) -> None:
        self.lines: list[str] = []
        self.terms: list[list[str]] = []
        self._settings = settings
        self._origin = named_input(origin)
        self._beginning: list[str] = []  # the first lines, to look for markup
        self.add(lines)
        self._prefixes = None
        if settings.prefixes is not None:
            self._prefixes = read_lines(settings.prefixes)

    def add(self, lines: Sequence[str]) -> None:
        """Add lines. Cut the terms off (DataError: the text begins with markup)."""
        # Look for markup at the beginning, which may arrive line by line.
        if len(self.lines) < MOST_LINES:
            self._beginning += lines
            refuse_markup(self._beginning, self._origin)
        for line in lines:
            terms: list[str] = []
            if self._settings.constraints is not None:  # otherwise a tab is text
                line, *terms = line.split("\t")
            self.lines.append(line)
            self.terms.append(terms)

    def tab_note(self, first: int = 0) -> str:
        """Return a note on tabs that are translated as text, from line ``first``, or ""."""
        # Ignore tabs at both ends of a line, which are white space.
        new_lines = enumerate(self.lines[first:], first)
        numbers = [number for number, line in new_lines if "\t" in line.strip()]
        if not numbers:
            return ""
        return (
            f"NOTE: {named_lines(numbers)}: what stands behind a tab is translated as text; "
            "--constraints makes it terms that the translation must have"
        )

    def prefix(self, number: int) -> str:
        """Return the prefix of a line's translation, "" for none."""
        return "" if self._prefixes is None else self._prefixes[number]

    def check_prefixes(self, is_complete: bool = True) -> None:
        """Refuse more or fewer prefixes than lines. More are right until the text is complete."""
        if self._prefixes is None:
            return
        missing = len(self.lines) - len(self._prefixes)
        if missing > 0 or (missing and is_complete):
            number = f"{len(self.lines):,}" if is_complete else "more"
            raise DataError(
                f"--prefixes {self._settings.prefixes}: {counted(len(self._prefixes), 'line')}, "
                f"but the text has {number}; give one for each, empty for none"
            )

    def request(
        self, sentences: Sequence[str], numbers: Sequence[int], **options: Any
    ) -> TranslationRequest:
        """Return a request for sentences of the lines with these numbers, from 0."""
        return TranslationRequest(
            sentences,
            prefixes=[self.prefix(number) for number in numbers],
            forced=[self.terms[number] for number in numbers],
            numbers=[number + 1 for number in numbers],
            **options,
        )


@dataclass
class LineNotes:
    """Lines that are too long or have several sentences, by their numbers from 0."""

    limit: SourceLimit
    split_sentences: bool | None  # the option. None: lines of several sentences are noted
    too_long: list[int] = field(default_factory=list)
    split: list[int] = field(default_factory=list)
    missing_splitter: str = ""  # note that lines of several sentences stay whole

    def add(self, number: int, source: SourceSentence) -> None:
        """Add a line, if it is to be noted."""
        if self.limit.refuses(source):
            self.too_long.append(number)
        if source.parts and self.split_sentences is None:
            self.split.append(number)

    def texts(self) -> list[str]:
        """Return the notes."""
        notes = []
        if self.too_long:
            done = "their translation is empty"
            if self.limit.truncate:
                done = "only their beginning is translated"
            notes.append(
                f"NOTE: {counted(len(self.too_long), 'line')} of more than {self.limit.tokens} "
                f"tokens: {done} ({named_lines(self.too_long)})"
            )
        if self.split:
            notes.append(
                f"NOTE: {counted(len(self.split), 'line')} of several sentences, which are "
                f"translated one by one as in training ({named_lines(self.split)}); "
                "--no-split-sentences keeps lines whole"
            )
        elif self.missing_splitter:
            notes.append(self.missing_splitter)
        return notes


def named_lines(numbers: Sequence[int]) -> str:
    """Return the words for line numbers, which count from 0 here and from 1 in the text.

    Example:
        >>> named_lines([0, 4]), named_lines([2])
        ('lines 1, 5', 'line 3')
    """
    text = some_of([str(number + 1) for number in numbers], MOST_NAMED)
    if len(numbers) == 1:
        return f"line {text}"
    return f"lines {text}"
