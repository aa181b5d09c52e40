#!/usr/bin/env python3
r"""Make the News Commentary corpus of documents: articles of Project Syndicate.

    python data_prep/news_commentary.py --lang de --out news
    python data_prep/news_commentary.py --lang fr --version 16 --out news
    python data_prep/news_commentary.py --lang es --out news \
        --archive news-commentary-v18.en-es.tsv.gz

Versions 14 to 18 are one file for each pair of languages (``news-commentary-v18.de-en.tsv.gz``): a
sentence pair a line, the sides divided by a tab, and an empty pair between articles. Versions 9 to
13 are an archive for all languages (``training-parallel-nc-v13.tgz``) with a text file for each
side. The script accepts them if they have the empty lines, and refuses them otherwise, since a
corpus of documents needs boundaries.

An article is one document. Pairs with an empty side are dropped and counted. Valid and test are
whole articles, without sentences that the training text contains word for word (--near-copy).
The source is the other language, the target English. The last step is relu-nmt-preprocess: Moses
tokens, case kept, 32,000 joint BPE merges.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from prep_tools import binarize, cleaning
from prep_tools import documents as docs
from prep_tools.archives import extract
from prep_tools.command import PrepError, run_script, say, script_parser
from prep_tools.sources import Source, add_source_options, check_names, obtain

from relu_nmt.io.text_lines import iterate_lines

ENGLISH = "en"
NEWEST = 18
FIRST_IN_TABLES = 14
# The year's task whose archive holds the version.
TASKS = {9: "wmt14", 10: "wmt15", 11: "wmt16", 12: "wmt17", 13: "wmt18"}
VERSIONS = (*TASKS, *range(FIRST_IN_TABLES, NEWEST + 1))
# Articles have about 40 sentences. A file without boundaries is one huge document.
MOST_PAIRS_ON_AVERAGE = 400
ONE_SIDE = "pairs with an empty side"

Pair = tuple[str, str]


def language_pair(language: str) -> str:
    """Return the name of the pair of languages, in alphabetical order, as in ``de-en``."""
    return "-".join(sorted((language, ENGLISH)))


def source_of(version: int, language: str) -> Source:
    """Return the archive of a version."""
    if version >= FIRST_IN_TABLES:
        name = f"news-commentary-v{version}.{language_pair(language)}.tsv.gz"
        urls = [f"https://data.statmt.org/news-commentary/v{version}/training/{name}"]
        if version == NEWEST:
            urls.insert(0, urls[0].replace(f"/v{version}/", f"/v{version}.1/"))
        return Source(name, tuple(urls))
    name = f"training-parallel-nc-v{version}.tgz"
    task = TASKS[version]
    if version <= 10:
        return Source(name, (f"https://www.statmt.org/{task}/{name}",))
    return Source(name, (f"https://data.statmt.org/{task}/translation-task/{name}",))


def read_table(path: Path, language: str) -> Iterator[Pair]:
    """Yield the pairs of a table (other language, English), and an empty pair between articles.

    Raises:
        PrepError: a line has not two columns.
    """
    english_first = language_pair(language).startswith(f"{ENGLISH}-")
    for number, line in enumerate(iterate_lines(path), 1):
        columns = line.split("\t")
        if not line.strip():
            columns = ["", ""]
        if len(columns) != 2:
            raise PrepError(
                f"{path}, line {number:,}: {len(columns)} columns, expected two divided by a tab"
            )
        if english_first:
            columns.reverse()
        yield columns[0].strip(), columns[1].strip()


def read_articles(pairs: Iterable[Pair], name: str, counts: Counter[str]) -> list[docs.Document]:
    """Divide pairs into documents at the empty pairs.

    Args:
        pairs: source and target sentences.
        name: beginning of the documents' names, to which a number is added.
        counts: counts the dropped pairs.

    Raises:
        PrepError: the pairs have no boundaries.
    """
    articles: list[list[Pair]] = [[]]
    for source, target in pairs:
        if source and target:
            articles[-1].append((source, target))
        elif source or target:
            counts[ONE_SIDE] += 1
        else:
            articles.append([])
    articles = list(filter(None, articles))
    total = sum(map(len, articles))
    if total == 0 or total > MOST_PAIRS_ON_AVERAGE * len(articles):
        raise PrepError(
            f"{name}: {total:,} sentence pairs and {max(0, len(articles) - 1):,} empty lines "
            f"between articles; this file has no document boundaries: take version "
            f"{FIRST_IN_TABLES} to {NEWEST}"
        )
    return [docs.Document(f"{name}/{n}", tuple(article)) for n, article in enumerate(articles)]


def read_version(arguments: argparse.Namespace, counts: Counter[str]) -> list[docs.Document]:
    """Fetch and unpack a version, and return its articles.

    Raises:
        PrepError: it is not there, damaged, of another format, or without boundaries.
    """
    language = arguments.lang
    version = arguments.version
    archive = obtain(source_of(version, language), arguments)
    folder = arguments.out / "original"
    stem = f"news-commentary-v{version}"
    if version >= FIRST_IN_TABLES:
        paths = extract(archive, folder, lambda name: True)
        return read_articles(read_table(paths[0], language), paths[0].name, counts)
    # In the older archives English is the last language of all pairs.
    names = set()
    for pair in (language_pair(language), f"{language}-{ENGLISH}"):
        names |= {f"{stem}.{pair}.{language}", f"{stem}.{pair}.{ENGLISH}"}
    paths = extract(archive, folder, lambda name: name.rsplit("/", 1)[-1] in names)
    by_language = {path.suffix[1:]: path for path in paths}
    if len(by_language) != 2:
        raise PrepError(f"{archive}: holds no text in both '{language}' and English")
    pairs = cleaning.read_pairs(by_language[language], by_language[ENGLISH])
    stripped = ((source.strip(), target.strip()) for source, target in pairs)
    return read_articles(stripped, by_language[language].name, counts)


def make_corpus(arguments: argparse.Namespace) -> None:
    """Fetch, divide, write and binarize."""
    if arguments.lang == ENGLISH:
        raise PrepError("--lang en: give the other language; English is always the target")
    check_names([source_of(arguments.version, arguments.lang)], arguments)
    counts: Counter[str] = Counter()
    documents = read_version(arguments, counts)
    say(f"  {len(documents):,} articles; pairs dropped for an empty side: {counts[ONE_SIDE]:,}")
    corpus = docs.divide(documents, arguments.held_out, arguments.near_copy, arguments.seed)
    languages = (arguments.lang, ENGLISH)
    docs.write_corpus(corpus, arguments.out, languages, arguments.document_separator)
    source = f"News Commentary v{arguments.version}"
    facts = {"source": source, **counts, "copies removed": corpus.removed}
    docs.report_corpus(corpus, arguments.out, facts)
    steps = ["--tokenizer", "moses", "--document-separator", arguments.document_separator]
    steps += ["--subword", "subword-nmt", "--subword-size", arguments.bpe]
    binarize.binarize(arguments, languages, steps)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this script."""
    parser = script_parser("news_commentary.py", __doc__)
    binarize.add_output_options(parser)
    parser.add_argument("--lang", default="de", help="language to translate from (default: de)")
    parser.add_argument(
        "--version",
        type=int,
        choices=VERSIONS,
        default=NEWEST,
        help=f"of the release (default: {NEWEST})",
    )
    parser.add_argument("--bpe", type=int, default=32_000, help="merges (default: 32000)")
    docs.add_division_options(parser, near_copy=1.0)
    docs.add_separator_option(parser)
    add_source_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(run_script(make_parser(), make_corpus))
