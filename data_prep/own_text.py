#!/usr/bin/env python3
"""Divide a parallel text of your own into train, valid and test.

    python data_prep/own_text.py --src mine.de --tgt mine.en --out corpus/

Both files have the same number of lines, and each line translates the other. An empty line on both
sides, or a line ``<d>`` before each document, divides documents; without them, blocks of
consecutive lines count as documents. Whole documents are held out; of these, lines that training
has seen word for word or nearly so are removed. The endings of the files (``de``, ``en``) name the
languages, unless ``--source-lang`` and ``--target-lang`` do.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from prep_tools import documents as docs
from prep_tools.command import PrepError, run_script, say

from relu_nmt.io.text_lines import read_lines

BLOCK_LINES = 25
FEWEST_DOCUMENTS = 20
FEWEST_PAIRS = 200


def _separates(separator: str, source: str, target: str) -> bool:
    if separator == "tag":
        return source == docs.DOCUMENT_TAG
    return separator == "blank" and not source and not target


def find_separator(sources: Sequence[str], targets: Sequence[str]) -> str:
    """Return what divides the documents: ``tag``, ``blank`` or ``none``.

    Raises:
        PrepError: the ``<d>`` lines of the two sides do not stand at the same places.
    """
    for number, (source, target) in enumerate(zip(sources, targets, strict=True), 1):
        if (source == docs.DOCUMENT_TAG) != (target == docs.DOCUMENT_TAG):
            raise PrepError(f"line {number}: only one side has a line <d>; both need it")
    if docs.DOCUMENT_TAG in sources:
        return "tag"
    blank = any(not s and not t for s, t in zip(sources, targets, strict=True))
    return "blank" if blank else "none"


def _blocks(pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[tuple[str, str], ...]]:
    for begin in range(0, len(pairs), BLOCK_LINES):
        yield tuple(pairs[begin : begin + BLOCK_LINES])


def group(sources: Sequence[str], targets: Sequence[str], separator: str) -> list[docs.Document]:
    """Return the documents; blocks of lines, if there are fewer than 20.

    Pairs of which one side is empty are left out.
    """
    documents: list[list[tuple[str, str]]] = [[]]
    for source, target in zip(sources, targets, strict=True):
        if _separates(separator, source, target):
            documents.append([])
        elif source and target:
            documents[-1].append((source, target))
    grouped = [tuple(document) for document in documents if document]
    if len(grouped) < FEWEST_DOCUMENTS:
        grouped = list(_blocks([pair for document in grouped for pair in document]))
    return [docs.Document(str(number), pairs) for number, pairs in enumerate(grouped)]


def make_corpus(arguments: argparse.Namespace) -> None:
    """Read, divide and write."""
    sources, targets = (
        [line.strip() for line in read_lines(path)] for path in (arguments.src, arguments.tgt)
    )
    if len(sources) != len(targets):
        raise PrepError(
            f"{arguments.src} has {len(sources):,} lines, but {arguments.tgt} has "
            f"{len(targets):,}; each line must be the translation of the other file's"
        )
    source_lang = arguments.source_lang or arguments.src.suffix[1:]
    target_lang = arguments.target_lang or arguments.tgt.suffix[1:]
    if not source_lang or not target_lang or source_lang == target_lang:
        raise PrepError(
            f"'{source_lang}' and '{target_lang}' do not name two languages; give files such as "
            "text.de and text.en, or --source-lang and --target-lang"
        )
    separator = find_separator(sources, targets)
    documents = group(sources, targets, separator)
    pairs = sum(len(document.pairs) for document in documents)
    one_sided = sum((not s) != (not t) for s, t in zip(sources, targets, strict=True))
    say(f"  {pairs:,} sentence pairs in {len(documents):,} documents")
    if one_sided:
        say(f"  {one_sided:,} lines left out: one of their sides is empty")
    if pairs < FEWEST_PAIRS:
        raise PrepError(f"{arguments.src}: {pairs} sentence pairs, expected {FEWEST_PAIRS} or more")
    corpus = docs.divide(documents, arguments.held_out, arguments.near_copy, arguments.seed)
    empty = [split for split, count in corpus.counts().items() if not count["pairs"]]
    if empty:
        raise PrepError(
            f"nothing is left for {' and '.join(empty)}: the text repeats itself too much; give "
            "more text or a higher --near-copy"
        )
    docs.write_corpus(corpus, arguments.out, (source_lang, target_lang), "blank")
    docs.write_report(
        arguments.out,
        {
            "source": f"{arguments.src} and {arguments.tgt}",
            "near copies removed": corpus.removed,
            **corpus.counts(),
        },
    )
    say(docs.describe(corpus))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this script."""
    parser = argparse.ArgumentParser(
        prog="own_text.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--src", type=Path, required=True, help="text to translate from")
    parser.add_argument("--tgt", type=Path, required=True, help="its translation, line by line")
    parser.add_argument("--out", type=Path, required=True, help="folder for the corpus")
    parser.add_argument("--source-lang", help="its name (the file's ending)")
    parser.add_argument("--target-lang", help="its name (the file's ending)")
    docs.add_division_options(parser, near_copy=0.7)
    return parser


if __name__ == "__main__":
    sys.exit(run_script(make_parser(), make_corpus))
