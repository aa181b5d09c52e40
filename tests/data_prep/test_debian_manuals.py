import gzip
import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import debian_manuals
import pytest
from prep_tools import debian_packages
from prep_tools.command import PrepError, run_script
from prep_tools.debian_packages import NoPackages
from prep_tools.manual_sources import MANUALS, align_manual, page_pairs

from tests.commands import command_line
from tests.data_prep.made_archives import many_words, read_report

BY_NAME = {manual.name: manual for manual in MANUALS}


def page_path(manual, side, language, number):
    """The path of a made page: of the original or of the translation."""
    folder, pattern = getattr(manual, side)
    folder = folder.format(lang=language).replace("-*", "-XX")
    directories, _, name = pattern.format(lang=language).rpartition("/")
    directories = directories.replace("*", "1")
    if manual.name == "man":
        name = f"page{number}.1.gz"
    return Path(folder, directories, name.replace("*", f"page{number}"))


def made_page(manual, language, number):
    """Three paragraphs that no other page has, and a heading that all have."""
    first = 700 * MANUALS.index(manual) + 10 * number
    texts = many_words(range(first, first + 3), language)
    if manual.name == "man":
        return "\n.PP\n".join([f".SH HEAD {language}\n{texts[0]}", *texts[1:], ""])
    body = "<p>" + "</p><p>".join(texts) + "</p>"
    if manual.name == "gnome-user-docs":
        return f"<page><title>HEAD {language}</title>{body}</page>"
    return f"<html><body><h1>HEAD {language}</h1>{body}</body></html>"


def write_pages(root, manual, language, number):
    for page in range(number):
        for side, text in (("english", "en"), ("translated", language)):
            path = root / page_path(manual, side, language, page)
            path.parent.mkdir(parents=True, exist_ok=True)
            data = made_page(manual, text, page).encode()
            path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_pages_are_found_and_aligned(name, tmp_path):
    manual = BY_NAME[name]
    write_pages(tmp_path, manual, "xx", 3)
    counts = Counter()
    documents = list(align_manual(manual, [tmp_path], "xx", counts))
    assert len(documents) == 3 == counts["documents"]
    assert documents[0].pairs[0] == ("HEAD xx", "HEAD en")
    # The heading of the other pages is a repetition.
    assert [len(document.pairs) for document in documents] == [4, 3, 3]
    assert counts["blocks left out: repeated"] == 2
    for document in documents:
        assert document.name.startswith(f"{name}/")
        for source, target in document.pairs:
            assert source.replace("xx", "en") == target


def test_links_between_pages_are_left_out(tmp_path):
    manual = BY_NAME["man"]
    write_pages(tmp_path, manual, "xx", 2)
    link = tmp_path / page_path(manual, "translated", "xx", 7)
    link.symlink_to("page0.1.gz")
    (tmp_path / page_path(manual, "english", "xx", 7)).write_bytes(gzip.compress(b".SH A\nb\n"))
    assert len(page_pairs(manual, [tmp_path], "xx")) == 2


def test_a_language_without_pages_is_an_error(tmp_path):
    write_pages(tmp_path, BY_NAME["debian-edu"], "xx", 1)
    with pytest.raises(PrepError, match="no page exists both in 'yy' and in English"):
        page_pairs(BY_NAME["debian-edu"], [tmp_path], "yy")


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b[:12] + b"\xff\xff" + b[14:]])
def test_a_damaged_page_is_named(tmp_path, damage):
    manual = BY_NAME["man"]
    write_pages(tmp_path, manual, "xx", 1)
    path = tmp_path / page_path(manual, "translated", "xx", 0)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(PrepError, match=r"page0\.1\.gz"):
        list(align_manual(manual, [tmp_path], "xx", Counter()))


def test_the_table_in_the_description_is_that_of_the_sources():
    for name in debian_manuals.SOURCES:
        assert f"\n    {name} " in debian_manuals.__doc__


def build_package(name, root, scratch):
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: 1\nArchitecture: all\n"
        "Maintainer: x <x@example.org>\nDescription: made for a test\n"
    )
    subprocess.run(["dpkg-deb", "--build", str(root), str(scratch)], check=True)


def run(out, *flags):
    arguments = command_line(["--out", out, "--no-binarize", "--held-out", "2", flags])
    return run_script(debian_manuals.make_parser(), debian_manuals.make_corpus, arguments)


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """A folder with made packages of two manuals. No others exist."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("needs dpkg-deb to make packages")
    folder = tmp_path / "scratch"
    folder.mkdir()
    for name, package in (("debian-handbook", "debian-handbook"), ("man", "manpages-xx")):
        write_pages(tmp_path / name, BY_NAME[name], "xx", 60)
        build_package(package, tmp_path / name, folder)
    # This one exists, but not in that language.
    write_pages(tmp_path / "gnome", BY_NAME["gnome-user-docs"], "yy", 1)
    build_package("gnome-user-docs", tmp_path / "gnome", folder)

    def fetch(self, names):
        raise NoPackages(f"'apt-get download' failed: E: Unable to locate package {names[0]}")

    monkeypatch.setattr(debian_packages._Fetcher, "fetch", fetch)
    monkeypatch.setattr(debian_packages.shutil, "which", lambda program: program)
    return folder


def test_from_packages_to_files(tmp_path, scratch, capsys):
    out = tmp_path / "out"
    # Lines of four words out of ten are near copies of each other.
    flags = ["--lang", "xx", "--scratch", str(scratch), "--near-copy", "1"]
    assert run(out, flags) == 0
    report = json.loads((out / "corpus.json").read_text("utf-8"))
    assert sorted(report["sources"]) == sorted(report["licenses"]) == ["debian-handbook", "man"]
    assert (report["train"]["documents"], report["test"]["documents"]) == (116, 2)
    text = (out / "train.xx").read_text("utf-8")
    assert text.replace("xx", "en") == (out / "train.en").read_text("utf-8")
    assert text.splitlines().count("") == 115
    printed = capsys.readouterr().out
    assert "NOTE: left out, there is none in 'xx'" in printed
    assert "NOTE: there is no package manpages-xx-dev here" in printed
    assert "--source-lang xx --target-lang en --joined-dictionary" in printed


def test_a_requested_source_must_exist(tmp_path, scratch, capsys):
    flags = ["--lang", "xx", "--scratch", str(scratch), "--source", "gimp-help"]
    assert run(tmp_path / "out", flags) == 2
    assert "Unable to locate package" in capsys.readouterr().err
    flags[-1] = "man"
    assert run(tmp_path / "out", flags) == 0
    report = read_report(tmp_path)
    assert list(report["sources"]) == ["man"]


def test_too_few_documents_are_an_error(tmp_path, scratch, capsys):
    write_pages(tmp_path / "edu", BY_NAME["debian-edu"], "xx", 2)
    build_package("debian-edu-doc-xx", tmp_path / "edu", scratch)
    (tmp_path / "empty").mkdir()
    build_package("debian-edu-doc-en", tmp_path / "empty", scratch)
    flags = ["--lang", "xx", "--scratch", str(scratch), "--source", "debian-edu"]
    assert run(tmp_path / "out", flags) == 2
    assert "only 2 documents" in capsys.readouterr().err


def test_without_apt_the_message_says_what_is_needed(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(tmp_path) == 2
    assert "apt-get is not installed" in capsys.readouterr().err
