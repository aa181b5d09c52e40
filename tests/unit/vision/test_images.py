import shutil

import numpy as np
import pytest
from PIL import Image

from relu_nmt.errors import DataError
from relu_nmt.vision.image_files import read_image, to_rgb
from relu_nmt.vision.images import add_set, hold_out, open_images, with_classes_of
from tests.unit.vision.made_images import make_squares, zip_folder


@pytest.fixture
def squares(tmp_path):
    return make_squares(tmp_path / "squares", 4)


def only(path):
    [images] = open_images(path).values()
    return images


def test_a_zip_is_the_same_as_the_folder(squares, tmp_path):
    folder = only(squares)
    archive = only(zip_folder(squares, tmp_path / "squares.zip"))
    assert folder.classes == archive.classes == ("blue", "green", "red")
    assert folder.paths == archive.paths
    assert folder.name == archive.name == "squares"
    assert folder.labels.tolist() == archive.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    for index in range(len(folder)):
        assert folder.read(index).tobytes() == archive.read(index).tobytes()


def test_folders_train_and_val_are_two_sets(squares, tmp_path):
    for name in ("train", "test", "val", "notes"):
        shutil.copytree(squares, tmp_path / "both" / name)
    sets = open_images(tmp_path / "both")
    assert list(sets) == ["train", "val", "test"]
    assert set(map(len, sets.values())) == {12}
    assert sets["val"].paths[0] == "val/blue/0000.png"


@pytest.mark.parametrize("around", ["photos", "my photos/photos"])
@pytest.mark.parametrize("zipped", [False, True])
def test_an_enclosing_folder_is_searched(squares, tmp_path, around, zipped):
    outer = tmp_path / "outer"
    shutil.copytree(squares, outer / around)
    for junk in ("__MACOSX/photos/blue/._0000.png", ".hidden/a/1.png", "notes.txt"):
        (outer / junk).parent.mkdir(parents=True, exist_ok=True)
        (outer / junk).write_bytes(b"junk")
    images = only(zip_folder(outer, tmp_path / "outer.zip") if zipped else outer)
    assert (images.name, images.classes) == ("outer", ("blue", "green", "red"))
    assert (len(images), images.num_ignored, images.empty) == (12, 3, ())
    assert images.paths[0] == f"{around}/blue/0000.png"
    assert images.read(0).size == (12, 12)


def test_folders_around_and_inside_train_and_val_are_searched(squares, tmp_path):
    for folder in ("train/photos", "val"):
        shutil.copytree(squares, tmp_path / "outer/data" / folder)
    sets = open_images(tmp_path / "outer")
    assert list(sets) == ["train", "val"]
    for images in sets.values():
        assert (len(images), images.classes) == (12, ("blue", "green", "red"))


def test_a_class_may_be_called_train(squares):
    (squares / "red").rename(squares / "train")
    assert only(squares).classes == ("blue", "green", "train")


def test_folders_without_images_are_reported(squares, tmp_path):
    for name in ("empty", "iphone", "__MACOSX"):
        (squares / name).mkdir()
    (squares / "iphone/1.heic").write_bytes(b"")
    for images in (only(squares), only(zip_folder(squares, tmp_path / "squares.zip"))):
        assert images.classes == ("blue", "green", "red")
        assert images.empty == ("empty", "iphone")
        assert "hold no images in squares: empty, iphone" in images.left_out()[-1]
        remaining, held = hold_out(images, 0.25)
        assert remaining.left_out() == images.left_out() and held.left_out() == []


def test_files_that_are_no_images_are_counted(squares):
    (squares / "blue/notes.txt").write_text("a note")
    (squares / "blue/._0000.png").write_bytes(b"")
    (squares / "loose.png").write_bytes(b"")
    images = only(squares)
    assert (len(images), images.num_ignored) == (12, 3)


def test_hidden_folders_are_not_classes(squares):
    for folder in (".ipynb_checkpoints", "red/.thumbnails"):
        shutil.copytree(squares / "blue", squares / folder)
    images = only(squares)
    assert images.classes == ("blue", "green", "red")
    assert (len(images), images.num_ignored) == (12, 8)


def test_images_deeper_in_a_class_folder_belong_to_it(squares):
    (squares / "red/more").mkdir()
    shutil.copy(squares / "red/0000.png", squares / "red/more/x.PNG")
    assert "red/more/x.PNG" in only(squares).paths


@pytest.mark.parametrize("damage", [b"", b"no image at all", "cut off"])
@pytest.mark.parametrize("zipped", [False, True])
def test_an_unreadable_image_is_named(squares, tmp_path, damage, zipped):
    victim = squares / "green/0002.png"
    victim.write_bytes(victim.read_bytes()[:40] if damage == "cut off" else damage)
    images = only(zip_folder(squares, tmp_path / "squares.zip") if zipped else squares)
    with pytest.raises(DataError, match=r"squares.*: green/0002\.png: cannot be read as") as error:
        images.read(6)
    assert "0x" not in str(error.value)


RAMP = np.arange(256, dtype=np.uint8).reshape(16, 16)


