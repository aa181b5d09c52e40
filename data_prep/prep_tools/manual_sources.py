"""The manuals in the packages of Debian, and the alignment of their pages.

Each entry of :data:`MANUALS` names the packages of the original and the translation, the places of
their pages, and the reader of a page. ``{lang}`` stands for the language.
"""

import dataclasses
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from prep_tools.blocks import Block, align_blocks
from prep_tools.command import PrepError
from prep_tools.documents import Document
from prep_tools.html_blocks import read_html, read_mallard
from prep_tools.man_pages import read_man, without_translators
from prep_tools.pair_checks import lengths_differ, reason_to_drop
from prep_tools.sentences import split_pair

Align = Callable[[str, str, Counter[str]], list[tuple[str, str]]]
Reader = Callable[[str], list[Block]]


class NoPages(PrepError):
    """A manual does not exist in a language."""


@dataclasses.dataclass(frozen=True)
class Manual:
    """A manual, or a collection of pages, in several languages.

    Attributes:
        name: name in ``--source`` and in the names of documents.
        packages: names of the packages of translation and original, ``{lang}`` for the language.
        english: pattern of the original's pages below the packages' root.
        translated: pattern of the translation's pages. In both, the part of a path that matches
            ``*``, without ``{lang}`` and ``**``, identifies the page.
        align: reads both sides of a page and returns the texts that correspond.
        license: license of the texts.
        optional: packages that some releases lack. Their pages are then missing.
        left_out: pattern of pages that repeat others.
    """

    name: str
    packages: tuple[str, ...]
    english: tuple[str, str]
    translated: tuple[str, str]
    align: Align
    license: str
    optional: tuple[str, ...] = ()
    left_out: str = r"(?!)"


def _aligner(reader: Reader) -> Align:
    def align(source: str, target: str, counts: Counter[str]) -> list[tuple[str, str]]:
        return align_blocks(reader(source), reader(target), counts)

    return align


def _align_man(source: str, target: str, counts: Counter[str]) -> list[tuple[str, str]]:
    translation, original = without_translators(read_man(source), read_man(target))
    return align_blocks(translation, original, counts)


_MAN_ORIGINALS = (
    "manpages manpages-dev systemd systemd-container systemd-boot systemd-coredump "
    "systemd-homed systemd-journal-remote systemd-oomd systemd-resolved systemd-sysv "
    "systemd-timesyncd udev libnss-systemd libnss-resolve libnss-mymachines libnss-myhostname "
    "libpam-systemd util-linux util-linux-extra mount bsdutils bsdextrautils fdisk eject "
    "uuid-runtime uuid-dev libblkid-dev coreutils mtools grub-common grub2-common gettext "
    "gettext-base kbd gzip bzip2 zstd tar cpio dosfstools e2fsprogs btrfs-progs parted recutils "
    "texinfo info install-info vorbis-tools nfs-common nfs-kernel-server sysvinit-core "
    "init-system-helpers hostname less grep sed ed diffutils wdiff findutils groff groff-base "
    "iptables kmod cron usbutils ncurses-bin make locales libc-bin bash exif openssh-client "
    "openssh-server sane-utils libsane-common nano mutt sysstat procps psmisc net-tools passwd "
    "login iproute2 cryptsetup-bin gnupg"
)
_GNOME_LICENSE = "CC-BY-SA-3.0"

