"""Names of classes in Unicode's composed (NFC) and decomposed (NFD) form."""

import shutil
import zipfile

import numpy as np
import pytest

from relu_nmt.errors import DataError
from relu_nmt.jobs.vision_evaluate.job import candidates
from relu_nmt.vision.images import open_images, with_classes_of
from tests.unit.vision.made_images import make_squares, write_table

NFC = "caf\u00e9"
NFD = "cafe\u0301"


def folder_of(folder, name):
    """Class folders red, zebra, and one of this name."""
    make_squares(folder, 2)
    (folder / "blue").rename(folder / name)
    (folder / "green").rename(folder / "zebra")
    return folder


def only(path):
    [images] = open_images(path).values()
    return images


def zip_of(folder, file, name=None, utf8_flag=True):
    """Zip a folder as the Finder of macOS does, without the flag though names are UTF-8."""
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(folder.rglob("*.png")):
            entry = str(path.relative_to(folder)).replace(NFC, name or NFC)
            archive.writestr(entry, path.read_bytes())
    if not utf8_flag:
        data = bytearray(file.read_bytes())
        for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            start = data.find(mark)
            while start >= 0:
                data[start + offset + 1] &= ~0x08
                start = data.find(mark, start + 1)
        file.write_bytes(data)
    return file


@pytest.mark.parametrize("form", [NFC, NFD])
@pytest.mark.parametrize("utf8_flag", [True, False])
def test_a_folder_and_a_zip_of_macos_have_the_same_classes(tmp_path, form, utf8_flag):
    folder = only(folder_of(tmp_path / "folder", NFC))
    archive = only(zip_of(tmp_path / "folder", tmp_path / "folder.zip", form, utf8_flag))
    assert folder.classes == archive.classes == (NFC, "red", "zebra")
    assert folder.labels.tolist() == archive.labels.tolist()
    for index in range(6):
        assert folder.read(index).tobytes() == archive.read(index).tobytes()


def test_train_and_val_match_in_any_unicode_form(tmp_path):
    train = folder_of(tmp_path / "both/train", NFC)
    folder_of(tmp_path / "both/val", NFD)
    sets = open_images(tmp_path / "both")
    images = with_classes_of(sets["val"], sets["train"].classes, str(train))
    assert images.labels.tolist() == sets["train"].labels.tolist()
    # A checkpoint of an earlier release may name the class as its folder was called.
    old = with_classes_of(sets["val"], ("red", NFD, "zebra"), "checkpoint")
    assert old.labels.tolist() == [1, 1, 0, 0, 2, 2]


def test_two_folders_that_differ_only_by_unicode_form_are_refused(tmp_path):
    folder = folder_of(tmp_path / "folder", NFC)
    shutil.copytree(folder / NFC, folder / NFD)
    with pytest.raises(DataError) as caught:
        open_images(folder)
    assert r"(NFC: 'caf\xe9')" in str(caught.value)
    assert r"(NFD: 'cafe\u0301')" in str(caught.value)
    assert "one name in two Unicode forms; rename one" in str(caught.value)


def test_a_class_that_looks_like_another_is_printed_with_code_points(tmp_path):
    train = only(folder_of(tmp_path / "latin", "cat"))
    other = only(folder_of(tmp_path / "cyrillic", "c\u0430t"))
    with pytest.raises(DataError, match=r"the class 'c\u0430t' \(NFC: 'c\\u0430t'\) of cyrillic"):
        with_classes_of(other, train.classes, "latin")


def test_labels_of_tables_match_in_any_unicode_form(tmp_path):
    image = (make_squares(tmp_path / "squares", 1) / "red/0000.png").read_bytes()
    (tmp_path / "tables").mkdir()
    for part, form in (("train", NFC), ("test", NFD)):
        columns = {"image": [image] * 2, "label": ["dog", form]}
        write_table(tmp_path / f"tables/{part}-0.parquet", columns)
    sets = open_images(tmp_path / "tables")
    assert sets["train"].classes == sets["test"].classes == (NFC, "dog")
    assert sets["train"].labels.tolist() == sets["test"].labels.tolist() == [1, 0]
    pixels = np.zeros((2, 4, 4, 3), np.uint8)
    np.savez(tmp_path / "a.npz", images=pixels, labels=[0, 1], classes=[NFC, NFD])
    with pytest.raises(DataError, match="two Unicode forms"):
        open_images(tmp_path / "a.npz")


def test_a_file_of_classes_matches_in_any_unicode_form(tmp_path):
    (tmp_path / "classes.txt").write_text(f"{NFD} a remark\nred\n", encoding="utf-8")
    for class_name in (NFC, NFD):
        names, outputs = candidates(("red", class_name), "model", str(tmp_path / "classes.txt"), ())
        assert names == (NFC, "red")
        assert outputs.tolist() == [1, 0]
