import hashlib

import iwslt14_de_en
import pytest
from prep_tools.command import run_script

from tests.commands import command_line
from tests.data_prep.made_archives import lines, make_tar, read_report, segments, side_of, words
from tests.outputs import containing

SETS = {"TED.dev2010": 5, "TEDX.dev2012": 4, "TED.tst2010": 3, "TED.tst2011": 2, "TED.tst2012": 1}


def training_text(language, sentences):
    head = [
        "<url>http://example.org/talk</url>",
        "<keywords>one, two</keywords>",
        "<talkid>7</talkid>",
        f"<title>{words(9999, language)}</title>",
        f"<description>{words(9998, language)}</description>",
    ]
    return "\n".join([*head, *sentences]) + "\n"


def make_archive(path, sentences):
    files = {}
    for side, language in enumerate(("de", "en")):
        text = training_text(language, side_of(sentences, side))
        files[f"de-en/train.tags.de-en.{language}"] = text
        for number, (name, size) in enumerate(SETS.items()):
            lines = [words(8000 + 10 * number + n, language) for n in range(size)]
            lines[0] = "Das ’s " + lines[0]
            files[f"de-en/IWSLT14.{name}.de-en.{language}.xml"] = segments(lines)
    return make_tar(path, files)


def pairs(number):
    return [(words(n, "de"), words(n, "en")) for n in range(number)]


def run(tmp_path, *flags, archive="de-en.tgz"):
    arguments = command_line(["--out", tmp_path / "out", "--workers", 1, "--no-binarize", flags])
    if archive:
        arguments += ["--archive", str(tmp_path / archive)]
    return run_script(iwslt14_de_en.make_parser(), iwslt14_de_en.make_corpus, arguments)


def test_the_recipe_gives_the_known_files(tmp_path, capsys):
    sentences = pairs(100)
    sentences[10] = ("", "an empty side")
    sentences[20] = (" ".join(["wort"] * 176), " ".join(["word"] * 176))
    sentences[30] = ("ein zwei drei", "one")
    sentences[40] = (sentences[40][0] + " it’s", sentences[40][1] + " it’s")
    make_archive(tmp_path / "de-en.tgz", sentences)
    assert run(tmp_path) == 0
    printed = capsys.readouterr().out
    assert "99 pairs kept; dropped: {'empty': 1, 'length': 1, 'ratio': 1}" in printed
    expected = [words(9999, "de"), words(9998, "de")]
    expected += [s for n, (s, _) in enumerate(sentences) if n not in (10, 20, 30)]
    assert lines(tmp_path, "valid.de") == expected[22::23]
    del expected[22::23]
    assert lines(tmp_path, "train.de") == expected
    assert containing(lines(tmp_path, "train.en"), "’")
    test = lines(tmp_path, "test.de")
    assert len(test) == 15 and test[0].startswith("Das 's ")
    for split in ("train", "valid", "test"):
        assert len(lines(tmp_path, f"{split}.de")) == len(lines(tmp_path, f"{split}.en"))
    assert "NOTE: train: 95 sentence pairs, expected 160,239" in printed
    command = printed.splitlines()[-1]
    assert "--tokenizer moses --lowercase --subword subword-nmt --subword-size 10000" in command


def test_variants_of_the_recipe_differ_as_described(tmp_path, capsys):
    sentences = pairs(60)
    sentences[3] = (" ".join(["wort"] * 51), " ".join(["word"] * 51))
    make_archive(tmp_path / "de-en.tgz", sentences)
    assert run(tmp_path, "--max-length", "50", "--no-tedx", "--bpe", "99") == 0
    printed = capsys.readouterr().out
    assert "'length': 1" in printed and "--subword-size 99" in printed
    assert len(lines(tmp_path, "test.en")) == 11
    assert "expected 5,585" in printed and "160,239" not in printed


def test_strict_sizes_refuse_another_archive(tmp_path, capsys):
    make_archive(tmp_path / "de-en.tgz", pairs(60))
    assert run(tmp_path, "--strict") == 2
    assert "expected 160,239" in capsys.readouterr().err


def test_sides_of_different_lengths_are_an_error(tmp_path, capsys):
    files = {
        "de-en/train.tags.de-en.de": training_text("de", ["a", "b"]),
        "de-en/train.tags.de-en.en": training_text("en", ["a"]),
    }
    make_tar(tmp_path / "de-en.tgz", files)
    assert run(tmp_path) == 2
    assert "4 German but 3 English" in capsys.readouterr().err


def test_checksums_of_local_archives_are_compared(tmp_path, capsys):
    archive = make_archive(tmp_path / "de-en.tgz", pairs(60))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert run(tmp_path, "--sha256", f"de-en.tgz={digest}") == 0
    assert run(tmp_path, "--sha256", f"de-en.tgz={'0' * 64}") == 2
    assert "SHA-256 is" in capsys.readouterr().err
    assert run(tmp_path, "--sha256", "de-en.tgz=123") == 2
    assert "64 hexadecimal digits" in capsys.readouterr().err


def test_a_fetched_archive_is_kept_and_checked(tmp_path, capsys):
    make_archive(tmp_path / "de-en.tgz", pairs(60))
    url = (tmp_path / "de-en.tgz").as_uri()
    assert run(tmp_path, "--url", url, archive=None) == 0
    archive = tmp_path / "out/archives/de-en.tgz"
    assert archive.is_file()
    assert run(tmp_path, archive=None) == 0
    archive.write_bytes(archive.read_bytes()[:-5])
    capsys.readouterr()
    assert run(tmp_path, archive=None) == 2
    assert "SHA-256" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [("--archive", "other.tgz"), ("--url", "http://x.org/y.tgz")])
def test_unneeded_archives_are_refused(flags, tmp_path, capsys):
    assert run(tmp_path, flags, archive=None) == 2
    assert "is none of the archives needed: de-en.tgz" in capsys.readouterr().err


@pytest.mark.slow
def test_the_data_folder_is_made(tmp_path):
    make_archive(tmp_path / "de-en.tgz", pairs(200))
    flags = ["--out", str(tmp_path / "out"), "--workers", "1", "--bpe", "50"]
    flags += ["--archive", str(tmp_path / "de-en.tgz")]
    assert run_script(iwslt14_de_en.make_parser(), iwslt14_de_en.make_corpus, flags) == 0
    assert (tmp_path / "out/data-bin/train.de-en.de.bin").is_file()
    report = read_report(tmp_path)
    assert report["valid"] == 202 // 23
