import errno
import os
import shutil

import pytest

from relu_nmt.config import from_flat
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.io import safe_write
from relu_nmt.jobs.convert import job as convert
from relu_nmt.jobs.convert.settings import ShortlistSettings
from tests.tiny import preprocessed, write_lines


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    lines = ["ein Haus", "ein Hund", "ein Baum"] * 20
    english = ["a house", "a dog", "a tree"] * 20
    write_lines(folder, "train", lines, english)
    preprocessed(folder, "data", ("train",))
    return folder


@pytest.mark.parametrize("pairs", [7, 1000])
def test_a_shortlist_has_the_translations_of_the_data(data, tmp_path, pairs, capsys):
    path = tmp_path / "new" / "shortlist.txt"
    flags = {"candidates": 1, "common": 1, "pairs": pairs}
    settings = from_flat(
        ShortlistSettings, {"data": str(data / "data"), "output": str(path), **flags}
    )
    assert convert.shortlist(settings) == path
    common, *rows = path.read_text().splitlines()
    assert common == "a #languages:de-en" and sorted(rows) == [
        "Baum tree",
        "Haus house",
        "Hund dog",
        "ein a",
    ]
    assert capsys.readouterr().out == f"written: {path}\n"


def test_a_full_disk_is_told_with_the_file(data, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(safe_write.os, "replace", full)
    output = tmp_path / "shortlist.txt"
    settings = ShortlistSettings(data=str(data / "data"), output=str(output))
    with pytest.raises(DataError, match=f"--output {output}: cannot write it: No space left"):
        convert.shortlist(settings)
    assert not os.listdir(tmp_path)


def test_data_without_a_target_side_teaches_nothing(data, tmp_path):
    shutil.copytree(data / "data", tmp_path / "data")
    # The name of fairseq for data with a source alone, without a list of files.
    for ending in ("idx", "bin"):
        source = tmp_path / "data" / f"train.de-en.de.{ending}"
        source.rename(source.with_name(f"train.de-None.de.{ending}"))
        source.with_name(f"train.de-en.en.{ending}").unlink()
    (tmp_path / "data/manifest.json").unlink()
    output = tmp_path / "shortlist.txt"
    settings = ShortlistSettings(
        data=str(tmp_path / "data"), source_lang="de", target_lang="en", output=str(output)
    )
    with pytest.raises(DataError, match="target side"):
        convert.shortlist(settings)
    assert not output.exists()


@pytest.mark.parametrize("name", ["dict.de.txt", "train.de-en.en.idx", "manifest.json"])
def test_no_file_of_the_data_folder_is_written_over(data, name):
    path = data / "data" / name
    before = path.read_bytes()
    flags = {"data": str(data / "data"), "output": str(path)}
    with pytest.raises(ConfigError, match="is a file that is read, and would be lost"):
        convert.shortlist(from_flat(ShortlistSettings, flags), progress=False)
    assert path.read_bytes() == before
