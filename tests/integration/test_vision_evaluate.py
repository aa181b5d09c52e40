"""relu-nmt-vision-evaluate and -classify with a classifier of colored squares."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from relu_nmt import ImageClassifier
from relu_nmt.errors import CheckpointError, ConfigError, DataError
from relu_nmt.vision.config import PreprocessingConfig
from relu_nmt.vision.image_files import read_image
from relu_nmt.vision.images import open_images
from relu_nmt.vision.transforms import ImageTransform
from tests.commands import assert_refused, run_here
from tests.outputs import column, names_in
from tests.unit.vision.made_images import make_squares, zip_folder

TRAIN = (
    "--cpu --image-size 12 --patch-size 4 --embed-dim 64 --heads 2 --layers 1 --batch-size 20 "
    "--lr 5e-3 --warmup-updates 4 --log-format json --no-epoch-checkpoints"
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with images, and a checkpoint that tells their colors apart, but not always."""
    folder = tmp_path_factory.mktemp("trained")
    make_squares(folder / "images/train", 40, seed=1)
    make_squares(folder / "images/val", 10, seed=2)
    make_squares(folder / "images/test", 8, seed=3)
    run_here(
        "vision_train", folder / "images", TRAIN.split(), "--max-epoch=2", f"--save-dir={folder}"
    )
    return folder


def checkpoint(folder):
    return folder / "checkpoint_last.safetensors"


def pictures_of(images):
    return list(map(images.read, range(len(images))))


def expected_accuracy(folder, images):
    """Top-1 accuracy, one image at a time."""
    classifier = ImageClassifier.from_checkpoint(checkpoint(folder), device="cpu")
    right = 0
    for picture, label in zip(pictures_of(images), images.labels, strict=True):
        [shares] = classifier.classify([picture])
        right += next(iter(shares)) == images.classes[label]
    return 100 * right / len(images)


def evaluate(trained, *flags, check=True):
    return run_here("vision_evaluate", checkpoint(trained), "--cpu", flags, check=check)


def test_all_sets_except_train_are_evaluated(trained, tmp_path):
    zip_folder(trained / "images/train", tmp_path / "t.zip")
    file = tmp_path / "accuracy.json"
    flags = ["--batch-size=7", "--num-workers=2", f"--results={file}"]
    done = evaluate(trained, "--data", trained / "images", tmp_path / "t.zip", flags)
    lines = done.stdout.splitlines()
    assert re.findall("^.*?(?=:)", done.stdout, re.MULTILINE) == ["val", "test", "t"]
    record = json.loads(file.read_text())
    sets = open_images(trained / "images")
    names = "val", "test", "train"
    for line, entry, name in zip(lines, record["accuracies"], names, strict=True):
        top1 = expected_accuracy(trained, sets[name])
        assert entry["top1"] == pytest.approx(top1)
        assert entry["top5"] is None  # of three classes
        assert line.endswith(f"{len(sets[name])} images at 12x12: top-1 {top1:.2f}")
    assert record["settings"]["path"] == str(checkpoint(trained))
    assert record["absent"] == []


def test_evaluation_at_other_sizes_and_dtypes(trained):
    done = evaluate(trained, "--data", trained / "images", "--image-size=12,16,24", "--bf16")
    sizes = re.findall(r" at (\d+)x", done.stdout)
    assert sizes == ["12", "12", "16", "16", "24", "24"]
    half = evaluate(trained, "--data", trained / "images/val", "--eval-crop-ratio=0.5")
    assert half.stdout.startswith("val: 30 images at 12x12")
    odd = evaluate(trained, "--data", trained / "images/val", "--image-size=13,9x21")
    sizes = re.findall(": (.*?):", odd.stdout)
    assert sizes == ["30 images at 13x13", "30 images at 9x21"]
    for size in ("0", "9x9x9", "9xa", "9x"):
        done = evaluate(trained, "--data", trained, f"--image-size={size}", check=False)
        assert done.returncode == 2
        assert re.search(f"--image-size.*{size}'?: expected", done.stderr)


def test_top_5_counts_the_five_best(trained, tmp_path):
    """With labels changed at random, the accuracies of every depth are known."""
    classes = "abcdefgh"
    rng = np.random.default_rng(0)
    for name in classes:
        (tmp_path / "eight" / name).mkdir(parents=True)
        for number in range(3):
            pixels = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "eight" / name / f"{number}.png")
    flags = [*TRAIN.split(), "--max-update=1", "--disable-validation", f"--save-dir={tmp_path}"]
    run_here("vision_train", tmp_path / "eight", flags)
    file = tmp_path / "results.json"
    run_here(
        "vision_evaluate", checkpoint(tmp_path), "--data", tmp_path / "eight", "--results", file
    )
    [record] = json.loads(file.read_text())["accuracies"]
    classifier = ImageClassifier.from_checkpoint(checkpoint(tmp_path))
    [images] = open_images(tmp_path / "eight").values()
    ranks = []
    ranked = classifier.classify(pictures_of(images), batch_size=5)
    for shares, label in zip(ranked, images.labels, strict=True):
        ranks.append(list(shares).index(classes[label]))
    assert record["top1"] == pytest.approx(100 * np.mean(np.array(ranks) < 1))
    assert record["top5"] == pytest.approx(100 * np.mean(np.array(ranks) < 5))
    assert record["top1"] < record["top5"] < 100


