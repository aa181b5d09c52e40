#!/usr/bin/env python3
"""Make a parallel corpus of documents from the help pages of LibreOffice.

The pages come from the system's own package source: ``apt-get download`` fetches
libreoffice-help-en-us and libreoffice-help-LANG (about 5 MB, MPL-2.0) into a scratch folder and
``dpkg-deb -x`` unpacks them there; nothing is installed and no root rights are needed. A
paragraph carries the same id on the page of every language, which makes the alignment exact; it
is split into sentences where both sides split alike. One page is one document.

    python data_prep/libreoffice_help.py --lang de --out corpus/
    python data_prep/libreoffice_help.py --list-languages

writes train, valid and test (``train.de``, ``train.en``, ...) and ``corpus.json``. Valid and test
are whole pages; of these, lines that training has seen word for word or nearly so are removed.
"""

import argparse
import dataclasses
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from prep_tools import documents as docs
from prep_tools.command import PrepError, run_script, say
from prep_tools.html_paragraphs import read_paragraphs
from prep_tools.sentences import split_pair

PACKAGE = "libreoffice-help-{}"
ENGLISH = "en-us"
# The pages of one package are at least this many; fewer mean that the layout has changed.
FEWEST_PAGES = 100
TIMEOUT_SECONDS = 240
# Without a network, give up soon: the caller has another corpus.
IMPATIENT = ["-o", "Acquire::Retries=1"]
IMPATIENT += ["-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20"]


class NoPackages(PrepError):
    """The packages cannot be had on this machine: no apt, no network, no such language."""


@dataclasses.dataclass
class Alignment:
    """Documents of aligned sentences, and a count of what was left out and why."""

    documents: list[docs.Document]
    counts: Counter[str]


# ------------------------------------------------------------------------------ the packages


def _run(command: Sequence[str], folder: Path) -> str:
    """Run a program in ``folder`` and return what it printed.

    Raises:
        NoPackages: it is missing, failed, or took too long.
    """
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoPackages(f"{command[0]} does not work here: {error}") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith(("E:", "dpkg"))]
        reason = lines[0] if lines else done.stderr.strip()[-200:]
        raise NoPackages(f"'{' '.join(command[:2])}' failed: {reason}")
    return done.stdout


