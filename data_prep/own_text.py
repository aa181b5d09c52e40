#!/usr/bin/env python3
r"""Divide a parallel text of your own into train, valid and test.

    python data_prep/own_text.py --src mine.de --tgt mine.en --out corpus/
    python data_prep/own_text.py --input memory.tmx more.tsv.gz --source-lang de --target-lang en \
        --out corpus/

Two files are parallel line by line. Their endings (``de``, ``en``) name the languages, unless
``--source-lang`` and ``--target-lang`` do. An empty line on both sides, or a line ``<d>`` before
each document, divides documents.

``--input`` reads translation memories (TMX) and tables with tabs, compressed or not. In TMX ``de``
also finds ``de-DE``, and a property such as ``x-document`` or ``file`` names the document. The
columns of a table are source and target, or document, segment, source and target.

Without documents, blocks of consecutive lines count as documents. Whole documents are held out,
without lines that the training text contains word for word or nearly so.
"""

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from prep_tools import documents as docs
from prep_tools.command import PrepError, run_script, say, script_parser

from relu_nmt.data.pair_files import pair_format, read_pairs
from relu_nmt.io.text_lines import read_lines

BLOCK_LINES = 25
FEWEST_DOCUMENTS = 20
FEWEST_PAIRS = 200


def _separates(separator: str, source: str, target: str) -> bool:
    if separator == "tag":
        return source == docs.DOCUMENT_TAG
    return separator == "blank" and not source and not target


def find_separator(sources: Sequence[str], targets: Sequence[str]) -> str:
    """Return the kind of separator between documents: ``tag``, ``blank`` or ``none``.

    Raises:
        PrepError: the ``<d>`` lines of the two sides do not stand at the same places.
    """
    for number, (source, target) in enumerate(zip(sources, targets, strict=True), 1):
        if (source == docs.DOCUMENT_TAG) != (target == docs.DOCUMENT_TAG):
            raise PrepError(f"line {number}: only one side has a line <d>; both need it")
    if docs.DOCUMENT_TAG in sources:
        return "tag"
    if ("", "") in zip(sources, targets, strict=True):
        return "blank"
    return "none"


def _blocks(pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[tuple[str, str], ...]]:
    for begin in range(0, len(pairs), BLOCK_LINES):
        yield tuple(pairs[begin : begin + BLOCK_LINES])


def group(documents: Sequence[docs.Document]) -> list[docs.Document]:
    """Return the documents, or blocks of their lines if there are fewer than 20."""
    if len(documents) >= FEWEST_DOCUMENTS:
        return list(documents)
    blocks = _blocks(docs.pairs_of(documents))
    return [docs.Document(str(number), pairs) for number, pairs in enumerate(blocks)]


def read_files(
    source_path: Path, target_path: Path, counts: Counter[str]
) -> Iterator[docs.Document]:
    """Yield the documents of two parallel files.

    Args:
        source_path: text to translate from.
        target_path: its translation.
        counts: counts the lines that are left out.

    Raises:
        PrepError: the files do not go together.
    """
    sources = list(map(str.strip, read_lines(source_path)))
    targets = list(map(str.strip, read_lines(target_path)))
    if len(sources) != len(targets):
        raise PrepError(
            f"{source_path} has {len(sources):,} lines, but {target_path} has "
            f"{len(targets):,}; each line must be the translation of the other file's"
        )
    separator = find_separator(sources, targets)
    documents: list[list[tuple[str, str]]] = [[]]
    for source, target in zip(sources, targets, strict=True):
        if _separates(separator, source, target):
            documents.append([])
        elif source and target:
            documents[-1].append((source, target))
        elif source or target:
            counts["lines left out: one of their sides is empty"] += 1
    for number, document in enumerate(filter(None, documents)):
        yield docs.Document(str(number), tuple(document))


