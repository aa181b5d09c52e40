import gzip
import random

import own_text
import pytest
from prep_tools.command import run_script

from tests.commands import command_line
from tests.data_prep.made_archives import corpus_pairs, counts, side_of, word
from tests.tiny import as_text


def run(folder, *arguments, endings=("de", "en")):
    paths = [str(folder / f"text.{ending}") for ending in endings]
    flags = ["--src", paths[0], "--tgt", paths[1], "--out", str(folder / "out"), *arguments]
    return run_script(own_text.make_parser(), own_text.make_corpus, flags)


def write_text(folder, lines, endings=("de", "en")):
    for side, ending in enumerate(endings):
        (folder / f"text.{ending}").write_text(as_text(side_of(lines, side)), "utf-8")


def made_pairs(number):
    return [(f"q{word(n)} r{word(n)} s{word(n)}", f"x{word(n)} y{word(n)}") for n in range(number)]


def test_without_boundaries_blocks_of_lines_are_held_out(tmp_path):
    write_text(tmp_path, made_pairs(1000))
    assert run(tmp_path) == 0
    assert counts(tmp_path) == {"train": (36, 900), "valid": (2, 50), "test": (2, 50)}


@pytest.mark.parametrize("separator", ["", "<d>"])
def test_boundaries_of_documents_are_recognized(separator, tmp_path):
    lines = []
    for document in range(60):
        lines.append((separator, separator))
        lines.extend(made_pairs(600)[document * 10 : document * 10 + 10])
    write_text(tmp_path, lines)
    assert run(tmp_path) == 0
    assert counts(tmp_path) == {"train": (54, 540), "valid": (3, 30), "test": (3, 30)}


def test_a_pair_with_an_empty_side_is_left_out_and_counted(tmp_path, capsys):
    lines = made_pairs(500)
    lines[7] = ("", lines[7][1])
    write_text(tmp_path, lines)
    assert run(tmp_path) == 0
    assert "1 lines left out" in capsys.readouterr().out
    _, numbers = zip(*counts(tmp_path).values(), strict=True)
    assert sum(numbers) == 499


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (made_pairs(150), "150 sentence pairs, expected 200"),
        ([("ein Haus", "a house")] * 400, "repeats itself too much"),
        ([*made_pairs(300), ("<d>", "x")], "line 301: only one side"),
    ],
)
def test_text_that_cannot_be_divided_is_an_error(lines, message, tmp_path, capsys):
    write_text(tmp_path, lines)
    assert run(tmp_path) == 2
    assert message in capsys.readouterr().err


def test_files_of_different_lengths_are_an_error(tmp_path, capsys):
    write_text(tmp_path, made_pairs(300))
    with (tmp_path / "text.en").open("a") as file:
        file.write("one more\n")
    assert run(tmp_path) == 2
    assert "has 300 lines" in capsys.readouterr().err


def test_a_file_that_is_not_text_is_an_error(tmp_path, capsys):
    write_text(tmp_path, made_pairs(300))
    (tmp_path / "text.en").write_bytes(b"ab\xff\xfe\n")
    assert run(tmp_path) == 2
    assert "text.en:1: not UTF-8 (byte 0xff)" in capsys.readouterr().err


def test_languages_come_from_flags_or_file_endings(tmp_path, capsys):
    write_text(tmp_path, made_pairs(300), ("txt", "txt"))
    write_text(tmp_path, made_pairs(300), ("a", "b"))
    assert run(tmp_path, endings=("txt", "txt")) == 2
    assert "do not name two languages" in capsys.readouterr().err
    assert run(tmp_path, "--source-lang", "sv", "--target-lang", "fi", endings=("a", "b")) == 0
    assert (tmp_path / "out/train.sv").is_file() and (tmp_path / "out/test.fi").is_file()


def memory(documents, property_type="x-document"):
    """A TMX of documents of pairs, German and English."""
    units = ""
    for name, pairs in documents.items():
        for german, english in pairs:
            units += f'<tu><prop type="{property_type}">{name}</prop>'
            units += f'<tuv xml:lang="de-DE"><seg>{german}</seg></tuv>'
            units += f'<tuv xml:lang="EN_US"><seg>{english}</seg></tuv></tu>'
    return f'<tmx version="1.4"><header srclang="de-DE"/><body>{units}</body></tmx>'


