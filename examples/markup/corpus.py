"""Parallel documents with inline tags on both sides, from the help pages of LibreOffice."""

import sys
from collections.abc import Iterator
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
"""Overlap from which a held-out sentence counts as a copy of a training sentence."""
Pair = tuple[TaggedText, TaggedText]
SPLITS = ("train", "valid", "test")


def make_corpus(folder: Path, packages: Path, languages: tuple[str, str], held_out: int) -> None:
    """Fetch the help pages, and write ``train.de``, ``train.en`` and so on with tags.

    Raises:
        NoPackages: apt or the network is missing.
    """
    names = []
    for language in languages:
        names.append(ENGLISH if language == "en" else language)
    files = download_help(names, packages)
    pages = []
    for name in names:
        pages.append(unpack_help(files[name]))
    tagged: dict[str, dict[tuple[str, str], tuple[str, str]]] = {}
    documents = []
    for path in sorted(pages[0].rglob("*.html")):
        name = path.relative_to(pages[0]).as_posix()
        if (pages[1] / name).is_file():
            source_html = (pages[0] / name).read_text("utf-8", errors="replace")
            target_html = (pages[1] / name).read_text("utf-8", errors="replace")
            pairs = {}
            for source, target in page_pairs(source_html, target_html):
                pairs[source.text, target.text] = (source.markup(), target.markup())
            # Name documents as the demo does, since the name decides about the split.
            title = name.removesuffix(".html")
            tagged[title] = pairs
            documents.append(Document(title, tuple(pairs)))
    # Find copies in texts without tags.
    divided = divide(documents, held_out, NEAR_COPY)
    for split in SPLITS:
        written = []
        for document in getattr(divided, split):
            markup_of_pair = tagged[document.name]
            lines = map(markup_of_pair.__getitem__, document.pairs)
            written.append(Document(document.name, tuple(lines)))
        write_documents(written, folder / split, languages, "blank")


def page_pairs(source_html: str, target_html: str) -> Iterator[Pair]:
    """Yield the sentence pairs of a page. A paragraph stays whole if a tag crosses sentences."""
    sources = dict(read_paragraphs(source_html, with_tags=True))
    for identifier, target_markup in read_paragraphs(target_html, with_tags=True):
        source = TaggedText.of_markup(sources.get(identifier, ""))
        target = TaggedText.of_markup(target_markup)
        for pair in _sentence_pairs(source, target):
            source_text = pair[0].text
            target_text = pair[1].text
            if source_text != target_text and _has_letters(source_text, target_text):
                yield pair[0].without_trivial_tags(), pair[1].without_trivial_tags()


def _sentence_pairs(source: TaggedText, target: TaggedText) -> list[Pair]:
    pairs = []
    source_end = 0
    target_end = 0
    for source_sentence, target_sentence in split_pair(source.text, target.text):
        source_begin = source.text.index(source_sentence, source_end)
        target_begin = target.text.index(target_sentence, target_end)
        source_end = source_begin + len(source_sentence)
        target_end = target_begin + len(target_sentence)
        source_part = source.part(source_begin, source_end)
        target_part = target.part(target_begin, target_end)
        if source_part is None or target_part is None:
            return [(source, target)]
        pairs.append((source_part, target_part))
    return pairs


def _has_letters(source_text: str, target_text: str) -> bool:
    return any(map(str.isalpha, source_text)) and any(map(str.isalpha, target_text))


def read_pairs(folder: Path, split: str, languages: tuple[str, str]) -> list[Pair | None]:
    """Read the pairs of a split. None stands for the blank line between two documents.

    Raises:
        DataError: a file cannot be read, or the sides have different numbers of lines.
    """
    source_lang, target_lang = languages
    sources = read_lines(folder / f"{split}.{source_lang}")
    targets = read_lines(folder / f"{split}.{target_lang}")
    if len(sources) != len(targets):
        counts = f"{len(sources):,} and {len(targets):,} lines"
        raise DataError(f"{folder / split}: the languages have {counts}")
    pairs: list[Pair | None] = []
    for source, target in zip(sources, targets, strict=True):
        if source.strip() and target.strip():
            pairs.append((TaggedText.of_markup(source), TaggedText.of_markup(target)))
        else:
            pairs.append(None)
    return pairs


def is_measured(pair: Pair) -> bool:
    """Return True for a pair whose sides have the same tags, at least one."""
    names = pair[0].names()
    return bool(names) and names == pair[1].names()
