"""Parallel documents: dividing them into train, valid and test, and writing them."""

import argparse
import dataclasses
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from prep_tools.command import say
from prep_tools.near_duplicates import SeenLines
from relu_nmt.data.documents import DOCUMENT_TAG, SEPARATORS
from relu_nmt.io.safe_write import write_text
from relu_nmt.io.text_lines import write_lines

KEEP_NEAR_COPIES = 2.0
"""A threshold that no overlap reaches."""


@dataclasses.dataclass(frozen=True)
class Document:
    """A document in two languages.

    Attributes:
        name: decides whether the document is held out. Documents of one name are distinguished
            by their order.
        pairs: its sentences in reading order, (source, target).
    """

    name: str
    pairs: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Documents divided into three sets.

    Attributes:
        train: documents to learn from.
        valid: documents to choose a checkpoint on, without near copies of training lines.
        test: documents to report a score on, without near copies of lines of the other two.
        removed: number of near copies that were removed from ``valid`` and ``test``.
    """

    train: list[Document]
    valid: list[Document]
    test: list[Document]
    removed: dict[str, int]

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of documents and sentence pairs of each set."""
        counts = {}
        for split in ("train", "valid", "test"):
            documents = getattr(self, split)
            counts[split] = {"documents": len(documents), "pairs": len(pairs_of(documents))}
        return counts

    def empty_sets(self) -> list[str]:
        """Return the names of the sets without a sentence pair."""
        return [split for split, count in self.counts().items() if not count["pairs"]]


def pairs_of(documents: Iterable[Document]) -> list[tuple[str, str]]:
    """Return the sentence pairs of all documents, in order."""
    return list(itertools.chain.from_iterable(document.pairs for document in documents))


def without_near_copies(
    documents: Sequence[Document], seen_documents: Sequence[Document], threshold: float
) -> tuple[list[Document], int]:
    """Remove the pairs of which either side is (nearly) a line of ``seen_documents``.

    Returns:
        The documents that still hold a pair, and the number of pairs removed.
    """
    if threshold > 1:
        return list(documents), 0
    seen_sides = []
    for side in (0, 1):
        seen_lines = SeenLines(_lines_of(seen_documents, side), threshold)
        seen_sides.append(seen_lines.find(_lines_of(documents, side)))
    is_seen = map(any, zip(*seen_sides, strict=True))
    remaining = []
    removed = 0
    for document in documents:
        fresh = tuple(pair for pair in document.pairs if not next(is_seen))
        removed += len(document.pairs) - len(fresh)
        if fresh:
            remaining.append(Document(document.name, fresh))
    return remaining, removed


def _lines_of(documents: Sequence[Document], side: int) -> list[str]:
    return [pair[side] for pair in pairs_of(documents)]