def _private_state(scratch: Path) -> list[str]:
    """Return the options that make apt keep its package lists in ``scratch``: needs no root."""
    lists, cache = scratch / "apt" / "lists", scratch / "apt" / "cache"
    for folder in (lists / "partial", cache / "archives" / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    return [
        "-o",
        f"Dir::State::lists={lists}",
        "-o",
        f"Dir::Cache={cache}",
        "-o",
        "APT::Sandbox::User=" + ("root" if os.geteuid() == 0 else ""),
    ]


def _is_whole(package: Path) -> bool:
    """Say whether the file is a package that can be read to its end."""
    command = ["dpkg-deb", "--contents", str(package)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def download_packages(languages: Sequence[str], scratch: Path) -> dict[str, Path]:
    """Fetch the help packages, unless ``scratch`` holds them already.

    First with the package lists that the system has; if there are none or they are out of date,
    with fresh ones kept in ``scratch``.

    Returns:
        Language to package file.

    Raises:
        NoPackages: there is no apt, no network, or no such package.
    """
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise NoPackages(
                f"{program} is not installed: this corpus needs a Debian or Ubuntu system"
            )
    scratch.mkdir(parents=True, exist_ok=True)
    found: dict[str, Path] = {}
    for language in languages:
        name = PACKAGE.format(language)
        whole = [path for path in sorted(scratch.glob(f"{name}_*.deb")) if _is_whole(path)]
        if not whole:
            say(f"fetching the package {name}")
            _download(name, scratch)
            whole = [path for path in sorted(scratch.glob(f"{name}_*.deb")) if _is_whole(path)]
        if not whole:
            raise NoPackages(f"apt-get download {name} left no readable package in {scratch}")
        found[language] = whole[-1]
    return found


def _download(name: str, scratch: Path) -> None:
    try:
        _run(["apt-get", "download", name, *IMPATIENT], scratch)
        return
    except NoPackages as error:
        say(f"  {error}; trying again with fresh package lists (about 10 MB)")
    options = [*IMPATIENT, *_private_state(scratch)]
    # By default apt-get update succeeds without a network.
    _run(["apt-get", "update", "-o", "APT::Update::Error-Mode=any", *options], scratch)
    try:
        _run(["apt-get", "download", name, *options], scratch)
    except NoPackages as error:
        hint = "; --list-languages shows the languages" if "locate" in str(error) else ""
        raise NoPackages(f"{error}{hint}") from error


def list_languages() -> list[str]:
    """Return the languages that the system's package lists have, apart from English."""
    names = _run(["apt-cache", "pkgnames", PACKAGE.format("")], Path.cwd()).split()
    languages = {name.removeprefix(PACKAGE.format("")) for name in names}
    return sorted(languages - {ENGLISH, "en-gb", "common"})


def unpack(package: Path, folder: Path) -> Path:
    """Unpack a help package and return the folder that its pages are in.

    Raises:
        PrepError: the package holds no help pages where they are expected.
    """
    if not folder.exists():
        temporary = folder.with_name(folder.name + ".tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        _run(["dpkg-deb", "-x", str(package), str(temporary)], package.parent)
        temporary.rename(folder)
    pages = [path for path in folder.glob("usr/share/libreoffice/help/*/text") if path.is_dir()]
    if len(pages) != 1:
        raise PrepError(
            f"{package}: expected one folder usr/share/libreoffice/help/LANG/text, found "
            f"{len(pages)}; this version of the package is laid out differently"
        )
    return pages[0]


# ----------------------------------------------------------------------------- the alignment


def _by_id(paragraphs: list[tuple[str, str]]) -> dict[tuple[str, int], str]:
    """Number the paragraphs that share an id: (id, occurrence) to text, in reading order."""
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
        counts: is increased by what was used and what was left out.
    """
    sources = _by_id(read_paragraphs(source_html))
    targets = _by_id(read_paragraphs(target_html))
    pairs: list[tuple[str, str]] = []
    seen: set[tuple[str, str]] = set()
    counts["paragraphs without a counterpart"] += len(sources.keys() ^ targets.keys())
    for key, target in targets.items():
        source = sources.get(key)
        if source is None:
            continue
        if source == target:
            counts["paragraphs equal on both sides"] += 1
        elif not any(c.isalpha() for c in source) or not any(c.isalpha() for c in target):
            counts["paragraphs without letters"] += 1
        elif (source, target) in seen:
            counts["paragraphs repeated on the page"] += 1
        else:
            seen.add((source, target))
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
        source, target = (
            (folder / name).read_text("utf-8", errors="replace")
            for folder in (source_pages, target_pages)
        )
        pairs = align_page(source, target, counts)
        if pairs:
            documents.append(docs.Document(name.removesuffix(".html"), tuple(pairs)))
        if number % 500 == 0:
            say(f"  {number:,} of {len(common):,} pages")
    counts["sentence pairs"] = sum(len(document.pairs) for document in documents)
    return Alignment(documents, counts)


def report_lines(alignment: Alignment) -> Iterator[str]:
    """Yield lines that say what was aligned and what was left out."""
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
    packages = download_packages([language, ENGLISH], scratch)
    pages = {name: unpack(package, scratch / package.stem) for name, package in packages.items()}
    say(f"aligning the pages in {language} and English")
    alignment = align_folders(pages[language], pages[ENGLISH])
    for line in report_lines(alignment):
        say(line)
    corpus = docs.divide(
        alignment.documents, arguments.held_out, arguments.near_copy, arguments.seed
    )
    docs.write_corpus(corpus, arguments.out, (language, "en"), arguments.document_separator)
    docs.write_report(
        arguments.out,
        {
            "source": "LibreOffice help",
            "license": "MPL-2.0",
            "packages": sorted(package.name for package in packages.values()),
            "alignment": dict(alignment.counts),
            "near copies removed": corpus.removed,
            **corpus.counts(),
        },
    )
    say(docs.describe(corpus))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this script."""
    parser = argparse.ArgumentParser(
        prog="libreoffice_help.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--lang", default="de", help="language to translate from (default: de)")
    parser.add_argument("--out", type=Path, help="folder for the corpus")
    parser.add_argument("--scratch", type=Path, help="folder for the packages (OUT/packages)")
    docs.add_division_options(parser, near_copy=0.7)
    docs.add_separator_option(parser)
    parser.add_argument("--list-languages", action="store_true", help="print them and stop")
    return parser


if __name__ == "__main__":
    sys.exit(run_script(make_parser(), make_corpus))
