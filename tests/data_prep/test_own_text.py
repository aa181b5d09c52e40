import json

import own_text
import pytest
from prep_tools.command import run_script


def run(folder, *arguments, endings=("de", "en")):
    paths = [str(folder / f"text.{ending}") for ending in endings]
    flags = ["--src", paths[0], "--tgt", paths[1], "--out", str(folder / "out"), *arguments]
    return run_script(own_text.make_parser(), own_text.make_corpus, flags)


def word(number):
    return "".join(chr(97 + int(digit)) for digit in str(number))


def write_text(folder, lines, endings=("de", "en")):
    for side, ending in enumerate(endings):
        (folder / f"text.{ending}").write_text(
            "".join(line[side] + "\n" for line in lines), "utf-8"
        )


def made_pairs(number):
    return [(f"q{word(n)} r{word(n)} s{word(n)}", f"x{word(n)} y{word(n)}") for n in range(number)]


def counts(folder):
    report = json.loads((folder / "out/corpus.json").read_text("utf-8"))
    return {split: tuple(report[split].values()) for split in ("train", "valid", "test")}


def test_without_boundaries_blocks_of_lines_are_held_out(tmp_path):
    write_text(tmp_path, made_pairs(1000))
    assert run(tmp_path) == 0
    assert counts(tmp_path) == {"train": (36, 900), "valid": (2, 50), "test": (2, 50)}


@pytest.mark.parametrize("separator", ["", "<d>"])
def test_boundaries_of_documents_are_recognised(separator, tmp_path):
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
    assert sum(pairs for _, pairs in counts(tmp_path).values()) == 499


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (made_pairs(150), "150 sentence pairs, expected 200"),
        ([("ein Haus", "a house")] * 400, "repeats itself too much"),
        ([*made_pairs(300), ("<d>", "x")], "line 301: only one side"),
    ],
)
def test_text_that_cannot_be_divided(lines, message, tmp_path, capsys):
    write_text(tmp_path, lines)
    assert run(tmp_path) == 2
    assert message in capsys.readouterr().err


def test_unequal_files(tmp_path, capsys):
    write_text(tmp_path, made_pairs(300))
    with (tmp_path / "text.en").open("a") as file:
        file.write("one more\n")
    assert run(tmp_path) == 2
    assert "has 300 lines" in capsys.readouterr().err


def test_a_file_that_is_not_text(tmp_path, capsys):
    write_text(tmp_path, made_pairs(300))
    (tmp_path / "text.en").write_bytes(b"ab\xff\xfe\n")
    assert run(tmp_path) == 2
    assert "text.en:1: not UTF-8 (byte 0xff)" in capsys.readouterr().err


def test_names_of_the_languages(tmp_path, capsys):
    write_text(tmp_path, made_pairs(300), ("txt", "txt"))
    write_text(tmp_path, made_pairs(300), ("a", "b"))
    assert run(tmp_path, endings=("txt", "txt")) == 2
    assert "do not name two languages" in capsys.readouterr().err
    assert run(tmp_path, "--source-lang", "sv", "--target-lang", "fi", endings=("a", "b")) == 0
    assert (tmp_path / "out/train.sv").is_file() and (tmp_path / "out/test.fi").is_file()
