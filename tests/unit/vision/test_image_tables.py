"""NumPy archives and parquet tables of images."""

import io
import sys
import zipfile

import numpy as np
import pytest
from PIL import Image

from relu_nmt.errors import DataError, MissingExtraError
from relu_nmt.vision.images import hold_out, open_images
from tests.unit.vision.made_images import write_table


def pixels(count, seed=0, shape=(6, 5, 3)):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def encoded(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "png")
    return file.getvalue()


def assert_shows(images, arrays):
    assert len(images) == len(arrays)
    for index, array in enumerate(arrays):
        assert np.array_equal(np.asarray(images.read(index)), array)


def test_an_archive_of_one_set_is_one_set_of_images(tmp_path):
    np.savez(tmp_path / "small.npz", images=pixels(5), labels=np.array([3, 11, 3, 20, 11]))
    [(name, images)] = open_images(tmp_path / "small.npz").items()
    assert (name, images.name, images.classes) == ("small", "small", ("3", "11", "20"))
    assert images.labels.tolist() == [0, 1, 0, 2, 1]
    assert images.labels.dtype == np.int64
    assert_shows(images, pixels(5))
    # Class 20 has no image in this part.
    remaining, held = hold_out(images.subset(np.array([0, 1, 2, 4]), "four"), 0.5)
    assert sorted([*remaining.paths, *held.paths]) == [0, 1, 2, 4]
    assert held.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        ("{part}_{kind}", ("images", "labels")),  # as MedMNIST has it
        ("{kind}_{part}", ("x", "y")),  # as Keras has it
    ],
)
def test_an_archive_of_several_sets_with_class_names(tmp_path, names, parts):
    arrays = {"classes": np.array(["cat", "dog", "owl"])}
    for number, part in enumerate(("test", "train")):
        keys = [names.format(part=part, kind=kind) for kind in parts]
        arrays |= {keys[0]: pixels(4, number, (6, 5))}
        arrays |= {keys[1]: np.array([[0], [2], [2], [0]], dtype=np.uint8)}
    np.savez_compressed(tmp_path / "gray.npz", **arrays)
    sets = open_images(tmp_path / "gray.npz")
    assert list(sets) == ["train", "test"]
    assert sets["train"].classes == sets["test"].classes == ("cat", "dog", "owl")
    assert sets["train"].labels.tolist() == [0, 2, 2, 0]
    gray = np.repeat(pixels(4, 1, (6, 5))[..., None], 3, axis=3)
    assert_shows(sets["train"], gray)


def test_labels_may_be_class_names(tmp_path):
    labels = np.array(["owl", "cat", "owl"])
    np.savez(tmp_path / "a.npz", images=pixels(3, shape=(2, 2, 1)), labels=labels)
    [images] = open_images(tmp_path / "a.npz").values()
    assert images.classes == ("cat", "owl")
    assert images.labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "has nothing; expected images and labels"),
        ({"pixels": pixels(2)}, "has pixels; expected images and labels"),
        ({"images": pixels(2) / 255, "labels": [0, 1]}, r"is float64 \[2, 6, 5, 3\]; expected"),
        ({"images": pixels(2, shape=(6, 5, 4)), "labels": [0, 1]}, "expected uint8"),
        ({"images": pixels(2), "labels": [0]}, r"has 2 images, but its labels are \[1\]"),
        ({"images": pixels(2), "labels": [0, -1]}, "the label -1 stands for no class"),
        ({"images": pixels(2), "labels": [0, 2], "classes": ["a", "b"]}, "the label 2 stands"),
        ({"images": pixels(2), "labels": [0.5, 1]}, "must be whole numbers or names"),
        ({"images": pixels(2), "labels": [1, 1]}, "only 1 class"),
        ({"images": np.array([{}, {}]), "labels": [0, 1]}, "Object arrays cannot be loaded"),
    ],
)
def test_archives_with_wrong_arrays_are_errors(tmp_path, arrays, message):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=message) as error:
        open_images(tmp_path / "bad.npz")
    assert "bad.npz" in str(error.value)


def test_an_archive_of_one_class_suffices_for_a_known_model(tmp_path):
    """Folders of one class could be evaluated, archives and tables could not."""
    np.savez(tmp_path / "one.npz", images=pixels(2), labels=["cat", "cat"])
    [images] = open_images(tmp_path / "one.npz", least_classes=1).values()
    assert (images.classes, images.labels.tolist()) == (("cat",), [0, 0])
    with pytest.raises(DataError, match="only 1 class; 2 or more are needed"):
        open_images(tmp_path / "one.npz")


