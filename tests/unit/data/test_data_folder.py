import pytest

from relu_nmt.data.data_folder import find_pair, infer_languages
from relu_nmt.errors import DataError


@pytest.fixture
def folder(tmp_path):
    for name in ("train.de-en.de.idx", "train.de-en.en.idx", "dict.de.txt", "a.b.c.d.e"):
        (tmp_path / name).touch()
    return tmp_path


def test_languages(folder):
    assert infer_languages(folder) == ("de", "en")


def test_several_pairs(folder):
    (folder / "train.fr-en.fr.idx").touch()
    with pytest.raises(DataError, match=r"several language pairs \(de-en, fr-en\)"):
        infer_languages(folder)


def test_source_only_text_beside_both_sides(folder):
    (folder / "test.de-None.de.idx").touch()
    assert infer_languages(folder) == ("de", "en")


def test_no_data(tmp_path):
    with pytest.raises(DataError, match="no binarised corpus"):
        infer_languages(tmp_path)
    with pytest.raises(DataError, match="cannot read the data folder: No such file"):
        infer_languages(tmp_path / "none")


def test_either_direction(folder):
    assert find_pair(folder, "train", "de", "en") == "de-en"
    assert find_pair(folder, "train", "en", "de") == "de-en"


def test_source_only(tmp_path):
    (tmp_path / "test.de-None.de.idx").touch()
    assert find_pair(tmp_path, "test", "de", "en") == "de-None"


def test_missing_split(folder):
    with pytest.raises(DataError, match=r"test.de-en.de.idx: no such file.*holds: train"):
        find_pair(folder, "test", "de", "en")
