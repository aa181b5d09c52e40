"""Flags of the commands that translate documents, and what both do with them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from relu_nmt.config import option
from relu_nmt.data.documents import SEPARATORS
from relu_nmt.data.groups import SINGLE_SENTENCES
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.io.progress_bar import ProgressBar

if TYPE_CHECKING:
    from relu_nmt.decoding.config import GenerationConfig

MOST_SENTENCES = 50_000
"""Sentences whose documents are read, sorted by length and translated before the next ones."""


@dataclass(frozen=True)
class WindowOptions:
    """How the windows of a document overlap."""

    window_overlap: int = option(
        0,
        "give the N sentences before as context, within --max-doc-tokens, to the sentences that "
        "are translated: the source of each window begins with theirs, its translation is made to "
        "begin with what they were translated to, which no score counts. For documents longer than "
        "the model was trained on; needs a model trained with --sentence-separator",
        metavar="SENTENCES",
    )


@dataclass(frozen=True)
class SplitDocumentOptions:
    """How documents of a data folder are translated, and where the results go."""

    max_doc_tokens: int | None = option(
        None,
        "translate documents: join their consecutive sentences as in training, up to N tokens, "
        f"</s> included ({SINGLE_SENTENCES}: single sentences; a longer sentence is kept whole), "
        "and score d-BLEU; lines are printed for each group. The longest output is then by "
        "default 1.5 * (source tokens) + 50",
        metavar="N",
    )
    count_source_only: bool = option(
        False,
        "count only source tokens for --max-doc-tokens, as where there is no reference; by "
        "default a sentence counts as the longer of its two sides, as in training",
    )
    output: str | None = option(
        None,
        "write the documents as text: a line for each sentence, or, where a group's translation "
        "has not as many sentences as its source, a line for the group",
        metavar="FILE",
    )
    output_separator: str = option(
        "blank",
        "what stands between documents in --output: a blank line (empty translations are then "
        "left out), or a line <d> before each (tag)",
        choices=SEPARATORS[1:],
    )
    results: str | None = option(
        None, "write speed, mismatches, scores and lengths to FILE as JSON", metavar="FILE"
    )

    def check(self, windows: WindowOptions) -> None:
        """Refuse flags that mean nothing without documents, or would overwrite each other.

        Raises:
            ConfigError: there is such a flag.
        """
        if self.max_doc_tokens is not None:
            if self.output is None:
                if self.output_separator != SEPARATORS[1]:
                    raise ConfigError("--output-separator goes with --output; give a file there")
            elif self.results is not None and _is_same_place(self.output, self.results):
                raise ConfigError(f"--output and --results are both {self.output}; give two files")
            return
        for flag, given in (
            ("--window-overlap", windows.window_overlap),
            ("--count-source-only", self.count_source_only),
            ("--output", self.output is not None),
            ("--output-separator", self.output_separator != SEPARATORS[1]),
            ("--results", self.results is not None),
        ):
            if given:
                raise ConfigError(
                    f"{flag} goes with documents: give --max-doc-tokens too "
                    f"({SINGLE_SENTENCES} for single sentences)"
                )


def check_writable(flag: str, path: str | None) -> None:
    """See that a file can be written before hours are spent, and make its folder.

    Files are renamed into their place, which would put one where a device was.

    Raises:
        DataError: it cannot.
    """
    if path is None:
        return
    folder = Path(path).parent
    if _is_special(Path(path)):
        raise DataError(f"{flag} {path}: is no plain file; give the name of a file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DataError(f"{flag} {path}: cannot write it: {error.strerror}") from error
    if Path(path).is_dir():
        raise DataError(f"{flag} {path}: is a folder; give the name of a file")


def _is_special(path: Path) -> bool:
    """Return whether a path is a device, a pipe or what a process has open, as /dev/stdout is.

    That may lead to a plain file, so its own folder tells, not what it leads to.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        return True
    return path.is_symlink() and path.absolute().parent.resolve() == Path("/dev")


def _is_same_place(path: str, other: str) -> bool:
    return Path(path).resolve() == Path(other).resolve()


def document_ranges(counts: Sequence[int] | np.ndarray) -> Iterator[tuple[range, range]]:
    """Yield which documents, and which sentences, to read together.

    Args:
        counts: sentences of each document.
    """
    begin, first, last = 0, 0, 0
    for number, count in enumerate(counts):
        last += int(count)
        if last - first >= MOST_SENTENCES or number == len(counts) - 1:
            yield range(begin, number + 1), range(first, last)
            begin, first = number + 1, last


def limit_note(number: int, config: GenerationConfig) -> str:
    """Return the line that tells how many translations were cut off; empty if none."""
    return f"NOTE: {config.limit_note(number)}" if number else ""


def length_note(limit: int, trained: int) -> str:
    """Return the line that tells that groups are longer than in training; empty if not.

    Args:
        limit: ``--max-doc-tokens``.
        trained: the longest groups that the model learnt from.
    """
    if limit <= trained:
        return ""
    known = "single sentences" if trained == SINGLE_SENTENCES else f"up to {trained} tokens"
    return f"NOTE: --max-doc-tokens {limit}, but the model was trained on {known}"


def speed_line(sentences: int, tokens: int, seconds: float) -> str:
    """Return fairseq's line of how long it took."""
    by_second = f"{sentences / max(seconds, 1e-9):.2f} sentences/s, "
    by_second += f"{tokens / max(seconds, 1e-9):.2f} tokens/s"
    return f"Translated {sentences:,} sentences ({tokens:,} tokens) in {seconds:.1f}s ({by_second})"


def share(number: int, total: int) -> str:
    """Return ``3 of 40 (7.50%)``."""
    return f"{number:,} of {total:,} ({number / max(1, total):.2%})"


@contextmanager
def groups_progress(
    label: str, total: int, show: bool = True
) -> Iterator[Callable[[int], object] | None]:
    """Show how many groups are done; those that are translated again count no more.

    Args:
        label: what is being done.
        total: groups.
        show: None is yielded instead if this is false.
    """
    if not show:
        yield None
        return
    with ProgressBar(label, total, "groups") as progress:
        left = total

        def advance(number: int) -> None:
            nonlocal left
            progress.advance(min(number, left))
            left -= min(number, left)

        yield advance
