#!/usr/bin/env python3
"""Make a parallel corpus of documents from the help pages of LibreOffice.

The pages come from the system's own package source: ``apt-get download`` fetches
libreoffice-help-en-us and libreoffice-help-LANG (about 5 MB, MPL-2.0) into a scratch folder and
``dpkg-deb -x`` unpacks them there. Nothing is installed and no root rights are needed. A
paragraph carries the same id on the page of every language, which makes the alignment exact.
Paragraphs are split into sentences where both sides split alike. One page is one document.

    python data_prep/libreoffice_help.py --lang de --out corpus/
    python data_prep/libreoffice_help.py --list-languages

writes train, valid and test (``train.de``, ``train.en``, ...) and ``corpus.json``. Valid and test
are whole pages. Of these, lines that training has seen word for word or nearly so are removed.
"""

import argparse
import dataclasses
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from prep_tools import documents as docs
from prep_tools.command import PrepError, run_script, say, script_parser
from prep_tools.debian_packages import (
    NoPackages,
    download_packages,
    is_unknown,
    known_packages,
    unpack,
)
from prep_tools.html_paragraphs import read_paragraphs
from prep_tools.sentences import split_pair

PACKAGE = "libreoffice-help-{}"
ENGLISH = "en-us"
# The pages of one package are at least this many. Fewer mean that the layout has changed.
FEWEST_PAGES = 100


@dataclasses.dataclass
class Alignment:
    """Documents of aligned sentences, and counts of paragraphs and pairs that were left out."""

    documents: list[docs.Document]
    counts: Counter[str]


# ------------------------------------------------------------------------------ the packages


def download_help(languages: Sequence[str], scratch: Path) -> dict[str, Path]:
    """Fetch the help packages, unless ``scratch`` holds them already.

    Returns:
        The package file of each language.

    Raises:
        NoPackages: apt or the network is missing, or no such language exists.
    """
    names = {language: PACKAGE.format(language) for language in languages}
    try:
        packages = download_packages(list(names.values()), scratch)
    except NoPackages as error:
        hint = "; --list-languages shows the languages" if is_unknown(error) else ""
        raise NoPackages(f"{error}{hint}") from error
    return {language: packages[name] for language, name in names.items()}


def list_languages() -> list[str]:
    """Return the languages that the system's package lists have, apart from English."""
    languages = {name.removeprefix(PACKAGE.format("")) for name in known_packages(PACKAGE[:-2])}
    return sorted(languages - {ENGLISH, "en-gb", "common"})


def unpack_help(package: Path) -> Path:
    """Unpack a help package beside its file and return the folder that its pages are in.

    Raises:
        PrepError: the package holds no help pages where they are expected.
    """
    folder = unpack(package, package.with_suffix(""))
    pages = [path for path in folder.glob("usr/share/libreoffice/help/*/text") if path.is_dir()]
    if len(pages) != 1:
        raise PrepError(
            f"{package}: expected one folder usr/share/libreoffice/help/LANG/text, found "
            f"{len(pages)}; this version of the package is laid out differently"
        )
    return pages[0]


# ----------------------------------------------------------------------------- the alignment


def _by_id(paragraphs: list[tuple[str, str]]) -> dict[tuple[str, int], str]:
    """Return the texts by (id, occurrence), in reading order. Paragraphs may share an id."""
    occurrences: Counter[str] = Counter()
    numbered = {}
    for identifier, text in paragraphs:
        numbered[identifier, occurrences[identifier]] = text
        occurrences[identifier] += 1
    return numbered


