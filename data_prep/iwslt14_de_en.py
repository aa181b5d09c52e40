#!/usr/bin/env python3
"""Make the IWSLT14 German-English corpus: 160,239 / 7,283 / 6,750 sentence pairs.

    python data_prep/iwslt14_de_en.py --out iwslt14
    python data_prep/iwslt14_de_en.py --out iwslt14 --archive de-en.tgz

The steps of the usual recipe, in its order: tags are removed from the training text. Pairs of 1 to
175 Moses tokens and a length ratio of at most 1.5 are kept. Every 23rd pair becomes valid. Test
joins dev2010, TEDX.dev2012, tst2010, tst2011 and tst2012. The files hold raw text. The last step,
relu-nmt-preprocess, tokenizes, lower-cases and learns 10,000 joint BPE merges on the training text.

Reference: the sizes are commonly reported for this recipe with the Perl tokenizer. The Python
tokenizer may give a few pairs more or fewer. The script then prints a note, or stops with --strict.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from prep_tools import binarize, cleaning
from prep_tools.archives import extract
from prep_tools.command import PrepError, run_script, say, script_parser
from prep_tools.documents import write_report
from prep_tools.sources import Source, add_source_options, check_names, obtain

from relu_nmt.io.text_lines import iterate_lines, write_lines

LANGUAGES = ("de", "en")
ARCHIVE = Source(
    "de-en.tgz",
    (
        "https://wit3.fbk.eu/archive/2014-01/texts/de/en/de-en.tgz",
        "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",
    ),
)
DROPPED_TAGS = ("<url>", "<talkid>", "<keywords>")
STRIPPED_TAGS = ("<title>", "</title>", "<description>", "</description>")
TEST_SETS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
VALID_EVERY = 23
# Sizes that the recipe is known to give, by the longest side in tokens.
EXPECTED = {175: {"train": 160_239, "valid": 7_283}}
EXPECTED_TEST = {True: 6_750, False: 5_585}

Pair = tuple[str, str]


def training_lines(path: Path) -> Iterator[str]:
    """Yield the sentences of a training file, titles and descriptions included."""
    for line in iterate_lines(path):
        if any(tag in line for tag in DROPPED_TAGS):
            continue
        for tag in STRIPPED_TAGS:
            line = line.replace(tag, "")
        yield line.strip()


def training_pairs(folder: Path) -> list[Pair]:
    """Return the sentence pairs of the training files.

    Raises:
        PrepError: the two sides have different numbers of sentences.
    """
    sides = [list(training_lines(folder / f"train.tags.de-en.{lang}")) for lang in LANGUAGES]
    if len(sides[0]) != len(sides[1]):
        raise PrepError(
            f"{folder}/train.tags.de-en: {len(sides[0]):,} German but {len(sides[1]):,} English "
            "sentences; the archive is damaged"
        )
    return list(zip(*sides, strict=True))


def test_pairs(folder: Path, with_tedx: bool) -> list[Pair]:
    """Return the sentence pairs of the test sets, joined.

    Raises:
        PrepError: the two sides of a set have different numbers of sentences.
    """
    pairs: list[Pair] = []
    for name in TEST_SETS:
        if name.startswith("TEDX") and not with_tedx:
            continue
        files = [folder / f"IWSLT14.{name}.de-en.{lang}.xml" for lang in LANGUAGES]
        source, target = map(cleaning.segments, files)
        if len(source) != len(target) or not source:
            raise PrepError(
                f"{files[0]}: {len(source):,} segments, {files[1].name} has {len(target):,}"
            )
        pairs.extend(zip(source, target, strict=True))
    return pairs


def token_counts(pair: Pair) -> tuple[int, int]:
    """Return the numbers of Moses tokens of both sides."""
    source, target = map(cleaning.tokenize, pair, LANGUAGES)
    return len(source), len(target)


def clean(pairs: list[Pair], longest: int, workers: int) -> tuple[list[Pair], Counter[str]]:
    """Return the pairs of suitable length, and a count of the reasons for all other pairs."""
    lengths = cleaning.LengthFilter(longest)
    suitable = []
    dropped = Counter[str]()
    counts = cleaning.parallel_map(token_counts, pairs, workers)
    for number, (pair, (source, target)) in enumerate(zip(pairs, counts, strict=True), 1):
        reason = lengths.reason_to_drop(source, target)
        if reason:
            dropped[reason] += 1
        else:
            suitable.append(pair)
        if number % 40_000 == 0:
            say(f"  {number:,} of {len(pairs):,} pairs")
    return suitable, dropped


def make_corpus(arguments: argparse.Namespace) -> None:
    """Fetch, clean, divide, write and binarize."""
    check_names([ARCHIVE], arguments)
    archive = obtain(ARCHIVE, arguments)
    files = extract(archive, arguments.out / "original", lambda name: name.startswith("de-en/"))
    folder = next((path.parent for path in files if path.name.startswith("train.tags")), None)
    if folder is None:
        raise PrepError(f"{archive}: holds no de-en/train.tags.de-en.de")
    say("tokenizing to measure lengths")
    pairs, dropped = clean(training_pairs(folder), arguments.max_length, arguments.workers)
    say(f"  {len(pairs):,} pairs kept; dropped: {dict(sorted(dropped.items()))}")
    splits = {
        "train": [pair for number, pair in enumerate(pairs, 1) if number % VALID_EVERY],
        "valid": pairs[VALID_EVERY - 1 :: VALID_EVERY],
        "test": test_pairs(folder, arguments.tedx),
    }
    for split, pairs in splits.items():
        for side, language in enumerate(LANGUAGES):
            write_lines(arguments.out / f"{split}.{language}", (pair[side] for pair in pairs))
    report: dict[str, object] = {"source": "IWSLT14", "dropped": dict(dropped)}
    expected = {**EXPECTED.get(arguments.max_length, {}), "test": EXPECTED_TEST[arguments.tedx]}
    for split, pairs in splits.items():
        report[split] = len(pairs)
        if split in expected:
            binarize.check_size(split, len(pairs), expected[split], arguments.strict)
        else:
            say(f"  {split}: {len(pairs):,} sentence pairs")
    write_report(arguments.out, report)
    steps = ["--tokenizer", "moses", "--lowercase"]
    steps += ["--subword", "subword-nmt", "--subword-size", arguments.bpe]
    binarize.binarize(arguments, LANGUAGES, steps)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this script."""
    parser = script_parser("iwslt14_de_en.py", __doc__)
    binarize.add_output_options(parser)
    parser.add_argument(
        "--max-length",
        type=int,
        default=175,
        metavar="TOKENS",
        help="longest side of a training pair; older work has 50 (default: 175)",
    )
    parser.add_argument(
        "--tedx",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="TEDX.dev2012 is part of the test set: 6,750 pairs, without it 5,585",
    )
    parser.add_argument("--bpe", type=int, default=10_000, help="merges (default: 10000)")
    parser.add_argument("--strict", action="store_true", help="stop if a size is not as expected")
    add_source_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(run_script(make_parser(), make_corpus))
