import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest
from prep_tools.archives import extract
from prep_tools.command import PrepError


def make_tar(path, files, mode="w:gz", links=()):
    with tarfile.open(path, mode) as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
        for name, goal in links:
            info = tarfile.TarInfo(name)
            info.type = tarfile.SYMTYPE
            info.linkname = goal
            tar.addfile(info)
    return path


def is_text(name):
    return name.endswith(".txt")


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_only_wanted_files_of_a_tar_are_extracted(mode, tmp_path):
    files = {"./a/one.txt": b"1", "a/b/two.txt": b"2", "a/three.bin": b"3"}
    archive = make_tar(tmp_path / "x.tar", files, mode)
    extracted = extract(archive, tmp_path / "out", is_text)
    assert extracted == [tmp_path / "out/a/b/two.txt", tmp_path / "out/a/one.txt"]
    assert list(map(Path.read_bytes, extracted)) == [b"2", b"1"]
    assert not list(tmp_path.rglob("*.tmp"))


def test_zip_and_gzip_archives_are_extracted(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        packed.writestr("folder/one.txt", "1")
    assert extract(tmp_path / "x.zip", tmp_path / "out", is_text)[0].read_text() == "1"
    (tmp_path / "two.txt.gz").write_bytes(gzip.compress(b"2"))
    assert extract(tmp_path / "two.txt.gz", tmp_path / "out", is_text)[0].read_text() == "2"


def test_a_file_that_occurs_twice_in_an_archive_counts_once(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("a.txt", "./a.txt"):
            entry = tarfile.TarInfo(name)
            entry.size = 4
            tar.addfile(entry, io.BytesIO(b"text"))
    assert extract(tmp_path / "a.tar", tmp_path / "out", bool) == [tmp_path / "out/a.txt"]


def test_existing_files_are_not_overwritten(tmp_path):
    archive = make_tar(tmp_path / "x.tgz", {"a.txt": b"new"})
    (tmp_path / "a.txt").write_text("old")
    assert extract(archive, tmp_path, is_text)[0].read_text() == "old"


@pytest.mark.parametrize("name", ["../evil.txt", "/tmp/evil.txt", "a/../../evil.txt", "a\\b.txt"])
def test_names_outside_the_folder_are_refused(name, tmp_path):
    archive = make_tar(tmp_path / "x.tgz", {name: b"x"})
    with pytest.raises(PrepError, match="leads out of its folder"):
        extract(archive, tmp_path / "out", is_text)
    assert not (tmp_path / "evil.txt").exists()


def test_links_are_not_followed(tmp_path):
    archive = make_tar(tmp_path / "x.tgz", {"a.txt": b"x"}, links=[("b.txt", "/etc/passwd")])
    [path] = extract(archive, tmp_path / "out", is_text)
    assert path.name == "a.txt"


def test_an_archive_without_the_wanted_files_is_an_error(tmp_path):
    archive = make_tar(tmp_path / "x.tgz", {"a.bin": b"x"})
    with pytest.raises(PrepError, match="holds none of the files"):
        extract(archive, tmp_path / "out", is_text)


@pytest.mark.parametrize("keep", [0, 10, 200, 900])
def test_a_damaged_archive_is_an_error(keep, tmp_path):
    import random

    text = random.Random(1).randbytes(3000)
    archive = make_tar(tmp_path / "x.tgz", {"a.txt": text, "b.txt": text})
    archive.write_bytes(archive.read_bytes()[:keep])
    with pytest.raises(PrepError, match=r"x\.tgz: "):
        extract(archive, tmp_path / "out", is_text)
    assert not list(tmp_path.rglob("*.tmp"))
