#!/usr/bin/env python3
r"""Make a corpus of documents from tables: one sentence pair a line, columns divided by tabs.

    python data_prep/tsv_documents.py --train A.tsv.gz B.tsv --source-lang de --target-lang en \
        --out CORPUS

The first column names the document; its lines stand one after the other. A name that comes again,
in another table or in another place, is of another document. Columns count from 1, or
from the end with -1, so that tables with more columns in between go together. Documents of
``--held-out-tables`` become valid and test by turns; without such tables, documents are drawn from
those of ``--train``. Held-out lines that training has seen, word for word or nearly so, are
removed.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from prep_tools import documents as docs
from prep_tools.command import PrepError, run_script, say

from relu_nmt.io.text_lines import iterate_lines


def read_documents(path: Path, columns: tuple[int, int]) -> Iterator[docs.Document]:
    """Yield the documents of a table, without pairs of which one side is empty.

    Args:
        path: the table.
        columns: of the source and the target sentence, from 1, or negative from the end.

    Raises:
        PrepError: a line has too few columns.
        DataError: the table is missing, damaged or not UTF-8.
    """
    needed = max(max(columns), max(-column for column in columns), 3)
    indices = [column - 1 if column > 0 else column for column in columns]
    numbered = enumerate((line.split("\t") for line in iterate_lines(path)), 1)
    for name, rows in itertools.groupby(numbered, lambda numbered_row: numbered_row[1][0]):
        pairs = []
        for number, row in rows:
            if len(row) < needed:
                raise PrepError(f"{path}, line {number}: {len(row)} columns, expected {needed}")
            source, target = (row[index].strip() for index in indices)
            if source and target:
                pairs.append((source, target))
        if pairs:
            yield docs.Document(f"{path.name}/{name}", tuple(pairs))


def divide(arguments: argparse.Namespace) -> docs.Corpus:
    """Return the documents of all tables as train, valid and test."""
    columns = (arguments.source_column, arguments.target_column)
    if 0 in columns:
        raise PrepError("--source-column and --target-column count from 1, or from the end with -1")

    def documents(paths: Sequence[Path]) -> list[docs.Document]:
        return [document for path in paths for document in read_documents(path, columns)]

    train = documents(arguments.train)
    docs.note_repeated_names(train)
    if not arguments.held_out_tables:
        return docs.divide(train, arguments.held_out, arguments.near_copy, arguments.seed)
    held_out = documents(arguments.held_out_tables)
    valid, removed_valid = docs.without_near_copies(held_out[::2], train, arguments.near_copy)
    test, removed_test = docs.without_near_copies(
        held_out[1::2], [*train, *valid], arguments.near_copy
    )
    return docs.Corpus(train, valid, test, {"valid": removed_valid, "test": removed_test})


def make_corpus(arguments: argparse.Namespace) -> None:
    """Read, divide and write."""
    corpus = divide(arguments)
    empty = [split for split, count in corpus.counts().items() if not count["pairs"]]
    if empty:
        raise PrepError(f"nothing is left for {' and '.join(empty)}; give more documents")
    languages = (arguments.source_lang, arguments.target_lang)
    docs.write_corpus(corpus, arguments.out, languages, arguments.document_separator)
    docs.write_report(
        arguments.out,
        {
            "source": [str(path) for path in (*arguments.train, *arguments.held_out_tables)],
            "near copies removed": corpus.removed,
            **corpus.counts(),
        },
    )
    say(docs.describe(corpus))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this script."""
    parser = argparse.ArgumentParser(
        prog="tsv_documents.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--train", type=Path, nargs="+", required=True, help="tables to learn from")
    parser.add_argument(
        "--held-out-tables",
        type=Path,
        nargs="+",
        default=[],
        help="tables for valid and test (default: drawn from --train, see --held-out)",
    )
    for side, default in (("source", 3), ("target", 4)):
        parser.add_argument(f"--{side}-lang", required=True, help="ending of its files")
        parser.add_argument(
            f"--{side}-column", type=int, default=default, help=f"its column (default: {default})"
        )
    parser.add_argument("--out", type=Path, required=True, help="folder for the corpus")
    docs.add_division_options(parser, near_copy=0.7)
    docs.add_separator_option(parser)
    return parser


if __name__ == "__main__":
    sys.exit(run_script(make_parser(), make_corpus))
