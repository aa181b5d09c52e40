import shutil
import subprocess
from collections import Counter

import libreoffice_help
import pytest
from prep_tools import debian_packages
from prep_tools.command import PrepError, run_script
from prep_tools.html_paragraphs import read_paragraphs

PAGE = """<html><body>
<header><p id="par_idmenu">Service line</p></header>
<h1 id="hd_id1">{title}</h1>
<p id="par_id2" class="paragraph"><span class="avis">{first}</span> {second}</p>
<div class="embedded"><p id="par_id3">{second}</p></div>
<p class="embedded">{second}</p>
<p id="par_id4" class="code">Print "x"</p>
<pre><code>y = 1</code></pre>
<p id="par_id5">{choose} <span class="switchinline">
  <span id="MACx" class="MAC">Apple</span><span id="defaultx">{menu}</span></span>.</p>
<p id="par_id6">123</p>
<p id="par_id7">SUM(A1)</p>
<p id="par_id8">{icon} <img src="a.png"> . <br>{second}</p>
<p>{second}</p>
</body></html>"""
ENGLISH = {
    "title": "Reading",
    "first": "Open the page.",
    "second": "Read it.",
    "choose": "Choose",
    "menu": "Tools",
    "icon": "Click the icon",
}
GERMAN = {
    "title": "Lesen",
    "first": "Öffnen Sie die Seite.",
    "second": "Lesen Sie sie.",
    "choose": "Wählen Sie",
    "menu": "Extras",
    "icon": "Klicken Sie auf das Symbol",
}


def test_only_the_pages_own_text_is_read():
    assert read_paragraphs(PAGE.format(**ENGLISH)) == [
        ("hd_id1", "Reading"),
        ("par_id2", "Open the page. Read it."),
        ("par_id5", "Choose Tools."),
        ("par_id6", "123"),
        ("par_id7", "SUM(A1)"),
        ("par_id8", "Click the icon. Read it."),
    ]


def test_inline_tags_stay_if_asked_for():
    page = (
        '<p id="par_id1">Choose <a href="x"><span class="emph">File</span></a> &amp; '
        '<span class="avis">more <b id="y">now</b></span>, <span class="image">picture</span>.</p>'
    )
    [(_, markup)] = read_paragraphs(page, with_tags=True)
    tagged = '<a><span class="emph">File</span></a> &amp; more <b>now</b>'
    assert markup == f"Choose {tagged},."  # without the picture


def test_only_the_variant_for_all_systems_is_read():
    block = (
        '<div class="switch"><div id="WINa" class="WIN"><p id="par_id1">Windows</p></div></div>'
        '<div class="switch"><div id="CALCa" class="CALC"><p id="par_id2">Sheet</p></div>'
        '<div id="WRITERa" class="WRITER"><p id="par_id3">Text</p></div></div>'
    )
    assert read_paragraphs(block) == [("par_id2", "Sheet")]


def test_a_page_is_aligned_by_ids_and_split_into_sentences():
    counts = Counter()
    pairs = libreoffice_help.align_page(PAGE.format(**GERMAN), PAGE.format(**ENGLISH), counts)
    assert pairs == [
        ("Lesen", "Reading"),
        ("Öffnen Sie die Seite.", "Open the page."),
        ("Lesen Sie sie.", "Read it."),
        ("Wählen Sie Extras.", "Choose Tools."),
        ("Klicken Sie auf das Symbol.", "Click the icon."),
        ("Lesen Sie sie.", "Read it."),
    ]
    assert counts["paragraphs equal on both sides"] == 2


def test_an_id_that_occurs_twice_is_aligned_in_order():
    source = '<p id="par_1">eins</p><p id="par_1">zwei</p>'
    target = '<p id="par_1">one</p><p id="par_1">two</p><p id="par_1">three</p>'
    counts = Counter()
    assert libreoffice_help.align_page(source, target, counts) == [("eins", "one"), ("zwei", "two")]
    assert counts["paragraphs without a counterpart"] == 1


def write_pages(folder, words, number):
    folder.mkdir(parents=True)
    for page in range(number):
        name = chr(97 + page // 26) + chr(97 + page % 26)
        text = ""
        for key, first_word in zip("abc", "xyz", strict=True):
            text += f'<p id="par_{key}">{first_word} {words} {name}</p>'
        (folder / f"{name}.html").write_text(text, "utf-8")


def test_folders_with_hardly_a_common_page_are_refused(tmp_path):
    write_pages(tmp_path / "de", "deutsch", 5)
    write_pages(tmp_path / "en", "english", 5)
    with pytest.raises(PrepError, match="only 5 pages"):
        libreoffice_help.align_folders(tmp_path / "de", tmp_path / "en")


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb to make a package")
def test_from_packages_to_files(tmp_path, capsys, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    for language, folder in (("de", "de"), ("en-us", "en-US")):
        root = tmp_path / f"root-{language}"
        write_pages(root / "usr/share/libreoffice/help" / folder / "text", language, 120)
        (root / "DEBIAN").mkdir()
        (root / "DEBIAN/control").write_text(
            f"Package: libreoffice-help-{language}\nVersion: 1\nArchitecture: all\n"
            "Maintainer: x <x@example.org>\nDescription: made for a test\n"
        )
        subprocess.run(["dpkg-deb", "--build", str(root), str(scratch)], check=True)
    monkeypatch.setattr(debian_packages._Fetcher, "fetch", None)  # the packages are there already
    out = tmp_path / "out"
    arguments = ["--lang", "de", "--out", str(out), "--scratch", str(scratch), "--held-out", "3"]
    code = run_script(libreoffice_help.make_parser(), libreoffice_help.make_corpus, arguments)
    printed = capsys.readouterr().out
    assert code == 0
    assert "360 sentence pairs in 120 documents" in printed
    source = (out / "train.de").read_text("utf-8").splitlines()
    target = (out / "train.en").read_text("utf-8").splitlines()
    assert len(source) == len(target) == 114 * 3 + 113
    assert source[0].replace("de", "en-us") == target[0]


def test_without_apt_the_message_says_what_is_needed(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    code = run_script(
        libreoffice_help.make_parser(), libreoffice_help.make_corpus, ["--out", str(tmp_path)]
    )
    assert code == 2
    assert "apt-get is not installed" in capsys.readouterr().err
