"""Malicious archives of images are refused when they are opened."""

import stat
import zipfile

import numpy as np
import pytest

from relu_nmt.errors import DataError
from relu_nmt.vision.image_files import MOST_BYTES
from relu_nmt.vision.images import open_images


@pytest.mark.parametrize(
    "name", ["../cat/1.png", "/etc/cat/1.png", "cat/../../1.png", "..\\cat\\1.png"]
)
def test_a_zip_entry_outside_the_archive_is_refused(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("cat/1.png", b"")
        archive.writestr(name, b"")
    with pytest.raises(DataError, match="leads out of it"):
        open_images(tmp_path / "a.zip")


def test_a_link_in_a_zip_file_is_refused(tmp_path):
    entry = zipfile.ZipInfo("cat/1.png")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(entry, "/etc/passwd")
        archive.writestr("dog/1.png", b"")
    with pytest.raises(DataError, match="is a link"):
        open_images(tmp_path / "a.zip")


def test_a_zip_entry_without_a_name_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("cat/1.png", b"")
        archive.writestr("x", b"")
        archive.infolist()[1].filename = ""
    with pytest.raises(DataError, match="its entry '' is a link or leads out of it"):
        open_images(tmp_path / "a.zip")


def test_zip_bombs_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cat/1.png", bytes(MOST_BYTES + 1))
        archive.writestr("dog/1.png", b"")
    with pytest.raises(DataError, match="no image may have more"):
        open_images(tmp_path / "a.zip")
    file = tmp_path / "a.npz"
    np.savez_compressed(file, images=np.zeros((90, 1024, 1024, 3), np.uint8), labels=np.arange(90))
    with pytest.raises(DataError, match="compressed more than pictures can be"):
        open_images(file)
