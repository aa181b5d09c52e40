#!/usr/bin/env python3
r"""Make the Europarl v7 English-German corpus of documents.

The script copies the split of Maruf et al. (2019), local files (``dev.en``, ``dev.de``, ... with a
line ``<d>`` before each document), without pairs with an empty side:

    python data_prep/europarl_documents.py --out europarl \
        --trainpref maruf/train --validpref maruf/dev --testpref maruf/test

Without --trainpref, the script rebuilds the training part from the source release of Europarl v7: a
speaker's turn of at least 6 sentences is a document, and sentences are aligned by length inside
paragraphs. This is not the published training set, and the report says so. Text of valid and test
is left out: documents that share long English text with them, in runs of 8 words, however the
sentences are divided. All other documents stay whole, with formulas such as "Thank you" that also
stand in valid or test:

    python data_prep/europarl_documents.py --out europarl \
        --validpref maruf/dev --testpref maruf/test

Turns are short: few are longer than 1,024 tokens. For the long variant, --documents chapters or
--documents sittings joins consecutive turns, so that groups can reach 2,048 tokens:

    python data_prep/europarl_documents.py --out europarl-long --documents chapters \
        --validpref maruf/dev --testpref maruf/test

Its valid and test are whole chapters (or sittings) held out of the release. ``test-turns``, the
second test set, is the published one. The training text leaves out turns of the published valid and
test sets as before, and chapters are cut in two there.

Without --validpref and --testpref, the script always holds out whole documents. The last step is
relu-nmt-preprocess: Moses tokens, case kept, 32,000 joint BPE merges.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from prep_tools import binarize, cleaning
from prep_tools import documents as docs
from prep_tools.archives import extract
from prep_tools.command import PrepError, run_script, say, script_parser
from prep_tools.europarl_turns import UNITS, align_sitting, join_documents
from prep_tools.held_out_text import without_held_out
from prep_tools.sources import Source, add_source_options, check_names, obtain

LANGUAGES = ("en", "de")
SOURCE_RELEASE = Source("europarl.tgz", ("https://www.statmt.org/europarl/v7/europarl.tgz",))
FEWEST_SENTENCES = 6
# Documents and pairs of the published split.
EXPECTED = {"valid": (240, 3_587), "test": (360, 5_134)}
# Documents in each of valid and test where they are held out, if not given by --held-out.
HELD_OUT = {"turns": 360, "chapters": 60, "sittings": 15}
LENGTHS_WORDS = (256, 512, 1024, 2048)
# A smaller share of valid and test found in the release means that this is not their text.
FEWEST_FOUND = 0.9
_NOT_LETTER = re.compile(r"[\W_]+")

Pair = tuple[str, str]


def read_documents(prefix: str, languages: Sequence[str]) -> tuple[list[docs.Document], int]:
    """Read files in which a line ``<d>`` opens each document.

    Returns:
        The documents without their pairs that have an empty side, and the number of such pairs.

    Raises:
        PrepError: the boundaries of the two sides differ, or are missing.
    """
    paths = [Path(f"{prefix}.{language}") for language in languages]
    pairs: list[list[Pair]] = []
    empty = 0
    for number, (source, target) in enumerate(cleaning.read_pairs(*paths), 1):
        source = source.strip()
        target = target.strip()
        if (source == docs.DOCUMENT_TAG) != (target == docs.DOCUMENT_TAG):
            raise PrepError(f"{prefix}, line {number:,}: only one side has a line <d>")
        if source == docs.DOCUMENT_TAG:
            pairs.append([])
        elif not pairs:
            raise PrepError(f"{paths[0]}: begins without a line <d>; is it the split's format?")
        elif source and target:
            pairs[-1].append((source, target))
        else:
            empty += 1
    name = Path(prefix).name
    documents = [docs.Document(f"{name}/{n}", tuple(p)) for n, p in enumerate(pairs) if p]
    return documents, empty


def _key(pair: Pair) -> Pair:
    """Return a key of a pair that does not depend on its tokenization."""
    source, target = pair
    return _letters_or_all(source), _letters_or_all(target)


def _letters_or_all(text: str) -> str:
    return _NOT_LETTER.sub("", text.lower()) or text.strip()


def count_held_out(documents: Sequence[docs.Document], held_out: Sequence[docs.Document]) -> int:
    """Return the number of training pairs that are also in valid or test, in any tokenization."""
    held_out_keys = set(map(_key, docs.pairs_of(held_out)))
    return sum(map(held_out_keys.__contains__, map(_key, docs.pairs_of(documents))))


def _sittings(files: list[Path], languages: Sequence[str]) -> Iterator[tuple[Path, Path]]:
    """Yield the files of the same sitting in both languages, by date."""
    sides: list[dict[str, Path]] = []
    for language in languages:
        sides.append({path.name: path for path in files if path.parent.name == language})
    for name in sorted(sides[0].keys() & sides[1].keys()):
        yield sides[0][name], sides[1][name]


def rebuild(arguments: argparse.Namespace) -> list[docs.Document]:
    """Return the documents of the source release.

    Raises:
        PrepError: the archive holds no sitting in both languages.
    """
    archive = obtain(SOURCE_RELEASE, arguments)
    say("unpacking the sittings in English and German")

    def is_of_sitting(name: str) -> bool:
        parts = name.split("/")
        return len(parts) > 1 and parts[-2] in LANGUAGES and parts[-1].startswith("ep-")

    files = extract(archive, arguments.out / "original", is_of_sitting)
    sittings = list(_sittings(files, LANGUAGES))
    if not sittings:
        raise PrepError(f"{archive}: no sitting is there in both languages")
    say(f"aligning {len(sittings):,} files")
    align = partial(align_sitting, unit=arguments.documents)
    documents_of_files = cleaning.parallel_map(align, sittings, arguments.workers, chunk=4)

    def all_documents() -> Iterator[docs.Document]:
        for number, of_file in enumerate(documents_of_files, 1):
            yield from of_file
            if number % 500 == 0:
                say(f"  {number:,} files")

    return [d for d in join_documents(all_documents()) if len(d.pairs) >= FEWEST_SENTENCES]


def describe_lengths(documents: Sequence[docs.Document]) -> str:
    """Return a line with the shares of documents of more than 256, 512, ... English words."""
    counts = []
    for document in documents:
        counts.append(sum(len(source.split()) for source, _ in document.pairs))
    shares = []
    for length in LENGTHS_WORDS:
        share = sum(count > length for count in counts) / max(1, len(counts))
        shares.append(f"{share:.1%} over {length:,}")
    return f"English words of {len(documents):,} documents: {', '.join(shares)}"


def _held_out(arguments: argparse.Namespace) -> dict[str, list[docs.Document]]:
    """Read valid and test if they are given, and print their sizes."""
    sets = {}
    for split, prefix in (("valid", arguments.validpref), ("test", arguments.testpref)):
        if prefix is None:
            continue
        documents, empty = read_documents(prefix, LANGUAGES)
        num_pairs = len(docs.pairs_of(documents))
        expected_documents, expected_pairs = EXPECTED[split]
        strict = arguments.strict
        say(f"  {split}: {empty} pairs left out, one side empty")
        binarize.check_size(split, num_pairs, expected_pairs, strict)
        binarize.check_size(split, len(documents), expected_documents, strict, unit="documents")
        sets[split] = documents
    return sets


def _training_documents(
    arguments: argparse.Namespace, report: dict[str, object]
) -> list[docs.Document]:
    """Read or rebuild the training documents, and say in ``report`` where they are from."""
    if arguments.trainpref is not None:
        documents, empty = read_documents(arguments.trainpref, LANGUAGES)
        report["pairs with an empty side"] = empty
        return documents
    say("NOTE: the training set is rebuilt from the source release; it is not the published one")
    report["source"] = f"Europarl v7 source release, rebuilt; documents are {arguments.documents}"
    return rebuild(arguments)


def _as_published(
    documents: list[docs.Document],
    sets: dict[str, list[docs.Document]],
    report: dict[str, object],
) -> docs.Corpus:
    """Return the published sets, and print the number of pairs in train and another set."""
    pairs = len(docs.pairs_of(documents))
    repeated = count_held_out(documents, [*sets["valid"], *sets["test"]])
    say(f"  train is left as it is; {repeated:,} of its {pairs:,} pairs are also in valid or test")
    report["training pairs also in valid or test"] = repeated
    return docs.Corpus(documents, sets["valid"], sets["test"], {})


def _left_out(
    documents: list[docs.Document], held_out: list[docs.Document], report: dict[str, object]
) -> list[docs.Document]:
    """Return rebuilt training documents without the text of valid and test."""
    remaining, counts = without_held_out(documents, held_out, FEWEST_SENTENCES)
    report["held-out text in the training set"] = counts
    num_found = counts["held-out documents found"]
    say(
        f"  {num_found:,} of the {len(held_out):,} documents of valid and test are in the rebuilt "
        "text"
    )
    if num_found < FEWEST_FOUND * len(held_out):
        say("  NOTE: that is few; are valid and test from Europarl v7?")
    say(
        f"  taken out with them: {counts['pairs left out']:,} pairs; "
        f"{counts['training documents left out']:,} training documents left out, "
        f"{counts['training documents cut']:,} cut"
    )
    repeated = count_held_out(remaining, held_out)
    say(f"  {repeated:,} of the pairs that stay are also in valid or test, by chance")
    report["training pairs also in valid or test"] = repeated
    return remaining


def divide(
    arguments: argparse.Namespace, report: dict[str, object]
) -> tuple[docs.Corpus, list[docs.Document]]:
    """Return the three sets, and the published test set if it is a fourth one."""
    sets = _held_out(arguments)
    train = _training_documents(arguments, report)
    number = arguments.held_out or HELD_OUT[arguments.documents]
    if not sets:
        say("NOTE: no --validpref and --testpref: whole documents are held out")
        return docs.divide(train, number, docs.KEEP_NEAR_COPIES), []
    if arguments.trainpref is not None:
        return _as_published(train, sets, report), []
    held_out = [*sets["valid"], *sets["test"]]
    if arguments.documents == "turns":
        remaining = _left_out(train, held_out, report)
        return docs.Corpus(remaining, sets["valid"], sets["test"], {}), []
    corpus = docs.divide(train, number, docs.KEEP_NEAR_COPIES)
    remaining = _left_out(corpus.train, held_out, report)
    return docs.Corpus(remaining, corpus.valid, corpus.test, {}), sets["test"]


def check_flags(arguments: argparse.Namespace) -> None:
    """Check that the flags go together.

    Raises:
        PrepError: the flags do not go together.
    """
    check_names([SOURCE_RELEASE], arguments)
    if (arguments.validpref is None) != (arguments.testpref is None):
        raise PrepError("give both --validpref and --testpref, or neither")
    if arguments.trainpref is not None and arguments.documents != "turns":
        raise PrepError(
            f"--documents {arguments.documents} needs the source release: the documents of "
            "--trainpref are turns already; leave --trainpref out"
        )


def make_corpus(arguments: argparse.Namespace) -> None:
    """Read or rebuild, clean, write and binarize."""
    check_flags(arguments)
    report: dict[str, object] = {"source": "Europarl v7, split of Maruf et al. (2019)"}
    corpus, test_turns = divide(arguments, report)
    docs.write_corpus(corpus, arguments.out, LANGUAGES, "tag")
    tests = [arguments.out / "test"]
    if test_turns:
        tests.append(arguments.out / "test-turns")
        docs.write_documents(test_turns, tests[-1], LANGUAGES, "tag")
        report["test-turns"] = {
            "documents": len(test_turns),
            "pairs": len(docs.pairs_of(test_turns)),
        }
    docs.report_corpus(corpus, arguments.out, report)
    say(f"  test: {describe_lengths(corpus.test)}")
    steps = ["--tokenizer", "moses", "--document-separator", "tag"]
    steps += ["--subword", "subword-nmt", "--subword-size", arguments.bpe]
    binarize.binarize(arguments, LANGUAGES, steps, tests)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this script."""
    parser = script_parser("europarl_documents.py", __doc__)
    binarize.add_output_options(parser)
    for split in ("train", "valid", "test"):
        parser.add_argument(
            f"--{split}pref",
            metavar="PREFIX",
            help=f"{split} set of the published split: PREFIX.en, PREFIX.de",
        )
    parser.add_argument(
        "--documents",
        choices=UNITS,
        default=UNITS[0],
        help="unit of a document of the release; chapters and sittings are long (default: turns)",
    )
    parser.add_argument(
        "--held-out",
        type=docs.whole_number,
        help="documents in each of valid and test where they are not given, at most a twentieth "
        "of all (default: 360 turns, 60 chapters or 15 sittings)",
    )
    parser.add_argument("--bpe", type=int, default=32_000, help="merges (default: 32000)")
    parser.add_argument("--strict", action="store_true", help="stop if a size is not as expected")
    add_source_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(run_script(make_parser(), make_corpus))
