"""Example translations of the demo: reading, choosing and laying them out."""

import dataclasses
import textwrap
from collections.abc import Sequence
from pathlib import Path

NUMBER = 10
HANDY_LENGTHS = range(30, 140)
"""Least and most characters of a source sentence in the examples."""


@dataclasses.dataclass(frozen=True)
class Example:
    """A source sentence with its reference and its translation."""

    source: str
    reference: str
    hypothesis: str


def read_translations(path: Path) -> tuple[list[str], str]:
    """Return the translations in the order of the test set, and the line with the score.

    Args:
        path: output of relu-nmt-generate: lines ``D-number TAB score TAB text`` and others.
    """
    # Imported here, as --help of the demo does not need it.
    from relu_nmt.io.text_lines import read_lines

    translations: dict[int, str] = {}
    score = ""
    for line in read_lines(path):
        if line.startswith("D-"):
            number, _, text = line.split("\t", 2)
            translations[int(number[2:])] = text
        elif line.startswith("Generate "):
            score = line
    return [translations[number] for number in sorted(translations)], score


def choose_examples(examples: Sequence[Example]) -> list[Example]:
    """Return at most ten examples of medium length, spread evenly over the test set."""
    handy = [e for e in examples if len(e.source) in HANDY_LENGTHS] or list(examples)
    number = min(NUMBER, len(handy))
    return [handy[index * len(handy) // number] for index in range(number)]


def lay_out(number: int, example: Example) -> str:
    """Return one numbered example in three paragraphs."""
    rows = (
        (str(number), "source", example.source),
        ("", "reference", example.reference),
        ("", "model", example.hypothesis),
    )
    paragraphs = []
    for first, title, text in rows:
        start = f"{first:>3}  {title:<11}"
        indent = " " * len(start)
        filled = textwrap.fill(text, 100, initial_indent=start, subsequent_indent=indent)
        paragraphs.append(filled or start.rstrip())
    return "\n".join(paragraphs)