def test_evaluation_can_be_restricted_to_a_list_of_classes(trained, tmp_path):
    two = tmp_path / "two"
    for name in ("blue", "red"):
        shutil.copytree(trained / "images/test" / name, two / name)
    for name in ("violet", "sky blue"):
        shutil.copytree(trained / "images/test/green", two / name)
    file = tmp_path / "classes.txt"
    file.write_text("violet none such\nred the color of blood\n\nblue\nsky blue\n")
    results = tmp_path / "r.json"
    done = evaluate(trained, "--data", two, "--classes", file, "--results", results)
    expected = "does not have 2 of the classes, whose images count as wrong: violet, sky blue"
    assert expected in done.stdout
    result = json.loads(results.read_text())
    assert result["absent"] == ["violet", "sky blue"]
    classifier = ImageClassifier.from_checkpoint(checkpoint(trained))
    [images] = open_images(two).values()
    right = 0
    for index in range(len(images)):
        [probabilities] = classifier.classify([images.read(index)])
        best = "blue" if probabilities["blue"] > probabilities["red"] else "red"
        right += best == images.classes[images.labels[index]]
    assert result["accuracies"][0]["top1"] == pytest.approx(100 * right / 32)

    file.write_text("blue\n")
    refused = evaluate(trained, "--data", two, "--classes", file, check=False)
    assert "the class 'red' of two is not among the 1 classes of --classes" in refused.stderr
    file.write_text("violet\n")
    refused = evaluate(trained, "--data", two, "--classes", file, check=False)
    assert "none of its lines is a class of" in refused.stderr
    refused = evaluate(trained, "--data", two, check=False)
    assert (
        f"'sky blue' of two is not among the 3 classes of {checkpoint(trained)}" in refused.stderr
    )


@pytest.mark.parametrize("kind", [str, Path, read_image])
def test_a_single_picture_is_classified(trained, kind):
    photo = trained / "images/test/red/0001.png"
    classifier = ImageClassifier.from_checkpoint(checkpoint(trained), "cpu")
    assert classifier.classify(kind(photo)) == classifier.classify([photo])


def test_classify_prints_the_likeliest_classes(trained):
    photos = [trained / "images/test/red/0001.png", trained / "images/test/blue/0000.png"]
    done = run_here("vision_classify", checkpoint(trained), "--top-k=2", photos, "--cpu")
    expected = ImageClassifier.from_checkpoint(checkpoint(trained), "cpu").classify(photos, 2)
    for line, photo, shares in zip(done.stdout.splitlines(), photos, expected, strict=True):
        name, *pairs = line.split("\t")
        assert name == str(photo)
        assert pairs == [f"{label} {share:.1%}" for label, share in shares.items()]
        assert len(pairs) == 2
    done = run_here("vision_classify", checkpoint(trained), photos[0], "--json", photos[1])
    entries = json.loads(done.stdout)
    assert column(entries, "image") == list(map(str, photos))
    for image in entries:
        assert list(image["classes"].values()) == sorted(image["classes"].values(), reverse=True)
        assert sum(image["classes"].values()) == pytest.approx(1, abs=1e-5)