def align_page(source_html: str, target_html: str, counts: Counter[str]) -> list[tuple[str, str]]:
    """Return the sentence pairs of a page, in the reading order of the target page.

    Args:
        source_html: the page in the language to translate from.
        target_html: the same page in the language to translate into.
        counts: counts the paragraphs and pairs, used and left out.
    """
    sources = _by_id(read_paragraphs(source_html))
    targets = _by_id(read_paragraphs(target_html))
    pairs: list[tuple[str, str]] = []
    earlier_pairs: set[tuple[str, str]] = set()
    counts["paragraphs without a counterpart"] += len(sources.keys() ^ targets.keys())
    for key, target in targets.items():
        source = sources.get(key)
        if source is None:
            continue
        if source == target:
            counts["paragraphs equal on both sides"] += 1
        elif not any(map(str.isalpha, source)) or not any(map(str.isalpha, target)):
            counts["paragraphs without letters"] += 1
        elif (source, target) in earlier_pairs:
            counts["paragraphs repeated on the page"] += 1
        else:
            earlier_pairs.add((source, target))
            counts["paragraphs"] += 1
            split = split_pair(source, target)
            fresh = [(s, t) for s, t in split if s != t]
            counts["sentences equal on both sides"] += len(split) - len(fresh)
            pairs.extend(fresh)
    return pairs


def align_folders(source_pages: Path, target_pages: Path) -> Alignment:
    """Align all pages that exist in both folders.

    Raises:
        PrepError: hardly any page exists in both.
    """
    names = sorted(str(path.relative_to(target_pages)) for path in target_pages.rglob("*.html"))
    common = [name for name in names if (source_pages / name).is_file()]
    if len(common) < FEWEST_PAGES:
        raise PrepError(
            f"only {len(common)} pages exist in both {source_pages} and {target_pages}, expected "
            f"{FEWEST_PAGES} and more; these packages are laid out differently"
        )
    counts: Counter[str] = Counter()
    documents = []
    for number, name in enumerate(common, 1):
        source = (source_pages / name).read_text("utf-8", errors="replace")
        target = (target_pages / name).read_text("utf-8", errors="replace")
        pairs = align_page(source, target, counts)
        if pairs:
            documents.append(docs.Document(name.removesuffix(".html"), tuple(pairs)))
        if number % 500 == 0:
            say(f"  {number:,} of {len(common):,} pages")
    counts["sentence pairs"] = len(docs.pairs_of(documents))
    return Alignment(documents, counts)


def report_lines(alignment: Alignment) -> Iterator[str]:
    """Yield the lines of a report of the counts."""
    counts = alignment.counts
    yield (
        f"  {counts['paragraphs']:,} paragraphs gave {counts['sentence pairs']:,} sentence pairs "
        f"in {len(alignment.documents):,} documents; left out:"
    )
    for reason, count in sorted(counts.items()):
        if reason not in ("paragraphs", "sentence pairs"):
            yield f"    {count:>7,} {reason}"


# -------------------------------------------------------------------------------- the script


def make_corpus(arguments: argparse.Namespace) -> None:
    """Fetch, align, divide and write."""
    if arguments.list_languages:
        say(" ".join(list_languages()))
        return
    if arguments.out is None:
        raise PrepError("--out FOLDER is needed: where the corpus goes")
    language = arguments.lang.lower()
    scratch = (arguments.scratch or arguments.out / "packages").resolve()
    packages = download_help([language, ENGLISH], scratch)
    source_pages = unpack_help(packages[language])
    target_pages = unpack_help(packages[ENGLISH])
    say(f"aligning the pages in {language} and English")
    alignment = align_folders(source_pages, target_pages)
    for line in report_lines(alignment):
        say(line)
    corpus = docs.divide(
        alignment.documents, arguments.held_out, arguments.near_copy, arguments.seed
    )
    docs.write_corpus(corpus, arguments.out, (language, "en"), arguments.document_separator)
    facts = {
        "source": "LibreOffice help",
        "license": "MPL-2.0",
        "packages": sorted(package.name for package in packages.values()),
        "alignment": dict(alignment.counts),
        "near copies removed": corpus.removed,
    }
    docs.report_corpus(corpus, arguments.out, facts)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this script."""
    parser = script_parser("libreoffice_help.py", __doc__)
    parser.add_argument("--lang", default="de", help="language to translate from (default: de)")
    parser.add_argument("--out", type=Path, help="folder for the corpus")
    parser.add_argument("--scratch", type=Path, help="folder for the packages (OUT/packages)")
    docs.add_division_options(parser, near_copy=0.7)
    docs.add_separator_option(parser)
    parser.add_argument("--list-languages", action="store_true", help="print them and stop")
    return parser


if __name__ == "__main__":
    sys.exit(run_script(make_parser(), make_corpus))