@pytest.mark.parametrize("kind", ["png", "tif", "big-endian.tif", "pgm", "pgm of 10 bits"])
def test_16_bit_grays_are_scaled(tmp_path, kind):
    path = tmp_path / f"gray.{kind.split()[0]}"
    if "pgm" in kind:
        max_gray = 1023 if "10" in kind else 65535
        grays = np.round(RAMP * (max_gray / 255)).astype(">u2")
        path.write_bytes(b"P5 16 16 %d\n" % max_gray + grays.tobytes())
    else:
        kind = ">u2" if "big" in kind else "<u2"
        Image.fromarray((RAMP * 257.0).astype(kind)).save(path)
    image = read_image(path)
    assert image.mode == "RGB"
    assert np.array_equal(np.asarray(image), RAMP[..., None].repeat(3, 2))


@pytest.mark.parametrize(
    ("orientation", "stored"),  # EXIF 2.32: the sides of row 0 and column 0 of the stored pixels
    [
        (1, lambda upright: upright),
        (2, lambda upright: upright[:, ::-1]),
        (3, lambda upright: upright[::-1, ::-1]),
        (4, lambda upright: upright[::-1]),
        (5, lambda upright: upright.swapaxes(0, 1)),
        (6, lambda upright: np.rot90(upright)),
        (7, lambda upright: upright[::-1, ::-1].swapaxes(0, 1)),
        (8, lambda upright: np.rot90(upright, -1)),
    ],
)
def test_photos_are_rotated_upright(tmp_path, orientation, stored):
    upright = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    image = Image.fromarray(np.ascontiguousarray(stored(upright)))
    exif = image.getexif()
    exif[0x0112] = orientation
    path = tmp_path / "photo.png"
    image.save(path, exif=exif)
    assert np.array_equal(np.asarray(read_image(path)), upright)
    assert np.array_equal(np.asarray(to_rgb(Image.open(path), "image")), upright)
    assert np.array_equal(np.asarray(read_image(path, upright=False)), stored(upright))


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_pixels_of_32_bits_are_refused(squares, kind):
    gray = Image.fromarray(RAMP.astype(kind))
    gray.save(squares / "blue/0000.tif")
    expected = "32-bit or signed pixels; expected 8 or 16 bits without sign; convert or remove it"
    with pytest.raises(DataError, match=rf"squares: blue/0000\.tif: {expected}$"):
        only(squares).read(1)
    with pytest.raises(DataError, match=rf"^image: {expected}$"):
        to_rgb(gray, "image")


def test_transparent_palettes_are_read_without_a_warning(tmp_path, recwarn):
    path = tmp_path / "palette.png"
    palette = Image.fromarray(RAMP).convert("P")
    palette.save(path, transparency=bytes(range(256)))
    assert read_image(path).tobytes() == palette.convert("RGB").tobytes()
    assert not recwarn.list


def test_a_removed_image_is_named(squares):
    images = only(squares)
    (squares / "blue/0001.png").unlink()
    with pytest.raises(DataError, match=r"blue/0001\.png: cannot be read"):
        images.read(1)


def test_a_path_without_images_is_an_error(squares, tmp_path):
    with pytest.raises(DataError, match="nowhere: no such folder or file"):
        open_images(tmp_path / "nowhere")
    (tmp_path / "text.zip").write_text("no zip")
    with pytest.raises(DataError, match=r"text\.zip: cannot be read as a zip file"):
        open_images(tmp_path / "text.zip")
    with pytest.raises(
        DataError, match=r"no class in it; images \(\.jpg, .* must lie in 2 class folders"
    ):
        open_images(squares / "red")
    shutil.rmtree(squares / "red")
    shutil.rmtree(squares / "green")
    with pytest.raises(DataError, match="only the class 'blue' in it"):
        open_images(squares)


def test_validation_images_get_the_class_indices_of_training(squares, tmp_path):
    part = make_squares(tmp_path / "part", 2)
    shutil.rmtree(part / "blue")
    images = with_classes_of(only(part), only(squares).classes, "theirs")
    assert images.labels.tolist() == [1, 1, 2, 2]
    assert images.absent == ["blue"]
    (part / "red").rename(part / "violet")
    with pytest.raises(DataError, match="'violet' of part is not among the 3 classes of theirs"):
        with_classes_of(only(part), only(squares).classes, "theirs")


def test_held_out_images_cover_every_class_and_never_change(squares):
    images = only(squares)
    remaining, held = hold_out(images, 0.25)
    assert sorted([*remaining.paths, *held.paths]) == sorted(images.paths)
    assert held.labels.tolist() == [0, 1, 2]
    assert held.name == "valid"
    assert hold_out(images, 0.25)[1].paths == held.paths
    assert np.bincount(remaining.labels).tolist() == [3, 3, 3]
    for index, path in enumerate(remaining.paths):
        assert remaining.classes[remaining.labels[index]] == path.split("/")[0]


def test_a_class_of_one_image_cannot_be_split(squares):
    for path in list((squares / "red").iterdir())[1:]:
        path.unlink()
    with pytest.raises(DataError, match="class 'red' has one image only"):
        hold_out(only(squares), 0.5)


def test_sets_with_the_same_name_get_numbers(squares):
    images = only(squares)
    sets = add_set(add_set(add_set({}, images), images), images)
    assert list(sets) == ["squares", "squares2", "squares3"]