def test_data_and_checkpoint_are_arguments_or_flags_in_every_command(trained):
    photo = trained / "images/test/red/0001.png"
    data = trained / "images/val"
    model = "--path"
    for command, images in (("vision_classify", photo), ("vision_evaluate", data)):
        file = checkpoint(trained)
        forms = [(images, model, file), (model, file, images)]
        forms += [(file, "--data", images), (model, file, "--data", images)]
        expected = run_here(command, file, images, "--cpu").stdout
        for words in forms:
            assert run_here(command, words, "--cpu").stdout == expected
        twice = run_here(command, model, file, images, "--data", images, check=False)
        assert "--data" in twice.stderr and "is given too; leave one out" in twice.stderr
    sets = ["--train", data, "--test", data, "--method", "knn", "--cpu"]
    expected = run_here("vision_probe", file, sets).stdout
    assert run_here("vision_probe", model, file, sets).stdout == expected
    swapped = run_here("vision_classify", photo, file, check=False)
    assert "the first word is the checkpoint, unless --path CKPT names it" in swapped.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.png"], "nowhere.png: no such image file"),
        (["."], ".: a folder; give the image files in it"),
        (["CKPT"], "checkpoint_last.safetensors: cannot be read as an image"),
        ([], "PHOTO is missing"),
        (["a.png", "--top-k=0"], "--top-k 0: expected 1 or more"),
        (["a.png", "--fp16", "--cpu"], "--fp16 needs a CUDA GPU"),
    ],
)
def test_mistakes_are_one_line(trained, words, message):
    words = [str(checkpoint(trained)) if word == "CKPT" else word for word in words]
    done = run_here("vision_classify", checkpoint(trained), words, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert message in done.stderr


def test_classifying_pictures_and_files_from_python(trained, tmp_path):
    classifier = ImageClassifier.from_checkpoint(
        checkpoint(trained), dtype=torch.bfloat16, attention_backend="reference"
    )
    gray = Image.new("L", (40, 30), 128)
    gray.save(tmp_path / "gray.gif")
    deep = Image.fromarray(np.full((30, 40), 128 * 257, dtype=np.uint16))
    first, *later = classifier.classify([gray, tmp_path / "gray.gif", deep])
    assert later == [first, first]
    assert classifier.classify([]) == []
    with pytest.raises(DataError, match="no such image file"):
        classifier.classify([tmp_path / "nowhere.png"])
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        ImageClassifier.from_checkpoint(tmp_path / "nowhere.safetensors")


def test_another_size_keeps_the_same_share_of_a_picture():
    """The share differs from the default of the new size."""
    transform = ImageTransform(PreprocessingConfig(), 64).with_size(128)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (128, 128, 3), np.uint8))
    uncropped = ImageTransform(PreprocessingConfig(eval_crop_ratio=1.0), 128)
    assert np.array_equal(transform.evaluation(image), uncropped.evaluation(image))
    default = ImageTransform(PreprocessingConfig(), 128)
    assert not np.array_equal(transform.evaluation(image), default.evaluation(image))


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_images_of_one_class_of_the_model_are_evaluated(trained, tmp_path, form):
    name = names_in(trained / "images/test")[1]
    shutil.copytree(trained / "images/test" / name, tmp_path / "one" / name)
    data = tmp_path / "one"
    if form == "zip":
        zip_folder(data, tmp_path / "one.zip")
        data = tmp_path / "one.zip"
    done = evaluate(trained, data)
    [images] = open_images(data, least_classes=1).values()
    assert f"top-1 {expected_accuracy(trained, images):.2f}" in done.stdout
    done = run_here("vision_train", data, "--cpu", "--batch-size=2", check=False)
    assert_refused(done, "must lie in 2 class folders or more")


@pytest.mark.parametrize("pictures", [{"a.png"}, {"a.png": "b"}])
def test_pictures_without_an_order_are_refused(trained, pictures):
    classifier = ImageClassifier.from_checkpoint(checkpoint(trained), device="cpu")
    with pytest.raises(DataError, match=r"images are a .*, which has no order"):
        classifier.classify(pictures)


def test_a_classifier_needs_a_path():
    with pytest.raises(CheckpointError, match="checkpoint None: expected a path"):
        ImageClassifier.from_checkpoint(None)


def test_a_probe_without_a_method_names_the_methods(trained):
    images = trained / "images"
    flags = (checkpoint(trained), "--train", images, "--test", images)
    done = run_here("vision_probe", flags, check=False)
    assert_refused(done, "--method is missing")
    assert done.stderr.endswith("(knn, ridge, linear)\n")


@pytest.mark.parametrize("pictures", [None, 5, b"a.png", [None]])
def test_what_is_no_picture_is_an_error(trained, pictures):
    classifier = ImageClassifier.from_checkpoint(checkpoint(trained), device="cpu")
    with pytest.raises(ConfigError, match="expected a path, or an image of Pillow"):
        classifier.classify(pictures)


def test_attention_maps_are_drawn_beside_the_classes(trained, tmp_path):
    photos = sorted((trained / "images/test").rglob("*.png"))[:2]
    maps = tmp_path / "new/maps"
    flags = ["--cpu", f"--attention-maps={maps}"]
    printed = run_here("vision_classify", checkpoint(trained), photos, flags)
    assert len(printed.stdout.splitlines()) == 2
    assert names_in(maps) == [f"{path.stem}.svg" for path in photos]
    assert "layer 0, head 1" in (maps / f"{photos[0].stem}.svg").read_text("utf-8")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--attention-layer=0"], "--attention-layer 0 does nothing without --attention-maps"),
        (
            ["--attention-maps=maps", "--attention-layer=1"],
            "attention layer 1: the layers are 0 to 0",
        ),
        (["--attention-maps=maps", "other/0.png"], "would have the same map, 0.svg"),
    ],
)
def test_attention_maps_that_cannot_be_drawn_are_refused(
    trained, tmp_path, monkeypatch, flags, message
):
    monkeypatch.chdir(tmp_path)
    photo = tmp_path / "0.png"
    Image.new("RGB", (12, 12)).save(photo)
    result = run_here("vision_classify", checkpoint(trained), photo, "--cpu", flags, check=False)
    assert_refused(result, message)