MANUALS = (
    Manual(
        name="man",
        packages=("manpages-{lang}",),
        optional=("manpages-{lang}-dev", *_MAN_ORIGINALS.split()),
        english=("usr/share/man", "man*/*.gz"),
        translated=("usr/share/man/{lang}", "man*/*.gz"),
        align=_align_man,
        license="GPL-3+ (translations); originals under free licenses of their own",
    ),
    Manual(
        name="gimp-help",
        packages=("gimp-help-{lang}", "gimp-help-en"),
        english=("usr/share/gimp/2.0/help/en", "*.html"),
        translated=("usr/share/gimp/2.0/help/{lang}", "*.html"),
        align=_aligner(read_html),
        license="GFDL-1.2+",
    ),
    Manual(
        name="debian-reference",
        packages=("debian-reference-{lang}", "debian-reference-en"),
        english=("usr/share/debian-reference", "*.en.html"),
        translated=("usr/share/debian-reference", "*.{lang}.html"),
        align=_aligner(read_html),
        license="GPL-2+",
        left_out=r"index",
    ),
    Manual(
        name="debian-handbook",
        packages=("debian-handbook",),
        english=("usr/share/doc/debian-handbook/html/en-US", "*.html"),
        translated=("usr/share/doc/debian-handbook/html/{lang}-*", "*.html"),
        align=_aligner(read_html),
        license="CC-BY-SA-3.0 or GPL-2+",
        left_out=r"index|ix01",
    ),
    Manual(
        name="gnome-user-docs",
        packages=("gnome-user-docs",),
        english=("usr/share/help/C", "*/*.page"),
        translated=("usr/share/help/{lang}", "*/*.page"),
        align=_aligner(read_mallard),
        license=_GNOME_LICENSE,
    ),
    Manual(
        name="lilypond",
        packages=("lilypond-doc-html-{lang}", "lilypond-doc-html"),
        english=("usr/share/doc/lilypond/html/Documentation", "*/*.html"),
        translated=("usr/share/doc/lilypond/html/Documentation", "*/*.{lang}.html"),
        align=_aligner(read_html),
        license="GFDL-1.3+",
        left_out=r".*-big-page|.*/index.*_(toc|abt)",
    ),
    Manual(
        name="developers-reference",
        packages=("developers-reference-{lang}", "developers-reference"),
        english=("usr/share/developers-reference", "*.html"),
        translated=("usr/share/developers-reference/{lang}", "*.html"),
        align=_aligner(read_html),
        license="GPL-2+",
        left_out=r"index|search|developers-reference",
    ),
    Manual(
        name="installation-guide",
        packages=("installation-guide-amd64",),
        english=("usr/share/doc/installation-guide-amd64/en", "*.html"),
        translated=("usr/share/doc/installation-guide-amd64/{lang}", "*.html"),
        align=_aligner(read_html),
        license="GPL-2",
        left_out=r"index",
    ),
    Manual(
        name="debian-edu",
        packages=("debian-edu-doc-{lang}", "debian-edu-doc-en"),
        english=("usr/share/doc/debian-edu-doc-en", "*-manual.html"),
        translated=("usr/share/doc/debian-edu-doc-{lang}", "*-manual.html"),
        align=_aligner(read_html),
        license="GPL-2+",
    ),
)


def _pages(roots: list[Path], location: tuple[str, str], language: str) -> dict[str, Path]:
    """Return the file of each page of one side, by the name that both sides share."""
    folder, pattern = (part.format(lang=language) for part in location)
    ending = re.sub(r"^.*\*", "", pattern)
    pages: dict[str, Path] = {}
    for root in roots:
        for base in sorted(root.glob(folder)):
            for path in sorted(base.glob(pattern)):
                pages.setdefault(str(path.relative_to(base)).removesuffix(ending), path)
    return pages


def _read(path: Path) -> str:
    """Return the text of a page.

    Raises:
        PrepError: a compressed page is damaged.
    """
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error) as error:
        raise PrepError(f"{path}: {error}; remove the folder of its package") from error


def page_pairs(manual: Manual, roots: list[Path], language: str) -> list[tuple[str, Path, Path]]:
    """Return the pages that both languages have: name, translation and original.

    Links to other pages of the collection are left out.

    Args:
        manual: the manual.
        roots: the folders of its unpacked packages.
        language: language of the translation.

    Raises:
        NoPages: no page exists in both languages.
    """
    originals = _pages(roots, manual.english, "en")
    translations = _pages(roots, manual.translated, language)
    left_out = re.compile(manual.left_out)
    pairs = []
    for name in sorted(translations.keys() & originals.keys()):
        page = (name, translations[name], originals[name])
        is_link = translations[name].is_symlink() or originals[name].is_symlink()
        if not is_link and not left_out.fullmatch(name):
            pairs.append(page)
    if not pairs:
        raise NoPages(
            f"{manual.name}: no page exists both in '{language}' and in English; it is "
            "not translated, or the packages are laid out differently"
        )
    return pairs


def _sentences(source: str, target: str) -> Iterator[tuple[str, str]]:
    """Yield the sentences of a block, or the block if its sentences do not correspond."""
    split = split_pair(source, target)
    if any(lengths_differ(*pair) for pair in split):
        yield source, target
    else:
        yield from (pair for pair in split if pair[0] != pair[1])


def align_manual(
    manual: Manual, roots: list[Path], language: str, counts: Counter[str]
) -> Iterator[Document]:
    """Yield the pages of a manual as documents of sentence pairs (translation, original).

    Pairs of earlier pages are left out: headings, notices, options of many commands.

    Args:
        manual: the manual.
        roots: the folders that its packages were unpacked in.
        language: of the translation.
        counts: counts the blocks and pairs, used and left out.

    Raises:
        NoPages: no page exists in this language.
        PrepError: a page is damaged.
    """
    earlier: set[tuple[str, str]] = set()
    for name, translation, original in page_pairs(manual, roots, language):
        blocks = manual.align(_read(translation), _read(original), counts)
        pairs: list[tuple[str, str]] = []
        for source, target in blocks:
            reason = reason_to_drop(source, target)
            if reason is None and (source, target) in earlier:
                reason = "repeated"
            if reason is not None:
                counts[f"blocks left out: {reason}"] += 1
                continue
            counts["blocks"] += 1
            pairs.extend(_sentences(source, target))
        earlier.update(blocks)
        if pairs:
            counts["pairs"] += len(pairs)
            counts["documents"] += 1
            yield Document(f"{manual.name}/{name}", tuple(pairs))
