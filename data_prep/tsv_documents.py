#!/usr/bin/env python3
r"""Make a corpus of documents from tables: one sentence pair a line, columns divided by tabs.

    python data_prep/tsv_documents.py --train A.tsv.gz B.tsv --source-lang de --target-lang en \
        --out CORPUS

The first column names the document. The lines of a document follow each other. The same name in
another place or table names another document. Columns count from 1, or from the end with -1, so
that tables may have more columns in between. Documents of ``--held-out-tables`` become valid and
test alternately. Without such tables, the script draws documents from ``--train``. It removes
held-out lines that the training text contains word for word or nearly so.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from prep_tools import documents as docs
from prep_tools.command import PrepError, run_script, script_parser

from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import iterate_lines


def read_documents(path: Path, columns: tuple[int, int]) -> Iterator[docs.Document]:
    """Yield the documents of a table, without pairs with an empty side.

    Args:
        path: the table.
        columns: columns of source and target, from 1, or negative from the end.

    Raises:
        DataError: the table is missing, damaged or not UTF-8, or a line has too few columns.
    """
    num_columns = max(3, *map(abs, columns))
    indices = [0]
    for column in columns:
        indices.append(column - 1 if column > 0 else column)

    def rows() -> Iterator[list[str]]:
        for number, line in enumerate(iterate_lines(path), 1):
            cells = line.split("\t")
            if len(cells) < num_columns:
                raise DataError(
                    f"{path}:{number}: {len(cells)} columns, expected {num_columns} or more with "
                    "tabs between them"
                )
            yield [cells[index].strip() for index in indices]

    for name, same in itertools.groupby(rows(), key=lambda row: row[0]):
        pairs = tuple((source, target) for _, source, target in same if source and target)
        if pairs:
            yield docs.Document(f"{path.name}/{name}", pairs)


def divide(arguments: argparse.Namespace) -> docs.Corpus:
    """Return the documents of all tables as train, valid and test."""
    columns = (arguments.source_column, arguments.target_column)
    if 0 in columns:
        raise PrepError("--source-column and --target-column count from 1, or from the end with -1")

    def documents(paths: Sequence[Path]) -> list[docs.Document]:
        documents_of_all = []
        for path in paths:
            documents_of_all += read_documents(path, columns)
        return documents_of_all

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
    empty = corpus.empty_sets()
    if empty:
        raise PrepError(f"nothing is left for {' and '.join(empty)}; give more documents")
    languages = (arguments.source_lang, arguments.target_lang)
    docs.write_corpus(corpus, arguments.out, languages, arguments.document_separator)
    tables = [*arguments.train, *arguments.held_out_tables]
    facts = {"source": list(map(str, tables)), "near copies removed": corpus.removed}
    docs.report_corpus(corpus, arguments.out, facts)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this script."""
    parser = script_parser("tsv_documents.py", __doc__)
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
