#!/usr/bin/env python3
"""Make the WMT14 English-German corpus: about 4.5 million pairs, newstest2013, newstest2014.

    python data_prep/wmt14_en_de.py --out wmt14
    python data_prep/wmt14_en_de.py --out wmt14 --archive training-parallel-europarl-v7.tgz ...

The script follows the usual recipe. It joins Europarl v7, Common Crawl and News Commentary,
normalizes punctuation, removes non-printing characters, makes Moses tokens with hyphens split, and
learns joint BPE (32,000 merges) on all text. It keeps pairs of 1 to 250 BPE tokens and a length
ratio of at most 1.5. Valid is newstest2013 (3,000 pairs), test newstest2014 (3,003). Case is kept.
The files hold raw text and ``bpe.codes``, which relu-nmt-preprocess applies.

An interrupted run continues with the step in which it stopped.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from prep_tools import binarize, cleaning
from prep_tools.archives import extract
from prep_tools.command import PrepError, run_script, say, script_parser
from prep_tools.documents import write_report
from prep_tools.sources import Source, add_source_options, check_names, obtain

from relu_nmt.io.text_lines import encode_lines, iterate_lines, write_lines

LANGUAGES = ("en", "de")
EUROPARL = Source(
    "training-parallel-europarl-v7.tgz",
    ("https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",),
)
COMMON_CRAWL = Source(
    "training-parallel-commoncrawl.tgz",
    ("https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",),
)
NEWS_COMMENTARY = {
    9: Source(
        "training-parallel-nc-v9.tgz",
        ("https://www.statmt.org/wmt14/training-parallel-nc-v9.tgz",),
    ),
    12: Source(
        "training-parallel-nc-v12.tgz",
        ("https://data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz",),
    ),
}
DEVELOPMENT = Source("dev.tgz", ("https://data.statmt.org/wmt17/translation-task/dev.tgz",))
TEST = Source("test-full.tgz", ("https://www.statmt.org/wmt14/test-full.tgz",))
EXPECTED = {"valid": 3_000, "test": 3_003}
REPORT_PAIRS = 250_000

Pair = tuple[str, str]
Prepared = tuple[Pair, Pair]


def _take(source: Source, names: tuple[str, ...], arguments: argparse.Namespace) -> list[Path]:
    """Extract the files of these names (their last parts) from an archive, in this order.

    Raises:
        PrepError: the archive lacks one of the files.
    """
    archive = obtain(source, arguments)
    paths = extract(
        archive, arguments.out / "original", lambda name: name.rsplit("/", 1)[-1] in names
    )
    by_name = {path.name: path for path in paths}
    for name in names:
        if name not in by_name:
            raise PrepError(f"{archive}: holds no {name}")
    return [by_name[name] for name in names]


def training_files(arguments: argparse.Namespace) -> list[tuple[Path, Path]]:
    """Return the English and German files of the training corpora."""
    version = arguments.news_commentary
    pairs = []
    for source, stem in (
        (EUROPARL, "europarl-v7.de-en"),
        (COMMON_CRAWL, "commoncrawl.de-en"),
        (NEWS_COMMENTARY[version], f"news-commentary-v{version}.de-en"),
    ):
        english, german = _take(source, (f"{stem}.en", f"{stem}.de"), arguments)
        pairs.append((english, german))
    return pairs


def held_out(arguments: argparse.Namespace) -> dict[str, list[Pair]]:
    """Return the pairs of valid (newstest2013) and test (newstest2014).

    Raises:
        PrepError: the two sides of the test set have different numbers of segments.
    """
    english, german = _take(DEVELOPMENT, ("newstest2013.en", "newstest2013.de"), arguments)
    valid = list(cleaning.read_pairs(english, german))
    files = _take(TEST, ("newstest2014-deen-src.en.sgm", "newstest2014-deen-ref.de.sgm"), arguments)
    sources, targets = map(cleaning.segments, files)
    if len(sources) != len(targets):
        raise PrepError(f"{files[0]}: {len(sources):,} segments, {files[1]}: {len(targets):,}")
    return {"valid": valid, "test": list(zip(sources, targets, strict=True))}


def prepare(pair: Pair) -> Prepared:
    """Return a pair with its punctuation normalized, and its tokens joined by spaces."""
    english, german = map(cleaning.normalize, pair, LANGUAGES)
    english_tokens = cleaning.tokenize(english, "en", aggressive=True)
    german_tokens = cleaning.tokenize(german, "de", aggressive=True)
    return (english, german), (" ".join(english_tokens), " ".join(german_tokens))


def _paths(folder: Path, name: str) -> list[Path]:
    return [folder / f"{name}.{language}" for language in LANGUAGES]


def write_pairs(paths: list[Path], pairs: Iterable[tuple[str, ...]]) -> int:
    """Write both sides of the pairs, and return their number. The files appear when complete."""
    parts = [path.with_name(path.name + ".part") for path in paths]
    count = 0
    with ExitStack() as stack:
        files = [stack.enter_context(open(part, "wb")) for part in parts]
        for pair in pairs:
            count += 1
            for file, text in zip(files, pair, strict=True):
                file.write(encode_lines([text], count))
    for part, path in zip(parts, paths, strict=True):
        part.replace(path)
    return count


def normalize_all(corpora: list[tuple[Path, Path]], folder: Path, workers: int) -> None:
    """Write ``normal.*`` and ``tokens.*``, all corpora joined. Skip if they are there."""
    outputs = [*_paths(folder, "normal"), *_paths(folder, "tokens")]
    if all(map(Path.is_file, outputs)):
        say("normalized and tokenized before; skipped")
        return
    say("normalizing and tokenizing")

    def pairs() -> Iterable[Pair]:
        for english, german in corpora:
            yield from cleaning.read_pairs(english, german)

    def rows() -> Iterable[tuple[str, ...]]:
        prepared = cleaning.parallel_map(prepare, pairs(), workers)
        for number, (normal, tokens) in enumerate(prepared, 1):
            if number % REPORT_PAIRS == 0:
                say(f"  {number:,} pairs")
            yield (*normal, *tokens)

    write_pairs(outputs, rows())


def learn_codes(folder: Path, merges: int) -> Path:
    """Learn joint BPE on the tokenized text. Skip if the codes are there.

    Returns:
        The codes, in the format of subword-nmt.
    """
    path = folder / f"bpe.{merges}.codes"
    if path.is_file():
        say("BPE learned before; skipped")
        return path
    from subword_nmt.learn_bpe import learn_bpe

    words: Counter[str] = Counter()
    for side in _paths(folder, "tokens"):
        for line in iterate_lines(side):
            words.update(line.split())
    say(f"learning {merges:,} merges on {len(words):,} different words")
    part = path.with_name(path.name + ".part")
    with open(part, "w", encoding="utf-8", newline="\n") as file:
        entries = [f"{word} {count}" for word, count in words.items()]
        learn_bpe(entries, file, merges, is_dict=True)
    part.replace(path)
    return path


class PieceCounter:
    """Counts the BPE tokens of tokenized lines.

    Args:
        codes: file of subword-nmt.
    """

    def __init__(self, codes: Path) -> None:
        from subword_nmt.apply_bpe import BPE

        with open(codes, encoding="utf-8", newline="\n") as file:
            self._bpe = BPE(file)
        self._pieces: dict[str, int] = {}

    def __call__(self, line: str) -> int:
        """Return the number of BPE tokens."""
        total = 0
        for word in line.split():
            pieces = self._pieces.get(word)
            if pieces is None:
                pieces = self._pieces[word] = len(self._bpe.segment_tokens([word]))
            total += pieces
        return total


def filter_by_length(folder: Path, out: Path, codes: Path, longest: int) -> dict[str, int]:
    """Write ``train.*``: the normalized pairs whose BPE lengths suit. Return the counts."""
    say("dropping pairs by their lengths in BPE tokens")
    count_pieces = PieceCounter(codes)
    lengths = cleaning.LengthFilter(longest)
    dropped: Counter[str] = Counter()

    def kept_pairs() -> Iterable[Pair]:
        normal = cleaning.read_pairs(*_paths(folder, "normal"))
        tokens = cleaning.read_pairs(*_paths(folder, "tokens"))
        for pair, (source, target) in zip(normal, tokens, strict=True):
            reason = lengths.reason_to_drop(count_pieces(source), count_pieces(target))
            if reason:
                dropped[reason] += 1
            else:
                yield pair

    num_pairs = write_pairs(_paths(out, "train"), kept_pairs())
    say(f"  {num_pairs:,} pairs kept; dropped: {dict(sorted(dropped.items()))}")
    counts = {"train": num_pairs}
    for reason, count in dropped.items():
        counts[f"dropped: {reason}"] = count
    return counts


def make_corpus(arguments: argparse.Namespace) -> None:
    """Fetch, normalize, learn BPE, filter, write and binarize."""
    sources = [EUROPARL, COMMON_CRAWL, NEWS_COMMENTARY[arguments.news_commentary]]
    check_names([*sources, DEVELOPMENT, TEST], arguments)
    corpora = training_files(arguments)
    sets = held_out(arguments)
    work = arguments.out / f"steps-nc{arguments.news_commentary}"
    work.mkdir(parents=True, exist_ok=True)
    normalize_all(corpora, work, arguments.workers)
    codes = learn_codes(work, arguments.bpe)
    report: dict[str, object] = {
        "source": f"WMT14 with News Commentary v{arguments.news_commentary}",
        "BPE merges": arguments.bpe,
        **filter_by_length(work, arguments.out, codes, arguments.max_length),
    }
    for split, pairs in sets.items():
        for side, path in enumerate(_paths(arguments.out, split)):
            write_lines(path, (pair[side] for pair in pairs))
        binarize.check_size(split, len(pairs), EXPECTED[split], arguments.strict)
        report[split] = len(pairs)
    write_report(arguments.out, report)
    steps = ["--tokenizer", "moses-aggressive", "--subword", "subword-nmt"]
    binarize.binarize(arguments, LANGUAGES, [*steps, "--subword-model", codes])


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this script."""
    parser = script_parser("wmt14_en_de.py", __doc__)
    binarize.add_output_options(parser)
    parser.add_argument(
        "--news-commentary",
        type=int,
        choices=sorted(NEWS_COMMENTARY),
        default=9,
        help="version: 9 is WMT14's own, many recipes take 12 (default: 9)",
    )
    parser.add_argument(
        "--bpe", type=int, default=32_000, help="merges; another usual choice: 40000 (32000)"
    )
    parser.add_argument(
        "--max-length",
        type=int,
        default=250,
        metavar="TOKENS",
        help="longest side of a training pair in BPE tokens (default: 250)",
    )
    parser.add_argument("--strict", action="store_true", help="stop if a size is not as expected")
    add_source_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(run_script(make_parser(), make_corpus))
