"""Data folders that exist already: unfinished, complete, damaged, or made in another way."""

import fnmatch

import pytest

from relu_nmt.data import binarize as binarize_module
from relu_nmt.data import data_folder
from relu_nmt.data.data_folder import NEW_FILES, WORK_FOLDER, read_manifest
from relu_nmt.errors import DataError
from relu_nmt.jobs.preprocess import job
from relu_nmt.jobs.preprocess import text as preprocess_text
from tests.integration.spoken_digits import fail_after, run
from tests.outputs import contents, names_in


def test_a_run_after_dict_only_makes_the_rest(corpus):
    assert run(corpus, "--dict-only") == 0
    assert names_in(corpus / "data") == ["dict.de.txt", "dict.en.txt"]
    data = corpus / "data"
    files = ["--srcdict", f"{data}/dict.de.txt", "--tgtdict", f"{data}/dict.en.txt"]
    assert run(corpus, files) == 0
    assert run(corpus, dest="direct") == 0
    assert contents(data) == contents(corpus / "direct")


@pytest.mark.parametrize("at", ["learn", "convert", "dictionary", "binarize"])
def test_an_interrupted_run_is_continued(corpus, monkeypatch, capsys, at):
    flags = ["--joined-dictionary", "--subword", "subword-nmt", "--subword-size", "20"]
    flags += ["--tokenizer", "moses", "--workers", "1"]
    assert run(corpus, flags, dest="whole") == 0

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if at == "learn":
            patch.setattr(preprocess_text, "_learn_model", interrupted)
        elif at == "convert":
            patch.setattr(preprocess_text, "_find_documents", interrupted)
        elif at == "dictionary":
            patch.setattr(job, "count_words", interrupted)
        else:
            patch.setattr(
                binarize_module, "_binarize_chunk", fail_after(25, binarize_module._binarize_chunk)
            )
        assert run(corpus, flags) == 130
    assert not (corpus / "data/manifest.json").exists()
    with pytest.raises(DataError, match="has not finished it; start that command again"):
        read_manifest(corpus / "data")
    assert names_in(corpus / "data") == [WORK_FOLDER]
    new_files = corpus / "data" / WORK_FOLDER / NEW_FILES
    names = names_in(new_files)
    assert not fnmatch.filter(names, "*.tmp")
    finished = fnmatch.filter(names, "*.bin")
    assert bool(finished) == (at == "binarize")
    times = {name: (new_files / name).stat().st_mtime_ns for name in finished}

    assert run(corpus, flags) == 0
    assert contents(corpus / "data") == contents(corpus / "whole")
    for name, time in times.items():
        assert (corpus / "data" / name).stat().st_mtime_ns == time


@pytest.mark.parametrize("at", ["documents", "binarize"])
def test_nothing_of_an_unfinished_run_with_other_settings_stays(corpus, monkeypatch, at):
    """The other run learns a subword model, has other documents and splits."""
    flags = ["--subword", "subword-nmt", "--subword-size", "20"]
    flags += ["--document-separator", "blank", "--srcdict", str(corpus / "data/dict.de.txt")]
    (corpus / "data").mkdir()
    (corpus / "data/notes").write_text("by hand")
    (corpus / "data/dict.de.txt").write_text("ei@@ 1\nns 1\n")

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if at == "documents":
            patch.setattr(preprocess_text, "check_parallel", interrupted)
        else:
            patch.setattr(
                binarize_module, "_binarize_chunk", fail_after(25, binarize_module._binarize_chunk)
            )
        assert run(corpus, flags) == 130
    assert (corpus / "data" / WORK_FOLDER / NEW_FILES / "train.de-en.documents").exists()
    options = ["--lowercase", "--srcdict", str(corpus / "data/dict.de.txt")]
    assert run(corpus, options, splits=("train",)) == 0
    assert run(corpus, options, splits=("train",), dest="direct") == 0
    files = contents(corpus / "data")
    assert files.pop("notes")
    assert files == contents(corpus / "direct")


def test_a_complete_folder_is_not_changed(corpus, capsys):
    assert run(corpus) == 0
    before = {p.name: p.stat().st_mtime_ns for p in (corpus / "data").iterdir()}
    capsys.readouterr()
    assert run(corpus, "--workers", "1") == 0
    assert "complete already, nothing to do" in capsys.readouterr().out
    assert {p.name: p.stat().st_mtime_ns for p in (corpus / "data").iterdir()} == before


def test_a_damaged_folder_is_made_again(corpus):
    assert run(corpus) == 0
    complete = contents(corpus / "data")
    (corpus / "data/train.de-en.de.bin").write_bytes(b"")
    assert run(corpus) == 0
    assert contents(corpus / "data") == complete


