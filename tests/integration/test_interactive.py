"""relu-nmt-interactive on untrained models."""

import gzip
import json
import subprocess
import warnings

import pytest

from relu_nmt.jobs.translate import lines as translate_lines
from relu_nmt.translation.search.translations import load_translations
from relu_nmt.translator import Translator
from tests.commands import assert_refused
from tests.commands import run_here as run
from tests.outputs import column, containing, lines_of, names_in, numbers_of, texts_of
from tests.untrained_models import SHORT


def test_interactive_gives_one_line_for_each_line(folder):
    model = ["--path", folder / "checkpoint1.safetensors", *SHORT]
    text = "Das Haus\n\nein Hund ist rot\n \nBrot"
    lines = run("interactive", model, stdin=text).stdout.split("\n")
    assert len(lines) == 6
    assert lines[5] == ""
    assert list(map(bool, lines[:5])) == [True, False, True, False, True]
    translator = Translator.from_checkpoint(folder / "checkpoint1.safetensors", device="cpu")
    assert translator.translate(text.split("\n"), max_len_b=8) == lines[:5]

    (folder / "input.de").write_text(text, encoding="utf-8")
    flags = ["--input", folder / "input.de", "--buffer-size", 2, "--nbest", 2]
    twice = run("interactive", folder / "raw-bin", model, flags).stdout.split("\n")
    assert len(twice) == 11
    # fairseq's D- lines: number, score in base 2, text. Padded, so that there are two a line.
    output = "\n".join(twice)
    assert numbers_of(output, "D") == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert texts_of(output)[::2] == lines[:5]
    best = translator.translate_nbest(text.split("\n"), nbest=2, max_len_b=8)
    fields = lines_of(output, "D")
    for i, translation in ((0, best[0][0]), (1, best[0][1]), (4, best[2][0])):
        score = translation.score / 0.6931471805599453
        assert float(fields[i][1][0]) == pytest.approx(score, abs=1e-5)

    (folder / "input.de.gz").write_bytes(gzip.compress(text.encode()))
    flags[1] = folder / "input.de.gz"
    assert run("interactive", model, flags).stdout.split("\n") == twice

    full = run("interactive", model, "--format", "fairseq", stdin=text).stdout
    assert texts_of(full) == lines[:5]
    assert numbers_of(full, "S") == list(range(5))


