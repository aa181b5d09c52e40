"""examples/vision_study/ten_shot.py: sets from unpacked archives, checks, and the probe on them."""

import itertools
import os
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from relu_nmt.cli import vision_probe, vision_train
from relu_nmt.vision.images import open_images
from tests.example_modules import example_modules

CLASSES = ("able", "baker")


@pytest.fixture
def example():
    with example_modules("vision_study", ["ten_shot"]) as modules:
        yield modules.ten_shot


def picture(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 16), (value, 255 - value, 40)).save(path)


def lists(folder, form, ending=".txt"):
    """Write two lists of files, a training and two test images of each class."""
    for part, numbers in (("train", [1]), ("test", [2, 3])):
        pairs = itertools.product(CLASSES, numbers)
        lines = [form.format(name=name, n=n) for name, n in pairs]
        path = folder / f"{part}{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")


def make_archives(root):
    """Write a tiny archive of each set but cars: a training and two test images a class."""
    for number, name in enumerate(CLASSES):
        for n in range(1, 4):
            value = 60 + 130 * number + n
            for path in (
                f"birds/images/{name}/{n}.jpg",
                f"caltech101/101_ObjectCategories/{name}/{n}.jpg",
                f"dtd/images/{name}/{n}.jpg",
                f"histology/Kather_texture_2016_image_tiles_5000/{name}/{n}.tif",
                f"pets/images/{name}_{n}.jpg",
                f"ucmerced/UCMerced_LandUse/Images/{name}/{n}.tif",
            ):
                picture(root / path, value)
    lists(root / "birds/lists", "{name}/{n}.jpg")
    lists(root / "dtd/labels", "{name}/{n}.jpg", "1.txt")
    lists(root / "pets/annotations", "{name}_{n} 1 1 1")
    (root / "pets/annotations/train.txt").rename(root / "pets/annotations/trainval.txt")
    folder = root / "cifar100/cifar-100-binary"
    folder.mkdir(parents=True)
    (folder / "fine_label_names.txt").write_text("able\nbaker\n")
    for part, count in (("train", 1), ("test", 2)):
        rows = []
        for label in (0, 1):
            colors = (np.full(1024, 10 + label), np.full(1024, 20), np.full(1024, 30))
            rows += [np.r_[(0, label, *colors)]] * count
        np.array(rows, np.uint8).tofile(folder / f"{part}.bin")


@pytest.fixture
def tiny(example, tmp_path, monkeypatch):
    """Two classes, a training and two test images each. Sets drawn at random take as many."""
    make_archives(tmp_path / "archives")
    for name, data_set in example.SETS.items():
        monkeypatch.setitem(example.SETS, name, replace(data_set, classes=2, train=2, test=4))
    genuine = example.divided

    def one_of_each_class(paths, train):
        for name in CLASSES:
            yield from genuine([path for path in paths if path.parent.name == name], 1)

    monkeypatch.setattr(example, "divided", one_of_each_class)
    return tmp_path


def test_the_sets_that_are_there_are_written_and_probed(example, tiny, capsys):
    out = tiny / "ten-shot"
    assert example.main([str(tiny / "archives"), "--out", str(out)]) == 0
    assert "left out: cars; no such folder" in capsys.readouterr().out
    names = sorted(os.listdir(out))
    assert names == sorted(set(example.SETS) - {"cars"})
    for name in names:
        for part, count in (("train", 2), ("test", 4)):
            [images] = open_images(out / name / f"{part}.zip").values()
            assert len(images) == count and images.classes == CLASSES
    [images] = open_images(out / "cifar100/test.zip").values()
    assert np.asarray(images.read(3))[5, 7].tolist() == [11, 20, 30]
    # A second call leaves them, and the probe takes them all at once.
    assert example.main([str(tiny / "archives"), "--out", str(out)]) == 0
    assert capsys.readouterr().out.count("is there") == len(names)
    torch.manual_seed(0)
    train = [str(out / "dtd/train.zip"), "--arch", "vit_ti", "--image-size", "16"]
    train += ["--patch-size", "8", "--embed-dim", "8", "--heads", "2", "--layers", "1"]
    train += ["--batch-size", "2", "--max-update", "1", "--save-dir", str(tiny / "model")]
    assert vision_train.main([*train, "--disable-validation"]) == 0
    words = [str(tiny / "model/checkpoint_last.safetensors"), "--method", "ridge", "--shots", "1"]
    for part in example.PARTS:
        words += [f"--{part}", *(str(out / name / f"{part}.zip") for name in names)]
    assert vision_probe.main(words) == 0
    assert "mean of 7" in capsys.readouterr().out


def test_random_divisions_are_the_same_again_and_part_all(example, tmp_path):
    paths = [tmp_path / f"{number % 2}/{number}.tif" for number in range(50)]
    divided = list(example.divided(paths, 20))
    assert list(example.divided(paths, 20)) == divided
    parts, _, files = zip(*divided, strict=True)
    assert parts.count("train") == 20
    assert sorted(files) == sorted(paths) and list(files) != paths


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("birds/lists/test.txt", "birds: 0 images of 0 classes for test; expected 4 of 2; unpack"),
        ("pets/images/able_2.jpg", "able_2.jpg: No such file"),
        ("cifar100/cifar-100-binary/train.bin", "train.bin: No such file"),
    ],
)
def test_an_archive_that_is_not_whole_is_an_error(example, tiny, capsys, damage, message):
    (tiny / "archives" / damage).unlink()
    assert example.main([str(tiny / "archives"), "--out", str(tiny / "out")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_folder_without_sets_names_them(example, tmp_path, capsys):
    assert example.main([str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "expected a folder of birds, caltech101" in capsys.readouterr().err


def test_cars_need_scipy(example, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    (tmp_path / "cars").mkdir()
    assert example.main([str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "pip install scipy" in capsys.readouterr().err


def test_cars_take_their_classes_from_the_labels(example, tmp_path, monkeypatch):
    rows = [{"class": 7, "fname": "00001.jpg"}]
    module = type("io", (), {"loadmat": lambda path, simplify_cells: {"annotations": rows}})
    monkeypatch.setitem(sys.modules, "scipy", type("scipy", (), {"io": module}))
    monkeypatch.setitem(sys.modules, "scipy.io", module)
    train, test = example.cars(tmp_path)
    assert train == ("train", "007/00001.jpg", tmp_path / "cars_train/00001.jpg")
    assert test == ("test", "007/00001.jpg", tmp_path / "cars_test/00001.jpg")


@pytest.mark.parametrize("end", ["", "\n", "\r\n\r\n"])
def test_the_last_line_of_a_list_needs_no_line_end(example, tmp_path, end):
    (tmp_path / "list.txt").write_bytes(f"a.jpg\nb.jpg{end}".encode())
    assert example.lines_of(tmp_path / "list.txt") == ["a.jpg", "b.jpg"]
