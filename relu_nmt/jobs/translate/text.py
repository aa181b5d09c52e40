"""Raw text to translate: its lines with their prefixes and terms."""

from collections.abc import Sequence
from dataclasses import replace

from relu_nmt.data.document_settings import WindowConfig
from relu_nmt.errors import DataError, counted
from relu_nmt.io.plain_text import MOST_LINES, refuse_markup
from relu_nmt.io.text_lines import named_input, read_lines
from relu_nmt.jobs.translate.notes import named_lines
from relu_nmt.jobs.translate.settings import BannedTermOptions, TermOptions
from relu_nmt.translation.search.translations import SourceLimit
from relu_nmt.translator import TranslationRequest


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
        self,
        template: TranslationRequest,
        sentences: Sequence[str],
        numbers: Sequence[int],
        counts: Sequence[int] | None = None,
    ) -> TranslationRequest:
        """Return the template with sentences of the lines with these numbers, from 0."""
        return replace(
            template,
            lines=sentences,
            counts=counts,
            prefixes=[self.prefix(number) for number in numbers],
            forced=[self.terms[number] for number in numbers],
            numbers=[number + 1 for number in numbers],
        )


def request_template(
    settings: TermOptions, limit: SourceLimit, windows: WindowConfig | None = None
) -> TranslationRequest:
    """Return a request without lines, with the fields that are the same for all lines."""
    return replace(
        banning_request(settings),
        windows=windows,
        limit=limit,
        ordered=settings.constraints != "unordered",
        split_sentences=settings.split_sentences,
    )


def banning_request(settings: BannedTermOptions) -> TranslationRequest:
    """Return a request without lines that bans the terms of the settings."""
    banned: Sequence[str] = ()
    if settings.banned_terms is not None:
        banned = read_lines(settings.banned_terms)
    return TranslationRequest(
        (), banned=banned, match_case=settings.match_case, inside_words=settings.inside_words
    )
