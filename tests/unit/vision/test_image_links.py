"""Links in folders of images: none multiplies them, and data sets can be linked together."""

import itertools
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from relu_nmt.vision.images import open_images
from tests.unit.vision.made_images import make_squares, write_table, zip_folder

COLORS = ("blue", "green", "red")


@pytest.fixture
def squares(tmp_path):
    """Three classes of seven pictures."""
    return make_squares(tmp_path / "sets/squares", 7)


def only(path):
    [images] = open_images(path).values()
    return images


def link(path, target):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent), target_is_directory=target.is_dir())


@pytest.mark.parametrize("name", ["up", "red/up", "red/more/up"])
@pytest.mark.parametrize("target", [".", "..", "../.."])
def test_a_link_that_points_upwards_is_not_followed(squares, name, target):
    make_squares(squares.parent / "others", 5)
    link(squares / name, squares / target)
    images = only(squares)
    assert (images.classes, len(images)) == (COLORS, 21)
    assert f"not looked into: {name}/ (a link that points upwards)" in images.left_out()[-1]


def test_folders_that_link_to_each_other_are_counted_once(squares):
    link(squares / "red/b", squares / "blue")
    link(squares / "blue/r", squares / "red")
    link(squares / "violet", squares / "green")
    images = only(squares)
    assert (images.classes, len(images)) == (COLORS, 21)
    files = itertools.product(COLORS, range(7))
    assert images.paths == [f"{name}/{number:04d}.png" for name, number in files]


def test_many_folders_that_link_to_each_other_are_searched_quickly(squares):
    names = list(map("class{}".format, range(12)))
    for name in names:
        shutil.copytree(squares / "red", squares / "all" / name)
    for name in names:
        for other in set(names) - {name}:
            link(squares / "all" / name / other, squares / "all" / other)
    assert len(only(squares / "all")) == 12 * 7


def test_links_to_class_folders_elsewhere_are_followed(squares, tmp_path):
    other = make_squares(tmp_path / "other", 3)
    link(other / "red/back", tmp_path / "linked")
    for link_name, target in {"train/a": squares / "blue", "train/b": other / "red"}.items():
        link(tmp_path / "linked" / link_name, target)
    link(tmp_path / "linked/train/b/up", tmp_path / "linked/train")
    link(tmp_path / "linked/val", tmp_path / "linked/train")
    sets = open_images(tmp_path / "linked")
    assert list(sets) == ["train", "val"]
    for images in sets.values():
        assert images.classes == ("a", "b") and np.bincount(images.labels).tolist() == [7, 3]
    assert sets["val"].read(9).size == (12, 12)


@pytest.mark.parametrize("pool", ["pool", ".git/annex", "../pool", "../squares"])
def test_class_folders_may_hold_links_to_a_pool_of_images(squares, tmp_path, pool):
    folder = squares.parent / "of_links"
    for name in COLORS:
        for path in sorted((squares / name).iterdir()):
            file = folder / pool / f"{name}-{path.name}"
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, file)
            link(folder / "train" / name / path.name, file)
            link(folder / "val" / name / path.name, file)
    sets = open_images(folder)
    assert list(sets) == ["train", "val"]
    for images in sets.values():
        assert (images.classes, len(images)) == (COLORS, 21)


def test_a_second_link_to_an_image_is_reported_and_not_counted(squares):
    link(squares / "red/again.png", squares / "red/0000.png")
    link(squares / "blue/a.png", squares / "red/0001.png")
    link(squares / "blue/b.png", squares / "blue/a.png")
    link(squares / "blue/lost.png", squares / "nowhere.png")
    images = only(squares)
    assert images.classes == COLORS
    assert np.bincount(images.labels).tolist() == [8, 7, 7]  # the broken link is an image
    assert "3 other files are left out: no image by their names, hidden, links to" in str(
        images.left_out()
    )


def test_a_pipe_among_images_does_not_block(squares):
    os.mkfifo(squares / "red/pipe.png")
    images = only(squares)
    with pytest.raises(Exception, match=r"red/pipe\.png: cannot be read as an image \(no regular"):
        images.read(images.paths.index("red/pipe.png"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_without_permission_is_reported(squares):
    (squares / "lost+found").mkdir(mode=0)
    assert "lost+found/ (permission denied)" in str(only(squares).left_out())


def test_different_spellings_of_a_zip_entry_are_one_image(squares, tmp_path):
    archive = zip_folder(squares, tmp_path / "whole.zip")
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(tmp_path / "odd.zip", "w") as odd:
        odd.writestr("./", b"")
        for entry in source.infolist():
            odd.writestr(f"./{entry.filename}".replace("/", "//", 1), source.read(entry))
        odd.writestr("red/0000.png", b"an older picture, which the next entry replaces")
        with pytest.warns(UserWarning, match="Duplicate name"):
            odd.writestr("red/0000.png", source.read("red/0001.png"))
    images = only(tmp_path / "odd.zip")
    assert images.paths == only(squares).paths
    assert images.read(14).tobytes() == only(squares).read(15).tobytes()


def test_a_table_with_two_links_is_read_once(squares, tmp_path):
    data = list(map(Path.read_bytes, sorted(squares.glob("*/0000.png"))))
    (tmp_path / "tables").mkdir()
    write_table(tmp_path / "tables/train-0.parquet", {"image": data, "label": [0, 1, 2]})
    link(tmp_path / "tables/train-1.parquet", tmp_path / "tables/train-0.parquet")
    assert len(open_images(tmp_path / "tables")["train"]) == 3
