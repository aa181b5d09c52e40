import pytest

from relu_nmt.data.data_folder import find_pair, infer_languages
from relu_nmt.errors import DataError


@pytest.fixture
def folder(tmp_path):
    for name in ("train.de-en.de.idx", "train.de-en.en.idx", "dict.de.txt", "a.b.c.d.e"):
        (tmp_path / name).touch()
    return tmp_path


def test_languages_are_found_in_file_names(folder):
    assert infer_languages(folder) == ("de", "en")


def test_several_language_pairs_are_an_error(folder):
    (folder / "train.fr-en.fr.idx").touch()
    with pytest.raises(DataError, match=r"several language pairs \(de-en, fr-en\)"):
        infer_languages(folder)


def test_source_only_text_may_stand_beside_pairs(folder):
    (folder / "test.de-None.de.idx").touch()
    assert infer_languages(folder) == ("de", "en")


def test_a_folder_without_data_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no binarised corpus"):
        infer_languages(tmp_path)
    with pytest.raises(DataError, match="cannot read the data folder: No such file"):
        infer_languages(tmp_path / "none")


def test_splits_are_found_in_either_direction(folder):
    assert find_pair(folder, "train", "de", "en") == "de-en"
    assert find_pair(folder, "train", "en", "de") == "de-en"


def test_source_only_splits_are_found(tmp_path):
    (tmp_path / "test.de-None.de.idx").touch()
    assert find_pair(tmp_path, "test", "de", "en") == "de-None"


def test_a_missing_split_is_an_error(folder):
    with pytest.raises(DataError, match=r"test.de-en.de.idx: no such file.*holds: train"):
        find_pair(folder, "test", "de", "en")
