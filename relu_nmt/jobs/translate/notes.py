"""The notes of the jobs that translate, on standard error."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from relu_nmt.data.document_settings import SINGLE_SENTENCES
from relu_nmt.errors import counted, printable, some_of
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.translations import SourceLimit, SourceSentence

MOST_NAMED = 10
"""Most line numbers in one note."""


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
            number = counted(len(self.too_long), "line")
            notes.append(
                f"NOTE: {number} of more than {self.limit.most_tokens} tokens: {done} "
                f"({named_lines(self.too_long)})"
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


def limit_note(number: int, config: GenerationConfig) -> str:
    """Return a note on translations that may be cut off, or an empty text."""
    if not number:
        return ""
    a, b = config.longest_output
    return (
        f"NOTE: {number:,} translations reached the longest output ({a:g} * source "
        f"+ {b} tokens, or what the model can write) and may be cut off; "
        "--max-len-a and --max-len-b change it"
    )


def length_note(max_doc_tokens: int | None, trained: int, has_documents: bool = True) -> str:
    """Return a note on the number of tokens that are translated at once, with the reason.

    ``max_doc_tokens`` is the flag's value or None, ``trained`` the longest group in training.

    Example:
        >>> length_note(None, 128)
        'NOTE: sentences are joined up to 128 tokens, as in training; --max-doc-tokens changes it'
    """
    # Name the length that is used. If it is not the length of training, give the reason.
    training = f"the model was trained on up to {trained} tokens"
    if trained == SINGLE_SENTENCES:
        training = "the model was trained on single sentences"
    if max_doc_tokens is not None and max_doc_tokens > trained:
        return f"NOTE: --max-doc-tokens {max_doc_tokens}, but {training}"
    limit = max_doc_tokens or trained
    if max_doc_tokens is None and not has_documents:
        limit = SINGLE_SENTENCES
    unit = f"sentences are joined up to {limit} tokens"
    if limit == SINGLE_SENTENCES:
        unit = "single sentences are translated"
    if max_doc_tokens is not None:
        return f"NOTE: {unit} (--max-doc-tokens {max_doc_tokens}); {training}"
    if limit < trained:
        return f"NOTE: {unit}, as the data has no boundaries of documents; {training}"
    return f"NOTE: {unit}, as in training; --max-doc-tokens changes it"


def print_notes(*notes: str) -> None:
    """Print the notes that are not empty on standard error."""
    for note in filter(None, notes):
        print(printable(note), file=sys.stderr)


def share(number: int, total: int) -> str:
    """Return ``3 of 40 (7.50%)``."""
    return f"{number:,} of {total:,} ({number / max(1, total):.2%})"
