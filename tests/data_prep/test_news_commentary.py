import gzip
from collections import Counter

import news_commentary
import pytest
from prep_tools.command import PrepError, run_script

from tests.data_prep.made_archives import made_pairs, make_tar, read_report, side_of


def articles(number, size=12):
    """Articles of pairs (other language, English)."""
    pairs = made_pairs(range(number * size), "xx", "en")
    return [pairs[first : first + size] for first in range(0, number * size, size)]


def table(documents, english_first):
    lines = []
    for document in documents:
        lines += ["\t".join(pair[::-1] if english_first else pair) for pair in document] + ["\t"]
    return "\n".join(lines) + "\n"


def write_table(path, text):
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(text)
    return path


def run(folder, archive, *flags):
    arguments = ["--out", str(folder / "out"), "--workers", "1", "--no-binarise", *flags]
    arguments += ["--archive", str(archive)]
    return run_script(news_commentary.make_parser(), news_commentary.make_corpus, arguments)


def read(folder, name):
    return (folder / "out" / name).read_text("utf-8").split("\n\n")


@pytest.mark.parametrize(("language", "pair"), [("de", "de-en"), ("fr", "en-fr"), ("es", "en-es")])
def test_whole_articles_are_held_out(language, pair, tmp_path, capsys):
    text = table(articles(60), english_first=pair.startswith("en"))
    archive = write_table(tmp_path / f"news-commentary-v18.{pair}.tsv.gz", text)
    assert run(tmp_path, archive, "--lang", language) == 0
    for split, count in (("train", 54), ("valid", 3), ("test", 3)):
        sources = read(tmp_path, f"{split}.{language}")
        targets = read(tmp_path, f"{split}.en")
        assert len(sources) == len(targets) == count
        for source, target in zip(sources, targets, strict=True):
            assert source.replace("xx", "en").split() == target.split()
    printed = capsys.readouterr().out
    assert f"--source-lang {language} --target-lang en" in printed
    assert "--document-separator blank" in printed


def test_pairs_with_one_side_are_dropped_and_counted(tmp_path):
    documents = articles(60)
    documents[0][3] = (documents[0][3][0], "")
    text = table(documents, english_first=False)
    archive = write_table(tmp_path / "news-commentary-v15.de-en.tsv.gz", "\n" + text)
    assert run(tmp_path, archive, "--version", "15") == 0
    report = read_report(tmp_path)
    assert report["pairs with an empty side"] == 1
    written = report["train"]["pairs"] + report["valid"]["pairs"] + report["test"]["pairs"]
    assert written + sum(report["copies removed"].values()) == 60 * 12 - 1


def test_older_archives_are_read(tmp_path):
    files = {}
    for side, language in enumerate(("fr", "en")):
        text = ""
        for document in articles(40):
            text += "\n".join(side_of(document, side)) + "\n\n"
        files[f"training/news-commentary-v9.fr-en.{language}"] = text.removesuffix("\n")
        files[f"training/news-commentary-v9.de-en.{language}"] = "not wanted\n"
    archive = make_tar(tmp_path / "training-parallel-nc-v9.tgz", files)
    assert run(tmp_path, archive, "--version", "9", "--lang", "fr") == 0
    assert len(read(tmp_path, "train.fr")) == 36


def test_a_file_without_boundaries_is_refused(tmp_path, capsys):
    text = table(articles(1, size=500), english_first=False).rstrip() + "\n"
    archive = write_table(tmp_path / "news-commentary-v18.de-en.tsv.gz", text)
    assert run(tmp_path, archive) == 2
    assert "500 sentence pairs and 0 empty lines" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["only one side", "a\tb\tc"])
def test_a_line_that_is_no_pair_is_an_error(line, tmp_path):
    (tmp_path / "x.tsv").write_text(f"a\tb\n{line}\n", "utf-8")
    with pytest.raises(PrepError, match=r"line 2: \d columns, expected two"):
        list(news_commentary.read_table(tmp_path / "x.tsv", "de"))


def test_another_archive_and_another_checksum_are_refused(tmp_path, capsys):
    text = table(articles(40), english_first=False)
    archive = write_table(tmp_path / "news-commentary-v18.de-en.tsv.gz", text)
    assert run(tmp_path, archive, "--lang", "fr") == 2
    assert "is none of the archives needed" in capsys.readouterr().err
    assert run(tmp_path, archive, "--sha256", f"{archive.name}={'0' * 64}") == 2
    assert "SHA-256 is" in capsys.readouterr().err
    assert run(tmp_path, archive, "--lang", "en") == 2
    assert "English is always the target" in capsys.readouterr().err


def test_all_versions_have_addresses():
    for version in news_commentary.VERSIONS:
        source = news_commentary.source_of(version, "fr")
        for url in source.urls:
            assert url.endswith("/" + source.name)
        assert f"v{version}" in source.name
    assert news_commentary.source_of(16, "cs").name == "news-commentary-v16.cs-en.tsv.gz"


def test_several_empty_lines_make_no_empty_article():
    pairs = [("", ""), ("a", "b"), ("", ""), ("", ""), ("c", "d")]
    first, second = news_commentary.read_articles(pairs, "x", Counter())
    assert (first.pairs, second.pairs) == ((("a", "b"),), (("c", "d"),))
