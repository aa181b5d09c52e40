import pytest
import wmt14_en_de
from prep_tools.command import run_script

from tests.data_prep.made_archives import lines, make_tar, many_words, segments, side_of, words
from tests.tiny import as_text

CORPORA = {
    "training-parallel-europarl-v7.tgz": ("training/europarl-v7.de-en", range(100)),
    "training-parallel-commoncrawl.tgz": ("commoncrawl.de-en", range(100, 150)),
    "training-parallel-nc-v9.tgz": ("training/news-commentary-v9.de-en", range(150, 180)),
}


def make_archives(folder, extra=()):
    """Write the five archives. ``extra`` pairs (English, German) go at the end of Europarl."""
    for name, (stem, numbers) in CORPORA.items():
        files = {}
        for side, language in enumerate(("en", "de")):
            lines = many_words(numbers, language)
            if "europarl" in name:
                lines += side_of(extra, side)
            files[f"{stem}.{language}"] = as_text(lines)
            files[f"{stem.replace('de-en', 'fr-en')}.{language}"] = "not wanted\n"
        make_tar(folder / name, files)
    dev = {}
    test = {}
    for kind, language in (("src", "en"), ("ref", "de")):
        dev[f"dev/newstest2013.{language}"] = as_text(many_words(range(500, 507), language))
        name = f"test-full/newstest2014-deen-{kind}.{language}.sgm"
        test[name] = segments([words(n, language) + " it’s" for n in range(600, 605)])
    make_tar(folder / "dev.tgz", dev)
    make_tar(folder / "test-full.tgz", test)


def run(folder, *flags):
    arguments = ["--out", str(folder / "out"), "--workers", "1", "--bpe", "20", "--no-binarize"]
    for archive in folder.glob("*.tgz"):
        arguments += ["--archive", str(archive)]
    arguments += flags
    return run_script(wmt14_en_de.make_parser(), wmt14_en_de.make_corpus, arguments)


def test_the_recipe_gives_the_known_files(tmp_path, capsys):
    extra = [
        ("", "leer"),
        ("one", "eins zwei drei vier"),
        (" ".join(["word"] * 251), " ".join(["wort"] * 251)),
        ("A well-known  “word”", "Ein «Wort» \u200b nur"),
    ]
    make_archives(tmp_path, extra)
    assert run(tmp_path) == 0
    printed = capsys.readouterr().out
    train = lines(tmp_path, "train.en")
    assert train[:100] == many_words(range(100), "en")
    assert train[100] == 'A well-known "word"'
    assert lines(tmp_path, "train.de")[100] == 'Ein "Wort" nur'
    assert len(train) == len(lines(tmp_path, "train.de")) == 181
    assert "dropped: {'empty': 1, 'length': 1, 'ratio': 1}" in printed
    assert lines(tmp_path, "valid.de") == many_words(range(500, 507), "de")
    assert lines(tmp_path, "test.en")[0] == words(600, "en") + " it's"
    assert "valid: 7 sentence pairs, expected 3,000" in printed
    command = printed.splitlines()[-1]
    assert "--tokenizer moses-aggressive --subword subword-nmt --subword-model" in command
    assert "--lowercase" not in command


def test_the_codes_are_those_of_subword_nmt_on_the_tokenized_text(tmp_path):
    import io

    from subword_nmt.learn_bpe import learn_bpe

    make_archives(tmp_path)
    assert run(tmp_path) == 0
    steps = tmp_path / "out/steps-nc9"
    text = (steps / "tokens.en").read_text("utf-8") + (steps / "tokens.de").read_text("utf-8")
    codes = io.StringIO()
    learn_bpe(io.StringIO(text), codes, 20)
    assert (steps / "bpe.20.codes").read_text("utf-8") == codes.getvalue()


def test_lengths_are_counted_in_bpe_tokens(tmp_path):
    from subword_nmt.apply_bpe import BPE

    make_archives(tmp_path)
    assert run(tmp_path) == 0
    codes = tmp_path / "out/steps-nc9/bpe.20.codes"
    count = wmt14_en_de.PieceCounter(codes)
    bpe = BPE(codes.open(encoding="utf-8"))
    for line in lines(tmp_path, "steps-nc9/tokens.de"):
        assert count(line) == len(bpe.process_line(line).split())


def test_a_second_run_uses_the_finished_steps(tmp_path, capsys):
    make_archives(tmp_path)
    assert run(tmp_path) == 0
    first = lines(tmp_path, "train.de")
    (tmp_path / "out/train.de").unlink()
    capsys.readouterr()
    assert run(tmp_path) == 0
    printed = capsys.readouterr().out
    assert "tokenized before; skipped" in printed and "BPE learned before; skipped" in printed
    assert lines(tmp_path, "train.de") == first


def test_other_settings_do_not_mix_with_existing_files(tmp_path, capsys):
    make_archives(tmp_path)
    assert run(tmp_path) == 0
    capsys.readouterr()
    assert run(tmp_path, "--bpe", "10", "--max-length", "12") == 0
    printed = capsys.readouterr().out
    assert "learning 10 merges" in printed and "'length': " in printed


def test_a_missing_file_in_an_archive_is_an_error(tmp_path, capsys):
    make_archives(tmp_path)
    make_tar(tmp_path / "dev.tgz", {"dev/newstest2013.en": "x\n"})
    assert run(tmp_path) == 2
    assert "dev.tgz: holds no newstest2013.de" in capsys.readouterr().err


def test_another_version_of_news_commentary_is_read(tmp_path, capsys):
    make_archives(tmp_path)
    assert run(tmp_path, "--news-commentary", "12") == 2
    assert "'training-parallel-nc-v9.tgz' is none of the archives" in capsys.readouterr().err


@pytest.mark.slow
def test_the_data_folder_is_made(tmp_path):
    make_archives(tmp_path)
    arguments = ["--out", str(tmp_path / "out"), "--workers", "1", "--bpe", "20"]
    for archive in tmp_path.glob("*.tgz"):
        arguments += ["--archive", str(archive)]
    assert run_script(wmt14_en_de.make_parser(), wmt14_en_de.make_corpus, arguments) == 0
    assert (tmp_path / "out/data-bin/test.en-de.en.bin").is_file()
