"""relu-nmt-vision-probe, and training that starts from a classifier of other classes."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from relu_nmt.vision.base import Grid, resize_positions
from relu_nmt.vision.images import open_images
from relu_nmt.vision.loading import ImageClassifier
from relu_nmt.vision.probes import choose_shots, neighbor_scores, ridge_scores
from tests.commands import ROOT, run_here
from tests.outputs import column, weights
from tests.unit.vision.made_images import make_squares, zip_folder

SHAPE = "--cpu --image-size 12 --patch-size 4 --embed-dim 32 --heads 2 --layers 1"
TRAIN = f"{SHAPE} --batch-size 20 --lr 5e-3 --log-format json --no-epoch-checkpoints"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with images, and a checkpoint of a short training."""
    folder = tmp_path_factory.mktemp("trained")
    make_squares(folder / "images/train", 15, seed=1)
    make_squares(folder / "images/test", 8, seed=3)
    run_here(
        "vision_train",
        folder / "images",
        TRAIN.split(),
        "--attention=reluformer",
        "--max-update=40",
        f"--save-dir={folder}",
    )
    return folder


def checkpoint(folder):
    return folder / "checkpoint_last.safetensors"


def probe(trained, method, *flags, check=True):
    paths = ["--train", trained / "images", "--test", trained / "images/test"]
    words = [checkpoint(trained), "--cpu", paths, "--method", method, flags]
    return run_here("vision_probe", words, check=check)


def features(trained, name, numbers=None):
    """Features of images, one at a time. Test and training squares are square already."""
    classifier = ImageClassifier.from_checkpoint(checkpoint(trained), "cpu")
    transform = classifier.transform.with_eval_ratio(1.0)
    images = open_images(trained / "images")[name]
    numbers = range(len(images)) if numbers is None else numbers
    views = (torch.from_numpy(transform.evaluation(images.read(i))) for i in numbers)
    rows = torch.cat([classifier.outputs(view[None]).features for view in views])
    return rows, torch.from_numpy(images.labels)[list(numbers)]


def right(scores, labels):
    return 100 * float((scores.argmax(1) == labels).double().mean())


def test_nearest_neighbors(trained, tmp_path):
    file = tmp_path / "knn.json"
    flags = ["--neighbours=7", "--temperature=0.1", "--eval-crop-ratio=1", "--batch-size=7"]
    done = probe(trained, "knn", flags, "--results", file)
    rows, labels = features(trained, "train")
    test, test_labels = features(trained, "test")
    expected = right(neighbor_scores(rows, labels, test, 3, 7, 0.1), test_labels)
    values = json.loads(file.read_text())
    [result] = values["results"]
    assert result["top1"] == values["top1"] == pytest.approx(expected)
    assert (result["classes"], result["train_images"], result["test_images"]) == (3, 45, 24)
    assert result["top5"] is None  # of three classes
    assert values["settings"]["neighbors"] == 7
    path = trained / "images/test"
    assert done.stdout == f"{path}: knn: 24 images of 3 classes: top-1 {expected:.2f}\n"


def test_ridge_regression_from_a_few_images(trained, tmp_path):
    file = tmp_path / "ridge.json"
    flags = ["--shots=4", "--seeds=0,5", "--l2=10", "--eval-crop-ratio=1"]
    done = probe(trained, "ridge", flags, "--results", file)
    [result] = json.loads(file.read_text())["results"]
    labels = open_images(trained / "images")["train"].labels
    test, test_labels = features(trained, "test")
    expected = []
    for seed in (0, 5):
        rows, of_rows = features(trained, "train", choose_shots(labels, 3, 4, seed).tolist())
        expected.append(right(ridge_scores(rows, of_rows, test, 3, 10.0), test_labels))
    assert result["by_seed"] == pytest.approx(expected)
    assert result["top1"] == pytest.approx(np.mean(expected))
    assert f"({expected[0]:.2f}, {expected[1]:.2f})" in done.stdout
    assert "have fewer" not in done.stdout


def test_classes_with_fewer_images_than_shots_are_reported(trained):
    done = probe(trained, "ridge", "--shots=1000", "--seeds=0")
    expected = "3 of 3 classes have fewer than --shots 1000 images; all of theirs are taken"
    assert done.stdout.startswith(f"{trained / 'images'}: {expected}\n")


def test_a_linear_classifier_learns_on_random_views(trained):
    flags = ["--lr=0.03", "--batch-size=15", "--epochs=20", "--eval-crop-ratio=1"]
    first, second = (probe(trained, "linear", flags, "--num-workers=2").stdout for _ in range(2))
    assert first == second  # to the last digit printed
    assert float(first.split("top-1 ")[1]) > 90
    flags = ["--epochs=1", "--seed=2", "--bf16", "--features=joined", "--image-size=16x9"]
    other = probe(trained, "linear", flags).stdout
    assert "linear: 24 images of 3 classes" in other