@pytest.mark.parametrize("damage", [b"", b"text", b"PK\x03\x04"])
def test_damaged_archives_are_errors(tmp_path, damage):
    np.savez(tmp_path / "whole.npz", images=pixels(5), labels=np.arange(5))
    valid = (tmp_path / "whole.npz").read_bytes()
    for content in (damage, valid[: len(valid) // 2], valid[:60] + b"\xff" * 40 + valid[100:]):
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(DataError, match="cannot be read as a NumPy archive"):
            open_images(tmp_path / "bad.npz")


def files_of(arrays, in_struct):
    data = list(map(encoded, arrays))
    return [{"bytes": content, "path": None} for content in data] if in_struct else data


@pytest.mark.parametrize("in_struct", [True, False])
def test_parquet_files_in_the_format_of_hugging_face(tmp_path, in_struct):
    for part, number in (("train-0-of-2", 0), ("train-1-of-2", 1), ("validation-0-of-1", 2)):
        columns = {"image": files_of(pixels(3, number), in_struct), "label": [0, 2, 0]}
        write_table(tmp_path / f"{part}.parquet", columns, ["cat", "dog", "owl"])
    sets = open_images(tmp_path)
    assert list(sets) == ["train", "validation"]
    assert sets["train"].classes == sets["validation"].classes == ("cat", "dog", "owl")
    assert sets["train"].labels.tolist() == [0, 2, 0] * 2
    assert_shows(sets["train"], [*pixels(3, 0), *pixels(3, 1)])
    assert_shows(sets["validation"], pixels(3, 2))
    # A file of the folder on its own.
    [table] = open_images(tmp_path / "train-1-of-2.parquet").values()
    assert_shows(table, pixels(3, 1))


def test_a_parquet_file_with_class_names_and_a_damaged_image(tmp_path):
    columns = {"img": [encoded(pixels(1)[0]), b"damaged", None], "class": ["dog", "cat", "cat"]}
    write_table(tmp_path / "pets.parquet", columns)
    [(name, images)] = open_images(tmp_path / "pets.parquet").items()
    assert (name, images.classes, images.labels.tolist()) == ("pets", ("cat", "dog"), [1, 0, 0])
    assert_shows(images.subset(np.array([0]), "one"), pixels(1))
    for row in (1, 2):
        with pytest.raises(DataError, match=rf"pets\.parquet: row {row}: cannot be read as an im"):
            images.read(row)


def test_parquet_files_with_wrong_columns_are_errors(tmp_path):
    write_table(tmp_path / "a.parquet", {"text": ["a"], "label": [0]})
    with pytest.raises(DataError, match="has the columns text, label; expected one of image, img"):
        open_images(tmp_path / "a.parquet")
    write_table(tmp_path / "a.parquet", {"image": ["a", "b"], "label": [0, 1]})
    with pytest.raises(DataError, match="its images are string; expected bytes of files"):
        open_images(tmp_path / "a.parquet")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 but damaged")
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read as a parquet file"):
        open_images(tmp_path / "a.parquet")
    write_table(tmp_path / "train-0.parquet", {"image": [b"", b""], "label": [0, 1]})
    with pytest.raises(DataError, match=r"a\.parquet: its name begins with none of train, val"):
        open_images(tmp_path)


def test_a_missing_pyarrow_is_an_error_that_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(MissingExtraError, match=r"pip install 'relu-nmt\[parquet\]'"):
        open_images(tmp_path)


@pytest.mark.parametrize("name", ["images", "labels", "classes"])
def test_an_entry_that_is_no_array_is_refused(tmp_path, name):
    arrays = {"images": pixels(3), "labels": np.arange(3), "classes": np.array(["a", "b", "c"])}
    np.savez(tmp_path / "whole.npz", **arrays)
    with (
        zipfile.ZipFile(tmp_path / "whole.npz") as archive,
        zipfile.ZipFile(tmp_path / "a.npz", "w") as damaged,
    ):
        for entry in archive.namelist():
            content = archive.read(entry)
            damaged.writestr(entry, content[1:] if entry == f"{name}.npy" else content)
    with pytest.raises(DataError, match=f"a.npz: {name} is damaged"):
        open_images(tmp_path / "a.npz")


def test_classes_that_are_no_list_are_an_error(tmp_path):
    np.savez(tmp_path / "a.npz", images=pixels(3), labels=np.arange(3), classes=np.array("abc"))
    with pytest.raises(DataError, match=r"a.npz: classes is damaged"):
        open_images(tmp_path / "a.npz")
