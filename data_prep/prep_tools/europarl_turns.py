"""Turns of speakers in the source release of Europarl, and their alignment.

A file ``ep-YY-MM-DD.txt`` holds a sitting. Later years have a file ``ep-YY-MM-DD-NNN.txt`` for each
item of the agenda. Lines ``<CHAPTER ID=1>``, ``<SPEAKER ID=2 NAME="...">`` and ``<P>`` begin a
chapter, a turn and a paragraph. All other lines are text.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from prep_tools.documents import Document, pairs_of
from prep_tools.length_alignment import align
from prep_tools.sentences import split_sentences
from relu_nmt.io.text_lines import iterate_lines

UNITS = ("turns", "chapters", "sittings")
_TAG = re.compile(r"<(/?\w+)([^>]*)>")
_DATE = re.compile(r"ep-\d\d-\d\d-\d\d")
_ID = re.compile(r'\bID\s*=\s*"?([^"\s>]+)', re.IGNORECASE)

# Chapter, speaker, and a count of the turns with these two numbers.
TurnKey = tuple[str, str, int]


def read_turns(path: Path) -> dict[TurnKey, list[str]]:
    """Return the paragraphs of each turn of a sitting, by the key of the turn, in order.

    The title of a chapter is a turn of the speaker ``title``.
    """
    turns: dict[TurnKey, list[str]] = {}
    counts: Counter[tuple[str, str]] = Counter()
    chapter = ""
    speaker = "title"
    paragraphs: list[str] = []
    new_paragraph = True

    def begin_turn() -> list[str]:
        key = (chapter, speaker, counts[chapter, speaker])
        counts[chapter, speaker] += 1
        turns[key] = []
        return turns[key]

    paragraphs = begin_turn()
    for line in iterate_lines(path):
        line = line.strip()
        tag = _TAG.match(line)
        if tag is None:
            if line and new_paragraph:
                paragraphs.append(line)
            elif line:
                paragraphs[-1] += " " + line
            new_paragraph = new_paragraph and not line
            continue
        new_paragraph = True
        number = _ID.search(tag[2])
        identifier = number[1].lstrip("0") if number else ""
        if tag[1].upper() == "CHAPTER":
            chapter = identifier
            speaker = "title"
            paragraphs = begin_turn()
        elif tag[1].upper() == "SPEAKER":
            speaker = identifier
            paragraphs = begin_turn()
    return {key: paragraphs for key, paragraphs in turns.items() if paragraphs}


def align_paragraphs(sources: list[str], targets: list[str]) -> list[tuple[str, str]]:
    """Return the sentence pairs of a turn.

    Paragraphs are aligned one by one if both sides have the same number, otherwise all together.
    Sentences without a counterpart are left out. Sentences that correspond to one are joined.
    """
    if len(sources) != len(targets):
        sources = [" ".join(sources)]
        targets = [" ".join(targets)]
    pairs = []
    for source, target in zip(sources, targets, strict=True):
        for source_group, target_group in align(split_sentences(source), split_sentences(target)):
            if source_group and target_group:
                pairs.append((" ".join(source_group), " ".join(target_group)))
    return pairs


def align_sitting(files: tuple[Path, Path], unit: str) -> list[Document]:
    """Return the documents of a file.

    Args:
        files: the file in both languages.
        unit: unit of a document: ``turns``, ``chapters`` or ``sittings``. The files of a divided
            sitting give documents of the same name, see :func:`join_documents`.
    """
    sources, targets = map(read_turns, files)
    documents: dict[str, list[tuple[str, str]]] = {}
    for key, paragraphs in sources.items():
        if key not in targets:
            continue
        chapter, speaker, occurrence = key
        name = files[0].stem
        if unit == "turns":
            name += f"/{chapter}/{speaker}/{occurrence}"
        elif unit == "chapters":
            name += f"/{chapter}"
        elif date := _DATE.match(name):
            name = date[0]
        documents.setdefault(name, []).extend(align_paragraphs(paragraphs, targets[key]))
    return [Document(name, tuple(pairs)) for name, pairs in documents.items() if pairs]


def join_documents(documents: Iterable[Document]) -> Iterator[Document]:
    """Join consecutive documents of the same name."""
    for name, same in itertools.groupby(documents, key=lambda document: document.name):
        yield Document(name, tuple(pairs_of(same)))
