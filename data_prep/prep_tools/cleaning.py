"""The steps of the usual preparation recipes, one line or pair at a time.

Reference: the Moses scripts. clean-corpus-n and remove-non-printing-char are implemented here, the
tokenizer and normalize-punctuation in sacremoses.
"""

import dataclasses
import itertools
import multiprocessing
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from prep_tools.command import PrepError
from relu_nmt.io.text_lines import iterate_lines

Item = TypeVar("Item")
Result = TypeVar("Result")
CHUNK_LINES = 2_000
SPELLING = "\u200c\u200d\u06dd\u0600\u0601\u0602\u0603\u0604\u0605\u070f\u08e2"
"""Format characters that belong to the spelling: joiners, and signs of Arabic and Syriac."""
WITHIN_WORDS = "\u00ad\u061c\u200e\u200f\u2060\ufeff"
"""Soft hyphen, marks of direction, and word joiners, which may stand inside a word."""
_SEGMENT = re.compile(r'<seg id="[^"]*">\s*(.*?)\s*</seg>', re.IGNORECASE)


def read_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Yield the line pairs of two parallel files.

    Raises:
        PrepError: one has more lines than the other.
        DataError: one cannot be read or is not UTF-8.
    """
    missing = object()
    lines = itertools.zip_longest(*map(iterate_lines, (source, target)), fillvalue=missing)
    for number, (source_line, target_line) in enumerate(lines, 1):
        if source_line is missing or target_line is missing:
            short = source if source_line is missing else target
            raise PrepError(f"{short}: ends before line {number:,}, the other side goes on")
        yield str(source_line), str(target_line)


def segments(path: Path) -> list[str]:
    """Return the texts of the ``<seg>`` elements of an SGML or XML test set.

    The typographic apostrophe becomes the plain one, as in the usual recipes (only here, not in
    training text).
    """
    texts = []
    for line in iterate_lines(path):
        for match in _SEGMENT.finditer(line):
            texts.append(match[1].replace("’", "'"))
    return texts


@dataclasses.dataclass(frozen=True)
class LengthFilter:
    """Limits for the numbers of tokens of a pair.

    Attributes:
        longest: most tokens of either side.
        ratio: largest ratio of the longer to the shorter side.
        shortest: fewest tokens of either side.
    """

    longest: int
    ratio: float = 1.5
    shortest: int = 1

    def reason_to_drop(self, source_tokens: int, target_tokens: int) -> str:
        """Return why a pair is dropped (``empty``, ``length``, ``ratio``), or an empty text."""
        short, long = sorted((source_tokens, target_tokens))
        if short == 0:
            return "empty"
        if short < self.shortest or long > self.longest:
            return "length"
        return "ratio" if long > self.ratio * short else ""


@lru_cache(maxsize=4)
def _tokenizer(language: str, aggressive: bool) -> Any:
    # Use the toolkit's tokenizer, so that the lengths agree with the training.
    from relu_nmt.tokenization.moses import MosesTokenizer

    return MosesTokenizer(language, aggressive)


@lru_cache(maxsize=4)
def _punctuation(language: str) -> Any:
    import sacremoses

    return sacremoses.MosesPunctNormalizer(language)


def tokenize(line: str, language: str, aggressive: bool = False) -> list[str]:
    """Return the Moses tokens of a line. ``aggressive`` splits hyphens."""
    return _tokenizer(language, aggressive).split(line)


def remove_non_printing(line: str) -> str:
    """Replace control, format, private and unassigned characters by spaces.

    Characters that are part of the spelling stay: joiners, as in Persian and Hindi words and in
    emoji, and visible signs before numbers. Characters that only affect how a word is displayed are
    removed without a space.
    """
    if line.isascii() and line.isprintable():
        return line
    characters = []
    for character in line:
        is_printing = not unicodedata.category(character).startswith("C")
        if is_printing or character in SPELLING:
            characters.append(character)
        elif character not in WITHIN_WORDS:
            characters.append(" ")
    return "".join(characters)


def normalize(line: str, language: str) -> str:
    """Normalize punctuation, remove non-printing characters, reduce white space."""
    return " ".join(remove_non_printing(_punctuation(language).normalize(line)).split())


def _apply(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return list(map(function, items))


def _chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def parallel_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    workers: int,
    chunk: int = CHUNK_LINES,
) -> Iterator[Result]:
    """Yield ``function`` of every item, in order, with several processes.

    Args:
        function: a function that can be sent to another process.
        items: read as they are needed.
        workers: number of processes. 1 is this process, 0 one per core.
        chunk: items sent to a process together.
    """
    workers = workers or os.cpu_count() or 1
    if workers == 1:
        yield from map(function, items)
        return
    with multiprocessing.Pool(workers) as pool:
        for results in pool.imap(partial(_apply, function), _chunks(items, chunk)):
            yield from results