def test_interactive_reads_the_table_of_unknown_words_once(folder, tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(
        "relu_nmt.translator.translator.load_translations",
        lambda path: read.append(path) or load_translations(path),
    )
    (tmp_path / "table").write_text("haus house\n")
    options = {"path": folder / "checkpoint1.safetensors", "cpu": True, "max_len_b": 8}
    (tmp_path / "text").write_text("ein haus\nein hund\n\nbrot\n")
    flags = {"input": tmp_path / "text", "buffer_size": 1, "replace_unk": tmp_path / "table"}
    settings = translate_lines.TranslateLinesSettings.of(**options, **flags)
    assert len(translate_lines.translate_lines(settings, progress=False)) == 4
    assert len(read) == 1


def test_interactive_gives_json(folder):
    model = ["--path", folder / "checkpoint1.safetensors", *SHORT]
    text = "Das Haus\n\nein Hund ist rot"
    flags = ["--nbest", 2, "--format", "json", "--print-alignment"]
    done = run("interactive", model, flags, stdin=text)
    answers = list(map(json.loads, done.stdout.splitlines()))
    assert set(column(answers, "score_unit")) == {"nats"}
    assert column(answers, "id") == [0, 1, 2]
    assert column(answers, "source") == text.split("\n")
    translator = Translator.from_checkpoint(folder / "checkpoint1.safetensors", device="cpu")
    expected = translator.translate_nbest(text.split("\n"), nbest=2, max_len_b=8)
    for answer, translations in zip(answers, expected, strict=True):
        nbest = answer["translations"]
        assert column(nbest, "text") == [t.text for t in translations]
        for entry, other in zip(nbest, translations, strict=True):
            assert entry["score"] == pytest.approx(other.score, abs=1e-5)
            assert len(entry["token_scores"]) == len(entry["tokens"]) + 1  # of </s>, too
    assert len(answers[0]["translations"][0]["alignment"]) == len(
        answers[0]["translations"][0]["tokens"]
    )
    refused = run("interactive", model, "--format", "json", "--max-source-length", 2, stdin=text)
    assert json.loads(refused.stdout.splitlines()[0])["translations"][0]["score"] is None


def test_interactive_reads_prefixes_and_banned_terms_from_files(folder):
    model = ["--path", folder / "checkpoint1.safetensors", *SHORT]
    lines = ["Das Haus", "", "ein Hund ist rot"]
    plain = run("interactive", model, stdin="\n".join(lines)).stdout.split("\n")
    (folder / "prefixes").write_text("house\n\n\n", "utf-8")
    word = plain[2].split()[0]
    (folder / "banned").write_text(f"{word.upper()}\n\n", "utf-8")
    flags = ["--prefixes", folder / "prefixes"]
    done = run("interactive", model, flags, "--buffer-size", 2, stdin="\n".join(lines))
    outputs = done.stdout.split("\n")
    assert outputs[0].startswith("house") and outputs[1:] == plain[1:]
    flags = ["--banned-terms", folder / "banned"]
    other = run("interactive", model, flags, stdin="\n".join(lines)).stdout.split("\n")
    assert word.lower() not in other[2].lower().split()
    other = run("interactive", model, flags, "--match-case", stdin="\n".join(lines))
    assert other.stdout.split("\n") == plain
    (folder / "prefixes").write_text("house\n", "utf-8")
    flags = ["--prefixes", folder / "prefixes"]
    done = run("interactive", model, flags, stdin="\n".join(lines), check=False)
    assert_refused(done, "prefixes: 1 line, but the text has more")
    (folder / "prefixes").write_text("house\n\n\nhouse\n", "utf-8")
    done = run("interactive", model, flags, stdin="\n".join(lines), check=False)
    assert done.returncode == 2 and done.stdout.split("\n") == outputs
    assert "prefixes: 4 lines, but the text has 3; give one for each" in done.stderr


@pytest.mark.parametrize("flags", [["--constraints"], ["--constraints", "unordered"]])
def test_interactive_forces_the_terms_behind_the_tabs(folder, flags):
    model = ["--path", folder / "checkpoint1.safetensors", *SHORT]
    text = "Das Haus\thouse\tdog\n\nein Hund ist rot\nein\t\thouse"
    flags = [*flags, "--format", "fairseq"]
    printed = run("interactive", model, flags, stdin=text).stdout.splitlines()
    lines = {}
    kinds = dict.fromkeys(range(4), "")
    for line in printed:
        lines.setdefault(int(line[2]), []).append(line)
        kinds[int(line[2])] += line[0]
    assert kinds[0] == "SCCHDP"
    assert lines[0][0].split("\t")[1].split() == ["das", "haus"]
    words = lines[0][4].split("\t")[2].split()
    assert "house" in words and "dog" in words
    last = len(words) - 1 - words[::-1].index("dog")
    assert "unordered" in flags or words.index("house") < last
    plain = run("interactive", model, stdin="\n\nein Hund ist rot").stdout.splitlines()
    assert lines[2][2].split("\t")[2] == plain[2]
    assert kinds[3] == "SCHDP" and "house" in lines[3][3]
    done = run("interactive", model, flags, "--sampling", stdin=text, check=False)
    assert_refused(done, "--sampling:")
    text = "Das Haus\n\n\thouse"
    flags = [*flags, "--buffer-size", 2]
    done = run("interactive", model, flags, stdin=text, check=False)
    assert done.returncode == 2
    assert "line 3: the term 'house' cannot be forced: the line is blank" in done.stderr


def test_interactive_draws_pictures_of_the_attention(folder, tmp_path):
    model = ["--path", folder / "checkpoint1.safetensors", *SHORT]
    flags = ["--attention-pictures", tmp_path / "maps"]
    done = run("interactive", model, flags, stdin="Das Haus\n\nein Hund")
    names = ["0.svg", "2.svg"]
    assert names_in(tmp_path / "maps") == names
    assert f"attention pictures: {tmp_path}/maps/0.svg to {tmp_path}/maps/2.svg\n" in done.stderr
    picture = (tmp_path / "maps/0.svg").read_text("utf-8")
    for text in ("source: das haus", "target: ", "source (key)", "target (query)"):
        assert text in picture
    again = run("interactive", model, flags, stdin="ein Hund", check=False)
    assert (again.returncode, again.stdout, again.stderr.count("\n")) == (2, "", 1)
    assert f"--attention-pictures {tmp_path}/maps: 0.svg is there already" in again.stderr
    assert (tmp_path / "maps/0.svg").read_text("utf-8") == picture


def test_interactive_reports_translations_that_reached_the_limit(folder):
    lines = ["Das Haus", "", "ein Hund ist rot", "Brot"]
    model = ["--path", folder / "checkpoint1.safetensors", "--cpu"]
    translator = Translator.from_checkpoint(folder / "checkpoint1.safetensors", device="cpu")
    for longest in (1, 400):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            translations = translator.translate(lines, max_len_b=longest)
        cut = [number + 1 for number in translations.at_limit]
        flags = ["--max-len-b", longest, "--buffer-size", 2]
        done = run("interactive", model, flags, stdin="\n".join(lines))
        assert done.stdout.split("\n")[:-1] == translations
        notes = containing(done.stderr.split("\n"), "NOTE")
        assert len(notes) == len(caught) == bool(cut)
        if cut:
            named = "lines " if len(cut) > 1 else "line "
            named += ", ".join(map(str, cut))
            assert notes[0].endswith(f"--max-len-b change it ({named})")
            assert f"{len(cut)} of 4 translations reached" in str(caught[0].message)
            assert f"{len(cut)} translations reached the longest output" in notes[0]
        if longest == 1:
            assert cut == [1, 3, 4]


def test_interactive_answers_each_line_as_it_arrives(folder, quick_python):
    arguments = ["--path", str(folder / "checkpoint1.safetensors"), *SHORT]
    with subprocess.Popen(
        [quick_python, "-m", "relu_nmt.cli.interactive", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as process:
        for line in ("Das Haus", "", "ein Hund"):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            assert bool(answer.strip()) == bool(line)
        process.stdin.close()
        assert process.stdout.read() == ""
        assert process.wait() == 0


def test_interactive_names_the_damaged_line(folder):
    (folder / "latin1.de").write_bytes("Haus\nHäuser\n".encode("latin-1"))
    model = ["--path", folder / "checkpoint1.safetensors", *SHORT]
    done = run("interactive", model, "--input", folder / "latin1.de", check=False)
    assert_refused(done, "latin1.de:2: not UTF-8")
    done = run("interactive", model, "--input", folder / "nothing.de", check=False)
    assert_refused(done, "nothing.de")