def in_documents(pairs, size):
    return {f"d{n}": pairs[n : n + size] for n in range(0, len(pairs), size)}


def run_input(folder, paths):
    flags = ["--source-lang", "de", "--target-lang", "en", "--out", folder / "out"]
    words = command_line([flags, "--input", paths])
    return run_script(own_text.make_parser(), own_text.make_corpus, words)


def test_memories_and_tables_are_read(tmp_path):
    pairs = made_pairs(600)
    (tmp_path / "a.tmx").write_text(memory(in_documents(pairs[:300], 10)), "utf-8")
    rows = [f"d{n // 10}\t{n % 10}\t{s}\t{t}\n" for n, (s, t) in enumerate(pairs[300:500])]
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress("".join(rows).encode()))
    (tmp_path / "c.tsv").write_text(as_text(map("\t".join, pairs[500:])), "utf-8")
    files = [tmp_path / "a.tmx", tmp_path / "b.tsv.gz", tmp_path / "c.tsv"]
    assert run_input(tmp_path, files) == 0
    # 30 and 20 documents, and 100 lines in blocks of 25.
    documents, _ = zip(*counts(tmp_path).values(), strict=True)
    assert sum(documents) == 54
    assert sorted(corpus_pairs(tmp_path / "out")) == sorted(pairs)


def test_a_memory_without_documents_is_divided_into_blocks(tmp_path, capsys):
    unit = "<tu><tuv lang='de'><seg>x</seg></tuv></tu></body>"
    text = memory({"": made_pairs(1000)}, "note").replace("</body>", unit)
    (tmp_path / "a.tmx").write_text(text, "utf-8")
    assert run_input(tmp_path, [tmp_path / "a.tmx"]) == 0
    assert counts(tmp_path) == {"train": (36, 900), "valid": (2, 50), "test": (2, 50)}
    assert "1 pairs left out, as a side is missing or empty" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tmx", "<tmx><body>", "a.tmx:1: damaged or cut short"),
        ("a.tsv", "a\tb\tc\n", "a.tsv:1: 3 columns"),
        ("a.txt", "a", "a.txt: expected a file .tmx or .tsv"),
    ],
)
def test_unreadable_memories_are_errors(tmp_path, capsys, name, text, message):
    (tmp_path / name).write_text(text, "utf-8")
    assert run_input(tmp_path, [tmp_path / name]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "flags", [[], ["--src", "a.de"], ["--src", "a", "--tgt", "b", "--input", "c"]]
)
def test_contradictory_inputs_are_refused(tmp_path, capsys, flags):
    flags = [*flags, "--out", str(tmp_path / "out")]
    assert run_script(own_text.make_parser(), own_text.make_corpus, flags) == 2
    assert "give --src and --tgt, or --input" in capsys.readouterr().err


@pytest.mark.parametrize("language", ["zh", "th", "ja"])
def test_near_copies_of_lines_without_spaces_leave_the_held_out_sets(tmp_path, language):
    letters = {"zh": "天地人山水火木金土日月", "th": "กขคงจฉชซญดต", "ja": "あいうえおかきくけこさ"}
    lots = random.Random(3)

    def line():
        return "".join(lots.choices(letters[language], k=24))

    lines = [line() for _ in range(500)]
    copies = [f"{text[:12]}{lots.choice('一二三')}，{text[13:]}。" for text in lines]
    pairs = list(zip(lines + copies, (f"x{word(n)} y{word(n)}" for n in range(1000)), strict=True))
    write_text(tmp_path, pairs, (language, "en"))
    assert run(tmp_path, endings=(language, "en")) == 2  # every line has its copy in training
    other = [(line(), f"v{word(n)} w{word(n)}") for n in range(500)]
    write_text(tmp_path, pairs[:500] + other, (language, "en"))
    assert run(tmp_path, endings=(language, "en")) == 0
    assert counts(tmp_path) == {"train": (36, 900), "valid": (2, 50), "test": (2, 50)}
