"""Texts as sequences of blocks, and their alignment by structure.

A block is a heading, a paragraph, a list item, a table cell, ... A translation that was made
element by element has the same sequence of kinds of blocks as the original. If a page differs
(the translation is of another version), its sections are compared. If a section differs, the pieces
between blocks with the same text on both sides (names of options, addresses) are compared. Pieces
that differ are left out.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from prep_tools.letters import plain_digits

CODE = "code"
_HEADING = re.compile(r"h\d")
# "4.2. ", "4.2 ", "B.1. ", "Chapter 6. ", "Abbildung 14.3. ", "अध्याय ६. " before a title.
_NUMBER = re.compile(
    r"(?:[^\W\d][^\s\d]*\s)?(?P<long>(?:\d+|[A-Z])(?:[.-]\d+)*)\.\s+|(?P<short>\d+(?:\.\d+)*)\s+"
)


@dataclasses.dataclass(frozen=True)
class Block:
    """A piece of text that stands alone.

    Attributes:
        kind: ``h1`` to ``h6`` for headings, ``title`` for other titles, ``code`` for code and
            other non-prose, and else the name of its element.
        text: white space reduced to single spaces, empty for ``code``.
    """

    kind: str
    text: str

    @property
    def is_heading(self) -> bool:
        """Return whether a section begins here."""
        return _HEADING.fullmatch(self.kind) is not None


def _sections(blocks: Sequence[Block]) -> list[list[Block]]:
    """Divide blocks into sections before each heading. The first section may have no heading."""
    sections: list[list[Block]] = [[]]
    for block in blocks:
        if block.is_heading:
            sections.append([])
        sections[-1].append(block)
    return sections


def _kinds(blocks: Sequence[Block]) -> list[str]:
    return [block.kind for block in blocks]


def without_numbers(source: str, target: str) -> tuple[str, str]:
    """Remove the number that two titles begin with, if it is the same.

    Example:
        >>> without_numbers("Kapitel 6. Wartung", "Chapter 6. Maintenance")
        ('Wartung', 'Maintenance')
    """
    source_number = _NUMBER.match(plain_digits(source))
    target_number = _NUMBER.match(plain_digits(target))
    if source_number and target_number and source_number.groups() == target_number.groups():
        return source[source_number.end() :], target[target_number.end() :]
    return source, target


def _numbers_of_single_blocks(blocks: Sequence[Block]) -> dict[tuple[str, str], int]:
    """Return the numbers of the blocks with text that occur once, by kind and text."""
    counts = Counter((block.kind, block.text) for block in blocks)
    numbers = {}
    for number, block in enumerate(blocks):
        key = (block.kind, block.text)
        if block.text and counts[key] == 1:
            numbers[key] = number
    return numbers


def _pieces(
    sources: Sequence[Block], targets: Sequence[Block]
) -> Iterator[tuple[Sequence[Block], Sequence[Block]]]:
    """Divide both sides at the blocks that occur once on each side, with the same text."""
    source_numbers = _numbers_of_single_blocks(sources)
    target_numbers = _numbers_of_single_blocks(targets)
    begin_source = 0
    begin_target = 0
    for key, source_number in source_numbers.items():
        target_number = target_numbers.get(key, -1)
        # An anchor that has moved would cross another one.
        if target_number >= begin_target:
            yield sources[begin_source:source_number], targets[begin_target:target_number]
            begin_source = source_number + 1
            begin_target = target_number + 1
    yield sources[begin_source:], targets[begin_target:]


def _matched(
    sources: Sequence[Block], targets: Sequence[Block], counts: Counter[str]
) -> Iterator[tuple[Block, Block]]:
    """Yield the blocks that correspond, in order."""
    if _kinds(sources) == _kinds(targets):
        yield from zip(sources, targets, strict=True)
        return
    source_sections = _sections(sources)
    target_sections = _sections(targets)
    # The first section has no heading, so that its first block may differ.
    source_headings = [_kinds(section[:1]) for section in source_sections[1:]]
    target_headings = [_kinds(section[:1]) for section in target_sections[1:]]
    if source_headings != target_headings:
        source_sections = [list(sources)]
        target_sections = [list(targets)]
    for number, (source_section, target_section) in enumerate(
        zip(source_sections, target_sections, strict=True)
    ):
        if _kinds(source_section) == _kinds(target_section):
            yield from zip(source_section, target_section, strict=True)
            continue
        heading = 0 if number == 0 else 1
        yield from zip(source_section[:heading], target_section[:heading], strict=True)
        for source, target in _pieces(source_section[heading:], target_section[heading:]):
            if _kinds(source) == _kinds(target):
                yield from zip(source, target, strict=True)
            else:
                counts["blocks where the structure differs"] += len(source)


def align_blocks(
    sources: Sequence[Block], targets: Sequence[Block], counts: Counter[str]
) -> list[tuple[str, str]]:
    """Return the texts that correspond, in reading order. Code is left out.

    Args:
        sources: the blocks of a page in one language.
        targets: the blocks of the same page in the other language.
        counts: counts the blocks that are left out.

    Example:
        >>> page, seite = [Block("h1", "1. A"), Block("p", "B")], [Block("h1", "1. X")]
        >>> align_blocks(page, [*seite, Block("p", "Y")], Counter())
        [('A', 'X'), ('B', 'Y')]
    """
    pairs = []
    for source, target in _matched(sources, targets, counts):
        if source.kind == CODE or not source.text or not target.text:
            continue
        if source.is_heading or source.kind == "title":
            pairs.append(without_numbers(source.text, target.text))
        else:
            pairs.append((source.text, target.text))
    return pairs