def test_several_data_sets_are_probed_separately_and_averaged(trained, tmp_path):
    for name in ("train", "test"):  # another set, of two of the classes
        for number, kind in enumerate(sorted((trained / "images" / name).iterdir())[:2]):
            shutil.copytree(kind, tmp_path / name / str(number))
    single = [
        float(probe(trained, "knn", flags).stdout.split("top-1 ")[1])
        for flags in ([], ["--train", tmp_path / "train", "--test", tmp_path / "test"])
    ]
    flags = ["--train", trained / "images", tmp_path / "train"]
    flags += ["--test", trained / "images/test", tmp_path / "test"]
    file = tmp_path / "both.json"
    *lines, mean = probe(trained, "knn", flags, "--results", file).stdout.splitlines()
    assert [float(line.split("top-1 ")[1]) for line in lines] == single
    assert mean.startswith("mean of 2 data sets: top-1 ")
    assert column(json.loads(file.read_text())["results"], "test") == list(
        map(str, (trained / "images/test", tmp_path / "test"))
    )
    assert json.loads(file.read_text())["top1"] == pytest.approx(np.mean(single), abs=0.01)


@pytest.mark.parametrize(
    ("method", "flags", "message"),
    [
        ("svm", [], "--method svm: expected one of knn, ridge, linear"),
        ("knn", ["--shots=3"], "--shots 3 does nothing with --method knn; it needs --method ridge"),
        ("knn", ["--features=joined"], "--features joined does nothing with --method knn"),
        ("knn", ["--image-size=1x2x3"], "--image-size 1x2x3: expected one number, or height and"),
        ("ridge", ["--lr=3"], "--lr 3 does nothing with --method ridge"),
        ("linear", ["--lr=1e38", "--epochs=3"], "--lr 1e+38: scores are not finite; lower it"),
        ("knn", ["--results=/proc/at/all.json"], "--results /proc/at/all.json: cannot write"),
        ("knn", ["--test", "a", "b"], "--train has 1 and --test 2 data sets; give one for each"),
        ("knn", ["--test=nowhere"], "nowhere: no such folder or file of images"),
    ],
)
def test_mistakes_are_one_line(trained, method, flags, message):
    done = probe(trained, method, flags, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("relu-nmt-vision-probe: error: ")
    assert message in done.stderr


def test_a_path_with_several_test_sets_is_an_error(trained, tmp_path):
    shutil.copytree(trained / "images", tmp_path / "images")
    shutil.copytree(tmp_path / "images/test", tmp_path / "images/val")
    done = probe(trained, "knn", "--test", tmp_path / "images", check=False)
    assert "holds train, val, test; give the path of one" in done.stderr


def finetune(trained, data, folder, *flags, check=True):
    start = f"--finetune-from-model={checkpoint(trained)}"
    words = [data, TRAIN.split(), "--attention=reluformer", "--valid-fraction=0.2"]
    return run_here("vision_train", words, start, flags, f"--save-dir={folder}", check=check)


def test_the_example_unpacks_images_whole_or_not_at_all(trained, tmp_path):
    command = ["bash", ROOT / "examples/transfer/run.sh"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "IMAGES": str(tmp_path), "OUT": f"{tmp_path}/out"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"{tmp_path}/train.zip: no such file; set IMAGES (see README.md)\n"
    archive = zip_folder(trained / "images/train", tmp_path / "train.zip")
    with zipfile.ZipFile(archive) as images:
        last = [entry for entry in images.infolist() if not entry.is_dir()][-1]
    damaged = bytearray(archive.read_bytes())
    damaged[last.header_offset : last.header_offset + 4] = b"gone"
    archive.write_bytes(damaged)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert not (tmp_path / "out/unpacked/train").exists()


def test_training_starts_from_a_model_of_other_classes(trained, tmp_path):
    shutil.copytree(trained / "images/train", tmp_path / "four")
    (tmp_path / "four/red").rename(tmp_path / "four/crimson")
    shutil.copytree(tmp_path / "four/crimson", tmp_path / "four/scarlet")
    done = finetune(trained, tmp_path / "four", tmp_path / "run", "--max-update=1", "--lr=1e-9")
    assert "the head for 4 other classes starts anew" in done.stdout
    before, after = weights(trained), weights(tmp_path / "run")
    assert after["head.weight"].shape == (4, 32)
    for name, tensor in before.items():
        if not name.startswith("head."):
            torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-7)
    # It goes on from its last checkpoint, and refuses checkpoints of other classes as ever.
    again = finetune(trained, tmp_path / "four", tmp_path / "run", "--max-update=2")
    assert "go on from" in again.stdout and "starts anew" not in again.stdout
    refused = finetune(
        trained, trained / "images/train", tmp_path / "run", "--max-update=3", check=False
    )
    assert "trained with other classes" in refused.stderr


def test_the_same_classes_keep_the_head_and_another_size_interpolates_positions(trained, tmp_path):
    flags = ["--max-update=1", "--lr=1e-9", "--image-size=24x18"]
    done = finetune(trained, trained / "images/train", tmp_path / "run", flags)
    assert "--image-size 24x18 (was 12)" in done.stdout
    assert "positions of 12x12 pixels are interpolated to those of 24x18" in done.stdout
    assert "starts anew" not in done.stdout
    before, after = weights(trained), weights(tmp_path / "run")
    torch.testing.assert_close(after["head.weight"], before["head.weight"], rtol=0, atol=1e-7)
    old = before["positions"]
    expected = torch.cat([old[:1], resize_positions(old[1:], Grid(3, 3), Grid(6, 5))])
    torch.testing.assert_close(after["positions"], expected, rtol=0, atol=1e-7)