@pytest.mark.parametrize("is_complete", [True, False])
def test_other_settings_need_overwrite(corpus, capsys, is_complete):
    assert run(corpus) == 0
    if not is_complete:
        (corpus / "data/valid.de-en.en.raw").unlink()
    assert run(corpus, "--lowercase", "--thresholdsrc", "2", splits=("train",)) == 2
    assert "holds data made from other text or settings" in capsys.readouterr().err
    assert run(corpus, "--thresholdsrc", "2", "--overwrite", splits=("train",)) == 0
    assert run(corpus, "--thresholdsrc", "2", dest="direct", splits=("train",)) == 0
    # Nothing of the old data stays.
    assert contents(corpus / "data") == contents(corpus / "direct")


def test_another_kind_of_manifest_is_not_replaced(corpus, capsys):
    (corpus / "data").mkdir()
    other = corpus / "data/manifest.json"
    other.write_text('{"name": "a web page"}')
    assert run(corpus) == 2
    assert "not the manifest of a data folder; give another --destdir" in capsys.readouterr().err
    assert other.read_text() == '{"name": "a web page"}'
    assert names_in(corpus / "data") == ["manifest.json"]
    assert run(corpus, "--overwrite") == 0


def test_overwrite_keeps_the_given_files(corpus):
    assert run(corpus) == 0
    flags = ["--srcdict", str(corpus / "data/dict.de.txt"), "--overwrite"]
    assert run(corpus, flags, "--thresholdtgt", "2", splits=("train",)) == 0
    assert names_in(corpus / "data", "*.bin") == ["train.de-en.de.bin", "train.de-en.en.bin"]


def test_a_folder_of_fairseq_is_not_replaced(corpus, capsys):
    (corpus / "data").mkdir()
    (corpus / "data/dict.de.txt").write_text("word 1\n")
    assert run(corpus) == 2
    assert "dict.de.txt: exists already" in capsys.readouterr().err
    assert (corpus / "data/dict.de.txt").read_text() == "word 1\n"
    assert run(corpus, "--overwrite") == 0


def test_files_of_the_user_stay_in_a_folder_that_another_run_left_unfinished(corpus, monkeypatch):
    data = corpus / "data"
    data.mkdir()
    (data / "dict.de.txt").write_text("ein 1\n")
    (data / "train.de.words").write_text("by hand")
    flags = ["--srcdict", str(data / ".." / "data" / "dict.de.txt"), "--subword", "subword-nmt"]

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(binarize_module, "_binarize_chunk", interrupted)
        assert run(corpus, flags, "--subword-size", "20") == 130
    # Another key, and the dictionary of the first run is not given any more.
    with monkeypatch.context() as patch:
        patch.setattr(job, "count_words", interrupted)
        assert run(corpus, "--subword", "subword-nmt", "--subword-size", "20") == 130
    assert (data / "dict.de.txt").read_text() == "ein 1\n"
    assert (data / "train.de.words").read_text() == "by hand"
    assert names_in(data) == ["dict.de.txt", WORK_FOLDER, "train.de.words"]


@pytest.mark.parametrize("flags", [[], ["--lowercase"]])
def test_a_run_that_was_stopped_while_it_moved_its_files_is_complete(
    corpus, monkeypatch, capsys, flags
):
    """The other run does not mix its files with those of the first."""
    assert run(corpus, dest="whole") == 0
    moved = []

    def move_two(source, target):
        moved.append(target)
        if len(moved) > 2:
            raise KeyboardInterrupt
        source.rename(target)

    with monkeypatch.context() as patch:
        patch.setattr(data_folder.Path, "replace", move_two)
        assert run(corpus) == 130
    with pytest.raises(DataError, match="has not finished it; start that command again"):
        read_manifest(corpus / "data")
    capsys.readouterr()
    assert run(corpus, flags) == (2 if flags else 0)
    printed = capsys.readouterr()
    assert ("holds data made from other text" in printed.err) == bool(flags)
    assert ("complete already, nothing to do" in printed.out) != bool(flags)
    assert contents(corpus / "data") == contents(corpus / "whole")


def test_a_run_that_was_stopped_before_it_moved_its_files_is_continued(corpus, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    assert run(corpus, dest="whole") == 0
    with monkeypatch.context() as patch:
        patch.setattr(data_folder.Path, "rename", interrupted)
        assert run(corpus) == 130
    assert run(corpus) == 0
    assert contents(corpus / "data") == contents(corpus / "whole")
    whole = read_manifest(corpus / "whole")
    assert read_manifest(corpus / "data", with_checksums=True)["files"] == whole["files"]