def divide(documents: Sequence[Document], held_out: int, threshold: float, seed: int = 1) -> Corpus:
    """Hold out whole documents for valid and test, without lines that the training text contains.

    The names (and the seed) decide which documents are held out, not their order. Documents that
    share a name are drawn one by one.

    Args:
        documents: all documents.
        held_out: documents in each of valid and test, at most a twentieth of all documents.
        threshold: overlap from which a line counts as a near copy (see ``SeenLines``).
            ``KEEP_NEAR_COPIES`` keeps all.
        seed: another seed holds out other documents.
    """

    def lot(number: int) -> str:
        return hashlib.sha256(f"{seed}/{names[number]}".encode()).hexdigest()

    names: list[str] = []
    counts: Counter[str] = Counter()
    for document in documents:
        earlier = counts[document.name]
        names.append(document.name)
        if earlier:
            names[-1] += f"#{earlier}"
        counts[document.name] += 1
    share = max(1, min(held_out, len(documents) // 20))
    drawn = sorted(range(len(documents)), key=lot)
    test = [documents[number] for number in drawn[:share]]
    valid = [documents[number] for number in drawn[share : 2 * share]]
    train = [documents[number] for number in sorted(drawn[2 * share :])]
    test, removed_test = without_near_copies(test, [*train, *valid], threshold)
    valid, removed_valid = without_near_copies(valid, train, threshold)
    return Corpus(train, valid, test, {"valid": removed_valid, "test": removed_test})


def note_repeated_names(documents: Sequence[Document]) -> None:
    """Print how many names are given to documents in several places. See :func:`divide`."""
    names = Counter(document.name for document in documents)
    repeated = sum(count > 1 for count in names.values())
    if repeated:
        say(
            f"  NOTE: {repeated:,} names of documents stand in several places; each place is taken "
            "as a document of its own"
        )


def document_lines(documents: Sequence[Document], side: int, separator: str) -> list[str]:
    """Return the lines of one language.

    Args:
        documents: the documents.
        side: 0 for the source, 1 for the target.
        separator: ``none``, ``blank`` (an empty line between documents) or ``tag`` (a line
            ``<d>`` before each document).
    """
    lines: list[str] = []
    for number, document in enumerate(documents):
        if separator == "tag":
            lines.append(DOCUMENT_TAG)
        elif separator == "blank" and number > 0:
            lines.append("")
        lines.extend(pair[side] for pair in document.pairs)
    return lines


def write_documents(
    documents: Sequence[Document], prefix: Path, languages: tuple[str, str], separator: str
) -> list[Path]:
    """Write ``PREFIX.de`` and ``PREFIX.en`` (or other languages), one sentence a line.

    Args:
        documents: the documents.
        prefix: folder and beginning of the names. The folder is made if it does not exist.
        languages: source and target language, the endings of the files.
        separator: see :func:`document_lines`.
    """
    prefix.parent.mkdir(parents=True, exist_ok=True)
    paths = []
    for side, language in enumerate(languages):
        paths.append(prefix.with_name(f"{prefix.name}.{language}"))
        write_lines(paths[-1], document_lines(documents, side, separator))
    return paths


def write_corpus(
    corpus: Corpus, folder: Path, languages: tuple[str, str], separator: str
) -> list[Path]:
    """Write ``train.de``, ``train.en`` and so on, see :func:`write_documents`."""
    paths = []
    for split in ("train", "valid", "test"):
        paths += write_documents(getattr(corpus, split), folder / split, languages, separator)
    return paths


def write_report(folder: Path, report: dict[str, object]) -> None:
    """Write the report of a corpus, ``corpus.json``. The report comes last and marks success."""
    write_text(folder / "corpus.json", json.dumps(report, ensure_ascii=False, indent=2) + "\n")


def report_corpus(corpus: Corpus, folder: Path, facts: dict[str, object]) -> None:
    """Write and print the sizes of a corpus. The file also holds the facts about its origin."""
    write_report(folder, {**facts, **corpus.counts()})
    say(describe(corpus))


def describe(corpus: Corpus) -> str:
    """Return three lines with the sizes of the sets."""
    counts = corpus.counts()
    lines = []
    for split, count in counts.items():
        line = (
            f"  {split:5} {count['pairs']:>7,} sentence pairs in {count['documents']:,} documents"
        )
        if split in corpus.removed:
            line += f" ({corpus.removed[split]:,} near copies of other lines left out)"
        lines.append(line)
    return "\n".join(lines)


def whole_number(text: str) -> int:
    """Return a number of documents from 1, for argparse.

    Raises:
        argparse.ArgumentTypeError: the text is no such number.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number from 1")
    return int(text)


def _overlap(text: str) -> float:
    """Return a threshold of :func:`divide`, for argparse.

    Raises:
        argparse.ArgumentTypeError: the text is no number over 0.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text}: expected a number over 0, up to 1")
    return value


def add_division_options(parser: argparse.ArgumentParser, near_copy: float) -> None:
    """Add the flags of :func:`divide`.

    Args:
        parser: the script's parser.
        near_copy: default overlap from which a held-out line counts as seen in training.
    """
    parser.add_argument(
        "--held-out",
        type=whole_number,
        default=100,
        help="documents in each of valid and test, at most a twentieth of all (default: 100)",
    )
    parser.add_argument(
        "--near-copy",
        type=_overlap,
        default=near_copy,
        help="share of common runs of letters from which a held-out line counts as seen and is "
        f"removed; 1 for word for word (default: {near_copy:g})",
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of choice and generated text (default: 1)"
    )


def add_separator_option(parser: argparse.ArgumentParser) -> None:
    """Add the flag for the separator between documents."""
    parser.add_argument(
        "--document-separator",
        choices=SEPARATORS,
        default="blank",
        help="separator of documents: none, an empty line, a line <d> (default: blank)",
    )