def read_memory(
    path: Path, languages: tuple[str, str], counts: Counter[str]
) -> Iterator[docs.Document]:
    """Yield the documents of a translation memory or a table.

    Args:
        path: the file.
        languages: source and target language.
        counts: counts the pairs that are left out.

    Raises:
        PrepError: the format is unknown.
        DataError: the file is damaged.
    """
    if pair_format(path) is None:
        raise PrepError(f"--input {path}: expected a file .tmx or .tsv; see --src for others")
    rows = read_pairs(path, languages, counts)
    for name, same in itertools.groupby(rows, key=lambda row: row[0]):
        pairs = tuple((source, target) for _, (source, target) in same)
        if name:
            yield docs.Document(f"{path.name}/{name}", pairs)
            continue
        for number, block in enumerate(_blocks(pairs)):
            yield docs.Document(f"{path.name}//{number}", block)


def languages_of(arguments: argparse.Namespace) -> tuple[str, str]:
    """Return the source and the target language.

    Raises:
        PrepError: one is unknown, or both are the same.
    """
    endings = [path.suffix[1:] for path in (arguments.src, arguments.tgt) if path] or ["", ""]
    source_lang = arguments.source_lang or endings[0]
    target_lang = arguments.target_lang or endings[1]
    if not source_lang or not target_lang or source_lang == target_lang:
        raise PrepError(
            f"'{source_lang}' and '{target_lang}' do not name two languages; give files such as "
            "text.de and text.en, or --source-lang and --target-lang"
        )
    return source_lang, target_lang


def read_documents(
    arguments: argparse.Namespace, languages: tuple[str, str], counts: Counter[str]
) -> list[docs.Document]:
    """Return the documents of all given files."""
    if arguments.src:
        return list(read_files(arguments.src, arguments.tgt, counts))
    documents = []
    for path in arguments.input:
        documents += read_memory(path, languages, counts)
    docs.note_repeated_names(documents)
    return documents


def make_corpus(arguments: argparse.Namespace) -> None:
    """Read, divide and write."""
    paths = arguments.input or [arguments.src, arguments.tgt]
    if None in paths or (arguments.input and (arguments.src or arguments.tgt)):
        raise PrepError("give --src and --tgt, or --input")
    languages = languages_of(arguments)
    counts: Counter[str] = Counter()
    documents = group(read_documents(arguments, languages, counts))
    pairs = len(docs.pairs_of(documents))
    say(f"  {pairs:,} sentence pairs in {len(documents):,} documents")
    for reason, count in counts.items():
        say(f"  {count:,} {reason}")
    if pairs < FEWEST_PAIRS:
        raise PrepError(f"{paths[0]}: {pairs} sentence pairs, expected {FEWEST_PAIRS} or more")
    corpus = docs.divide(documents, arguments.held_out, arguments.near_copy, arguments.seed)
    empty = corpus.empty_sets()
    if empty:
        raise PrepError(
            f"nothing is left for {' and '.join(empty)}: the text repeats itself too much; give "
            "more text or a higher --near-copy"
        )
    docs.write_corpus(corpus, arguments.out, languages, "blank")
    facts = {"source": " and ".join(map(str, paths)), "near copies removed": corpus.removed}
    docs.report_corpus(corpus, arguments.out, facts)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this script."""
    parser = script_parser("own_text.py", __doc__)
    parser.add_argument("--src", type=Path, help="text to translate from")
    parser.add_argument("--tgt", type=Path, help="its translation, line by line")
    parser.add_argument(
        "--input",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="files with both sides instead: .tmx or .tsv, also with .gz, .xz, .bz2 or .zst",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the corpus")
    parser.add_argument("--source-lang", help="its code, as de (default: the file's ending)")
    parser.add_argument("--target-lang", help="its code, as de (default: the file's ending)")
    docs.add_division_options(parser, near_copy=0.7)
    return parser


if __name__ == "__main__":
    sys.exit(run_script(make_parser(), make_corpus))
