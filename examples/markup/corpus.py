"""Parallel documents with inline tags on both sides, from the help pages of LibreOffice."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "data_prep"))

from libreoffice_help import ENGLISH, download_help, unpack_help
from prep_tools.documents import Document, divide, write_documents
from prep_tools.html_paragraphs import read_paragraphs
from prep_tools.sentences import split_pair
from tagged_text import TaggedText

from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import read_lines

NEAR_COPY = 0.7
"""Overlap from which a held-out sentence is a copy of one that training has."""
Pair = tuple[TaggedText, TaggedText]
SPLITS = ("train", "valid", "test")


def make_corpus(folder: Path, packages: Path, languages: tuple[str, str], held_out: int) -> None:
    """Fetch the help pages, and write ``train.de``, ``train.en`` and so on with tags.

    Raises:
        NoPackages: apt or the network is missing.
    """
    names = [ENGLISH if language == "en" else language for language in languages]
    files = download_help(names, packages)
    pages = [unpack_help(files[name], packages / files[name].stem) for name in names]
    tagged: dict[str, dict[tuple[str, str], tuple[str, str]]] = {}
    documents = []
    for path in sorted(pages[0].rglob("*.html")):
        name = path.relative_to(pages[0]).as_posix()
        if (pages[1] / name).is_file():
            sides = [(folder / name).read_text("utf-8", errors="replace") for folder in pages]
            pairs = {(s.text, t.text): (s.markup(), t.markup()) for s, t in page_pairs(*sides)}
            # The name of the demo's document, which decides about its split.
            title = name.removesuffix(".html")
            tagged[title] = pairs
            documents.append(Document(title, tuple(pairs)))
    # Copies are found in texts without tags.
    divided = divide(documents, held_out, NEAR_COPY)
    for split in SPLITS:
        written = []
        for document in getattr(divided, split):
            lines = tuple(tagged[document.name][pair] for pair in document.pairs)
            written.append(Document(document.name, lines))
        write_documents(written, folder / split, languages, "blank")


def page_pairs(source_html: str, target_html: str) -> Iterator[Pair]:
    """Yield the sentence pairs of a page. A paragraph stays whole if a tag crosses sentences."""
    sources = dict(read_paragraphs(source_html, with_tags=True))
    for identifier, target_markup in read_paragraphs(target_html, with_tags=True):
        source = TaggedText.of_markup(sources.get(identifier, ""))
        target = TaggedText.of_markup(target_markup)
        for pair in _sentence_pairs(source, target):
            if pair[0].text != pair[1].text and all(_has_letters(side.text) for side in pair):
                yield pair[0].without_trivial_tags(), pair[1].without_trivial_tags()


def _sentence_pairs(source: TaggedText, target: TaggedText) -> list[Pair]:
    sentences = split_pair(source.text, target.text)
    sources = _parts(source, [pair[0] for pair in sentences])
    targets = _parts(target, [pair[1] for pair in sentences])
    if None in sources or None in targets:
        return [(source, target)]
    pairs = zip(sources, targets, strict=True)
    return [pair for pair in pairs if pair[0] is not None and pair[1] is not None]


def _parts(text: TaggedText, sentences: Sequence[str]) -> list[TaggedText | None]:
    parts = []
    position = 0
    for sentence in sentences:
        begin = text.text.index(sentence, position)
        position = begin + len(sentence)
        parts.append(text.part(begin, position))
    return parts


def _has_letters(text: str) -> bool:
    return any(character.isalpha() for character in text)


def read_pairs(folder: Path, split: str, languages: tuple[str, str]) -> list[Pair | None]:
    """Read the pairs of a split. None stands for the blank line between two documents.

    Raises:
        DataError: a file cannot be read, or the sides have different numbers of lines.
    """
    sides = [read_lines(folder / f"{split}.{language}") for language in languages]
    if len(sides[0]) != len(sides[1]):
        counts = f"{len(sides[0]):,} and {len(sides[1]):,} lines"
        raise DataError(f"{folder / split}: the languages have {counts}")
    pairs: list[Pair | None] = []
    for source, target in zip(*sides, strict=True):
        if source.strip() and target.strip():
            pairs.append((TaggedText.of_markup(source), TaggedText.of_markup(target)))
        else:
            pairs.append(None)
    return pairs


def is_measured(pair: Pair) -> bool:
    """Return True for a pair whose sides have the same tags, at least one."""
    names = pair[0].names()
    return bool(names) and names == pair[1].names()
