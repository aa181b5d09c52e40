"""Damaged pictures: each is named, and costs neither other results nor the training."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from relu_nmt.jobs.vision_train import job as train_images
from tests.commands import assert_refused, run_here
from tests.outputs import assert_same_tensors, weights
from tests.unit.vision.made_images import make_squares, zip_folder

FLAGS = [
    *("--cpu", "--image-size=12", "--patch-size=4", "--embed-dim=16", "--heads=2", "--layers=1"),
    *("--batch-size=5", "--lr=5e-3", "--warmup-updates=4", "--log-format=json", "--max-epoch=2"),
    "--no-epoch-checkpoints",
]


def cut(path):
    """Leave out the end of a picture, as an aborted copy does."""
    path.write_bytes(path.read_bytes()[:-40])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with 45 + 15 images, and a checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    make_squares(folder / "images/train", 15, seed=1)
    make_squares(folder / "images/val", 5, seed=2)
    run_here("vision_train", folder / "images", FLAGS, f"--save-dir={folder}")
    return folder


@pytest.fixture
def images(trained, tmp_path):
    """A copy of the images, to damage."""
    return shutil.copytree(trained / "images", tmp_path / "images")


def train(images, folder, *flags, check=True):
    return run_here("vision_train", images, FLAGS, f"--save-dir={folder}", flags, check=check)


def test_classify_prints_results_of_undamaged_pictures(trained, images, tmp_path):
    photos = sorted((images / "train").glob("*/*.png"))
    undamaged = run_here("vision_classify", trained / "checkpoint_last.safetensors", photos)
    cut(photos[33])
    photos[2].write_bytes(b"")
    done = run_here("vision_classify", trained / "checkpoint_last.safetensors", photos, check=False)
    lines = undamaged.stdout.splitlines()
    assert done.stdout.splitlines() == [*lines[:2], *lines[3:33], *lines[34:]]
    assert done.returncode == 2
    notes = done.stderr.splitlines()
    assert notes[0].startswith(f"{photos[2]}: cannot be read as an image (the file is empty)")
    assert notes[1].startswith(f"{photos[33]}: cannot be read as an image (image file is truncated")
    assert notes[2:] == ["2 of 45 pictures cannot be read"]
    words = [photos[2], photos[3], "nowhere.png", "--json"]
    done = run_here("vision_classify", trained / "checkpoint_last.safetensors", words, check=False)
    first, second, third = json.loads(done.stdout)
    assert (first["classes"], third["classes"], third["error"]) == (
        *({}, {}),
        "nowhere.png: no such image file",
    )
    assert len(second["classes"]) == 3 and "error" not in second and done.returncode == 2


@pytest.mark.parametrize("zipped", [False, True])
def test_evaluation_can_skip_damaged_images(trained, images, tmp_path, zipped):
    model = trained / "checkpoint_last.safetensors"
    data = images / "val"
    for name in ("blue/0000", "red/0003"):
        (data / f"{name}.png").unlink()
    undamaged = run_here("vision_evaluate", model, "--data", data)
    for name in ("blue/0000", "red/0003"):
        (data / f"{name}.png").write_text("<html>404</html>")
    if zipped:
        data = zip_folder(data, tmp_path / "val.zip")
    stopped = run_here("vision_evaluate", model, "--data", data, check=False)
    assert_refused(stopped, "repair or remove it, or give --skip-damaged-images")
    for size in ("1", "7"):  # of batches, with 1 some are empty
        flags = [f"--batch-size={size}", "--skip-damaged-images", f"--results={tmp_path}/r"]
        done = run_here("vision_evaluate", model, "--data", data, flags)
        assert done.stdout == undamaged.stdout.replace("\n", " (2 damaged ones left out)\n")
        for number, name in enumerate(("blue/0000", "red/0003"), 1):
            assert f"{data}: {name}.png: cannot be read" in done.stderr
            assert f"({number} so far, --skip-damaged-images)" in done.stderr
        [result] = json.loads((tmp_path / "r").read_text())["accuracies"]
        assert (result["images"], result["damaged"]) == (13, 2)


@pytest.mark.parametrize("method", ["knn", "ridge --shots=3", "linear --epochs=1"])
def test_probes_can_skip_damaged_images(trained, images, method):
    cut(images / "train/red/0003.png")
    cut(images / "val/blue/0000.png")
    words = [trained / "checkpoint_last.safetensors", "--train", images / "train"]
    words += ["--test", images / "val", *f"--method {method} --batch-size 1".split()]
    assert "--skip-damaged-images" in run_here("vision_probe", words, check=False).stderr
    done = run_here("vision_probe", words, "--skip-damaged-images")
    assert "blue/0000.png: cannot be read" in done.stderr


def test_ridge_regression_learns_from_undamaged_images(trained, images):
    words = ["--method=ridge", "--shots=15", "--seeds=0", "--eval-crop-ratio=1"]
    sets = ["--train", images / "train", "--test", images / "val"]
    (images / "train/red/0003.png").unlink()
    undamaged = run_here("vision_probe", trained / "checkpoint_last.safetensors", sets, words)
    (images / "train/red/0003.png").write_bytes(b"damaged")
    words.append("--skip-damaged-images")
    done = run_here("vision_probe", trained / "checkpoint_last.safetensors", sets, words)
    assert done.stdout == undamaged.stdout.splitlines()[-1] + "\n"


def test_damaged_images_are_found_before_the_first_update(images, tmp_path):
    for name in ("train/red/0003", "train/green/0004", "val/blue/0001"):
        cut(images / f"{name}.png")
    done = train(images, tmp_path / "run", check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    for name in ("train/red/0003", "train/green/0004", "val/blue/0001"):
        assert f"{images}: {name}.png: cannot be read as an image (image file is trunc" in (
            done.stderr
        )
    assert done.stderr.endswith("or give --skip-damaged-images\n")
    assert not (tmp_path / "run/checkpoint_last.safetensors").exists()


@pytest.mark.parametrize("check", ["", "--no-preflight"])
def test_training_can_skip_damaged_images(images, tmp_path, check):
    shutil.copytree(images, tmp_path / "repaired")
    for number in (3, 4):  # the next one that is whole takes their places
        cut(images / f"train/red/000{number}.png")
        path = tmp_path / f"repaired/train/red/000{number}.png"
        shutil.copy(images / "train/red/0005.png", path)
    for number in range(5):  # a whole batch
        cut(images / f"val/blue/000{number}.png")
        (tmp_path / f"repaired/val/blue/000{number}.png").unlink()
    flags = [*check.split(), "--train-crop=none"]
    done = train(images, tmp_path / "run", "--skip-damaged-images", flags)
    train(tmp_path / "repaired", tmp_path / "other", flags)
    assert_same_tensors(weights(tmp_path / "run"), weights(tmp_path / "other"))
    for name in ("train/red/0003", "train/red/0004", "val/blue/0002"):
        assert done.stdout.count(f"{name}.png: cannot be read") == 1
    assert "left out (7 so far, --skip-damaged-images)" in done.stdout
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert results["valid"] == json.loads((tmp_path / "other/results.json").read_text())["valid"]


@pytest.mark.parametrize("path", ["train/red/0003.png", "val/red/0003.png"])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_damaged_image_during_training_loses_no_progress(
    images, trained, tmp_path, path, zipped, monkeypatch
):
    monkeypatch.setattr(train_images, "check_images", lambda *_: [])
    cut(images / path)
    data = zip_folder(images, tmp_path / "images.zip") if zipped else images
    stopped = train(data, tmp_path / "run", "--no-preflight", check=False)
    assert_refused(stopped, f"{path}: cannot be read")
    done = int(stopped.stderr.split("goes on from update ")[1].split(",")[0])
    assert 0 < done <= 9
    shutil.copy(trained / "images" / path, images / path)
    train(zip_folder(images, data) if zipped else images, tmp_path / "run")
    assert_same_tensors(weights(tmp_path / "run"), weights(trained))
    for folder in (tmp_path / "run", trained):
        results = json.loads((folder / "results.json").read_text())
        assert results["num_updates"] == 18
        assert len(results["epochs"]) == 2


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_unusual_images_are_read_and_a_bomb_is_one_line(trained, tmp_path):
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 255, (20, 30, 3), dtype=np.uint8))
    picture.convert("CMYK").save(tmp_path / "cmyk.jpg")
    picture.save(tmp_path / "moves.gif", save_all=True, append_images=[picture.rotate(90)] * 2)
    picture.convert("P").save(tmp_path / "palette.png")
    picture.save(tmp_path / "wrong.png", format="JPEG")
    Image.new("1", (12_000, 10_000)).save(tmp_path / "large.png")  # Pillow warns of it
    Image.new("1", (20_000, 20_000)).save(tmp_path / "bomb.png")
    photos = sorted(tmp_path.iterdir())
    model = trained / "checkpoint_last.safetensors"
    done = run_here("vision_classify", model, photos, check=False)
    photos.remove(tmp_path / "bomb.png")
    names = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert names == list(map(str, photos))
    bomb, count = done.stderr.splitlines()
    assert bomb.startswith(f"{tmp_path / 'bomb.png'}: ")
    assert count.startswith("1 of 6 pictures cannot be read")


def test_a_budget_is_planned_without_damaged_images(images, tmp_path):
    cut(sorted((images / "train").glob("*/*.png"))[7])
    flags = [flag for flag in FLAGS if not flag.startswith("--max-epoch")]
    flags += ["--skip-damaged-images", f"--save-dir={tmp_path}"]
    done = run_here("vision_train", images, flags, "--budget=4u")
    assert "so 4 updates" in done.stdout
