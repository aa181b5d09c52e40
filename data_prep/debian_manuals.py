#!/usr/bin/env python3
"""Make a parallel corpus of documents from the manuals in the packages of Debian.

The packages come from the system's own package source: ``apt-get download`` fetches them into a
scratch folder and ``dpkg-deb -x`` unpacks them there. Nothing is installed and no root rights are
needed. One page or chapter is one document. The source is the translation, the target English.

    python data_prep/debian_manuals.py --lang de --out manuals
    python data_prep/debian_manuals.py --lang fr --out manuals --source man --source gimp-help

Sources, with the size of the German download:

    libreoffice-help      help pages, aligned by the ids of paragraphs              5 MB
    man                   manual pages of manpages-LANG, with their originals      58 MB
    gimp-help             user manual of GIMP                                     102 MB
    debian-reference      Debian Reference                                          4 MB
    debian-handbook       The Debian Administrator's Handbook                      35 MB
    gnome-user-docs       help of GNOME                                             9 MB
    lilypond              manuals of LilyPond                                       8 MB
    developers-reference  Debian Developer's Reference                              2 MB
    installation-guide    Debian installation guide                                18 MB
    debian-edu            manual of Debian Edu                                     24 MB

All but the first are aligned by structure. A translation with the same sequence of headings,
paragraphs, list items, ... as the original corresponds block by block. Other parts are left out.
The script also leaves out blocks that were not translated, whose lengths differ too much, whose
numbers, options or identifiers differ, or that an earlier page had. It splits blocks into sentences
if both sides have the same number of sentences.

Valid and test are whole documents, without lines that the training text contains word for word or
nearly so. The last step is relu-nmt-preprocess. A source without packages for the language is
left out with a note, unless --source names it.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

import libreoffice_help
from prep_tools import binarize
from prep_tools import documents as docs
from prep_tools.command import PrepError, run_script, say, script_parser
from prep_tools.debian_packages import NoPackages, download_packages, is_unknown, unpack
from prep_tools.manual_sources import MANUALS, Manual, NoPages, align_manual

LIBREOFFICE = "libreoffice-help"
SOURCES = (LIBREOFFICE, *(manual.name for manual in MANUALS))
# Languages whose words are not separated by spaces: Moses cannot tokenize them.
WITHOUT_SPACES = frozenset(("bo", "dz", "ja", "km", "ko", "lo", "my", "th", "zh"))


def libreoffice_documents(
    language: str, scratch: Path, counts: Counter[str]
) -> list[docs.Document]:
    """Return the help pages of LibreOffice.

    Raises:
        PrepError: no page exists in this language.
    """
    packages = libreoffice_help.download_help([language, libreoffice_help.ENGLISH], scratch)
    source_pages = libreoffice_help.unpack_help(packages[language])
    target_pages = libreoffice_help.unpack_help(packages[libreoffice_help.ENGLISH])
    corpus = libreoffice_help.align_folders(source_pages, target_pages)
    counts.update(corpus.counts)
    counts["documents"] = len(corpus.documents)
    counts["pairs"] = counts.pop("sentence pairs")
    return [docs.Document(f"{LIBREOFFICE}/{d.name}", d.pairs) for d in corpus.documents]


def manual_documents(
    manual: Manual, language: str, scratch: Path, counts: Counter[str]
) -> list[docs.Document]:
    """Return the pages of a manual.

    Raises:
        PrepError: no page exists in this language.
    """
    names = [name.format(lang=language) for name in manual.packages]
    optional = [name.format(lang=language) for name in manual.optional]
    packages = download_packages(names, scratch, optional)
    roots = [unpack(package, scratch / package.stem) for package in packages.values()]
    return list(align_manual(manual, roots, language, counts))


def collect(
    sources: list[str], language: str, scratch: Path, required: bool
) -> tuple[list[docs.Document], dict[str, dict[str, int]]]:
    """Return the documents of all sources, and the counts of each source.

    Args:
        sources: their names.
        language: language of the translations.
        scratch: folder for the packages.
        required: a source that does not exist in this language is an error.

    Raises:
        PrepError: no packages exist, or no source has pages in this language.
    """
    manuals = {manual.name: manual for manual in MANUALS}
    documents: list[docs.Document] = []
    report: dict[str, dict[str, int]] = {}
    for source in sources:
        say(f"{source}:")
        counts: Counter[str] = Counter()
        try:
            if source == LIBREOFFICE:
                new_documents = libreoffice_documents(language, scratch, counts)
            else:
                new_documents = manual_documents(manuals[source], language, scratch, counts)
        except (NoPackages, NoPages) as error:
            if required or (isinstance(error, NoPackages) and not is_unknown(error)):
                raise
            say(f"  NOTE: left out, there is none in '{language}'")
            continue
        say(f"  {counts['pairs']:,} sentence pairs in {counts['documents']:,} documents; besides:")
        for reason, count in sorted(counts.items()):
            if reason not in ("pairs", "documents"):
                say(f"    {count:>7,} {reason}")
        documents.extend(new_documents)
        report[source] = dict(sorted(counts.items()))
    if not documents:
        raise PrepError(f"no manual is there in '{language}'; another --lang?")
    return documents, report


def licenses(sources: dict[str, dict[str, int]]) -> dict[str, str]:
    """Return the license of each source that was used."""
    licenses_of_all = {LIBREOFFICE: "MPL-2.0"}
    for manual in MANUALS:
        licenses_of_all[manual.name] = manual.license
    return {source: licenses_of_all[source] for source in sources}


def make_corpus(arguments: argparse.Namespace) -> None:
    """Fetch, align, divide, write and binarize."""
    language = arguments.lang
    sources = [name for name in SOURCES if name in (arguments.source or SOURCES)]
    scratch = (arguments.scratch or arguments.out / "packages").resolve()
    documents, report = collect(sources, language, scratch, required=bool(arguments.source))
    say("dividing into train, valid and test")
    corpus = docs.divide(documents, arguments.held_out, arguments.near_copy, arguments.seed)
    docs.write_corpus(corpus, arguments.out, (language, "en"), arguments.document_separator)
    facts = {
        "source": "manuals in packages of Debian",
        "licenses": licenses(report),
        "sources": report,
        "near copies removed": corpus.removed,
    }
    docs.report_corpus(corpus, arguments.out, facts)
    if not corpus.train:
        raise PrepError(
            f"only {len(documents)} documents: too few to hold out whole ones for valid and test; "
            "take more sources"
        )
    tokenizer = "moses"
    subword = "subword-nmt"
    if language.lower().replace("_", "-").split("-")[0] in WITHOUT_SPACES:
        tokenizer = "none"
        subword = "sentencepiece"
    steps = ["--document-separator", arguments.document_separator, "--tokenizer", tokenizer]
    steps += ["--subword", subword, "--subword-size", arguments.bpe]
    binarize.binarize(arguments, (language, "en"), steps)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this script."""
    parser = script_parser("debian_manuals.py", __doc__)
    binarize.add_output_options(parser)
    parser.add_argument("--lang", default="de", help="language to translate from (default: de)")
    parser.add_argument(
        "--source",
        action="append",
        choices=SOURCES,
        metavar="NAME",
        help="only this one of the sources above; may be given several times (default: all)",
    )
    parser.add_argument("--scratch", type=Path, help="folder for the packages (OUT/packages)")
    parser.add_argument("--bpe", type=int, default=12_000, help="merges (default: 12000)")
    docs.add_division_options(parser, near_copy=0.7)
    docs.add_separator_option(parser)
    return parser


if __name__ == "__main__":
    sys.exit(run_script(make_parser(), make_corpus))
