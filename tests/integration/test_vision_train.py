"""relu-nmt-vision-train on colored squares: learning, resuming, zip files, mistakes."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from relu_nmt.cli import vision_train
from relu_nmt.errors import CheckpointError
from relu_nmt.jobs.vision_train.job import config_for_data, with_cosine_period
from relu_nmt.jobs.vision_train.settings import RECIPES, ImageTrainingSettings, VisionTrainerConfig
from relu_nmt.training.checkpoint import load_checkpoint
from relu_nmt.training.config import TrainerConfig
from relu_nmt.training.schedules import build_schedule
from relu_nmt.translation.building import load_model
from relu_nmt.vision.images import open_images
from relu_nmt.vision.loading import ImageClassifier
from tests.commands import assert_refused, run_here
from tests.outputs import assert_same_tensors, containing, json_lines, starting, tensors, values
from tests.unit.vision.made_images import make_squares, write_table, zip_folder

ROOT = Path(__file__).parents[2]
TINY = (
    "--cpu --image-size 12 --patch-size 4 --embed-dim 64 --heads 2 --layers 1 --batch-size 20 "
    "--lr 5e-3 --warmup-updates 4 --log-format json --log-interval 1"
)


@pytest.fixture(scope="module")
def squares(tmp_path_factory):
    """A folder with train and val, 40 and 10 pictures of each of three colors."""
    folder = tmp_path_factory.mktemp("squares")
    make_squares(folder / "train", 40, seed=1)
    make_squares(folder / "val", 10, seed=2)
    return folder


def run(data, flags, capsys=None):
    """Run the command here and return its exit code and its JSON lines."""
    code = vision_train.main([str(data), *flags.split()])
    out = capsys.readouterr().out if capsys else ""
    return code, json_lines(out)


@pytest.mark.parametrize("attention", ["softmax", "reluformer:gamma=2"])
def test_training_learns_colors_that_the_checkpoint_classifies(
    squares, tmp_path, capsys, attention
):
    flags = f"{TINY} --max-epoch 6 --attention {attention} --no-epoch-checkpoints"
    best = "--best-checkpoint-metric accuracy --maximize-best-checkpoint-metric"
    code, lines = run(squares, f"{flags} {best} --save-dir {tmp_path}", capsys)
    assert code == 0
    assert len(values(lines, "val_loss")) == 6
    assert max(values(lines, "val_accuracy")) == values(lines, "val_best_accuracy")[-1] > 90
    assert values(lines, "lr")[-1] < 1e-4 < max(values(lines, "lr"))
    classifier = ImageClassifier.from_checkpoint(tmp_path / "checkpoint_best.safetensors")
    assert classifier.classes == ("blue", "green", "red")
    images = open_images(squares)["val"]
    shares = classifier.classify([images.read(i) for i in range(len(images))])
    guesses = [classifier.classes.index(next(iter(ranked))) for ranked in shares]
    right = np.mean(np.array(guesses) == images.labels)
    assert right * 100 == pytest.approx(values(lines, "val_best_accuracy")[-1], abs=0.01)


@pytest.mark.parametrize(
    "flags",
    [
        "--dropout 0.1 --drop-path 0.2 --layers 2",
        "--store-ema --ema-decay 0.9 --update-freq 2 --bf16 --train-crop resized --num-workers 3",
        "--recipe deit --num-workers 2 --batch-size 16",
        "--image-size 9x14 --cutmix 1",
        "--image-size 98x13 --batch-size 8 --rand-augment 1",  # crops are resized
    ],
)
def test_resuming_changes_no_bit(squares, tmp_path, flags):
    flags = f"{TINY} --attention reluformer --attention-norm-weight 0.1 {flags}"
    flags += f" --no-epoch-checkpoints --lr-period-updates 20 --save-dir {tmp_path}"
    run(squares, f"{flags}/whole --max-update 8")
    for last in (2, 7, 8):
        run(squares, f"{flags}/parts --max-update {last}")
    assert_same_tensors(tensors(tmp_path / "whole"), tensors(tmp_path / "parts"))


XCIT = "--arch xcit_nano_12_p4 --layers 2 --embed-dim 16 --class-attention sima"
XCIT += " --checkpoint-activations"


@pytest.mark.parametrize("attention", ["xca", "sima --store-ema --ema-decay 0.9"])
def test_an_xcit_resumes_with_its_batchnorm_statistics(squares, tmp_path, attention):
    flags = f"{TINY} {XCIT} --attention {attention} --drop-path 0.1 --no-epoch-checkpoints --bf16"
    flags += f" --lr-period-updates 20 --save-dir {tmp_path}"
    run(squares, f"{flags}/whole --max-update 7")
    for last in (3, 7):
        run(squares, f"{flags}/parts --max-update {last}")
    assert_same_tensors(tensors(tmp_path / "whole"), tensors(tmp_path / "parts"))
    assert tensors(tmp_path / "whole")["blocks.0.local.norm.running_var"].std() > 0
    classifier = ImageClassifier.from_checkpoint(tmp_path / "whole/checkpoint_last.safetensors")
    images = open_images(squares)["val"]
    [shares] = classifier.classify([images.read(0)])
    assert sum(shares.values()) == pytest.approx(1)


SWIN = "--arch swin_tiny_patch2_window2_12 --stage-layers 2,1 --stage-heads 2,4"
CVT = "--arch cvt_13_12 --stage-layers 1,1 --stage-heads 1,2"


@pytest.mark.parametrize(
    "shape",
    [
        f"{SWIN} --attention reluformer --attention-norm-weight .1 --attention-entropy-weight .1 "
        "--bf16",
        f"{SWIN} --attention sima",
        f"{CVT} --attention polynomial:power=3 --ffn relu --bf16",
        f"{CVT} --checkpoint-activations",
    ],
)
def test_swin_and_cvt_resume_bit_for_bit(squares, tmp_path, shape):
    flags = f"--cpu {shape} --embed-dim 8 --drop-path .1 --batch-size 20 --lr 5e-3 "
    flags += "--warmup-updates 4 --log-format json --log-interval 1 --lr-period-updates 20 "
    flags += f"--no-epoch-checkpoints --save-dir {tmp_path}"
    run(squares, f"{flags}/whole --max-update 7")
    for last in (3, 7):
        run(squares, f"{flags}/parts --max-update {last}")
    assert_same_tensors(tensors(tmp_path / "whole"), tensors(tmp_path / "parts"))
    classifier = ImageClassifier.from_checkpoint(tmp_path / "whole/checkpoint_last.safetensors")
    [shares] = classifier.classify([open_images(squares)["val"].read(0)])
    assert sum(shares.values()) == pytest.approx(1)


def test_training_starts_from_public_weights_and_resumes_without_them(squares, tmp_path, capsys):
    public = ROOT / "tests/compat/timm_files/xcit.safetensors"
    flags = "--cpu --arch xcit_nano_12 --embed-dim 8 --heads 2 --layers 1 --image-size 32 "
    flags += "--class-layers-norm-patches --log-format json --log-interval 1 --lr 1e-30 "
    flags += f"--lr-period-updates 9 --init {public} --save-dir {tmp_path}/run --batch-size 40"
    code, lines = run(squares, f"{flags} --max-update 1", capsys)
    assert code == 0
    notes = containing(values(lines, "message"), "start from the weights")
    assert notes == [f"start from the weights of {public}"]
    stored = tensors(tmp_path / "run")
    theirs = load_file(public)
    assert torch.equal(stored["blocks.0.attention.qkv.weight"], theirs["blocks.0.attn.qkv.weight"])
    assert torch.equal(stored["head.weight"], theirs["head.weight"])
    code, lines = run(squares, f"{flags} --max-update 2", capsys)
    assert code == 0 and values(lines, "num_updates")[-1] == 2
    assert not containing(values(lines, "message"), "start from")
    code = vision_train.main([str(squares), *flags.split(), "--finetune-from-model", "x"])
    assert code == 2
    expected = f"--init {public} does nothing with --finetune-from-model"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--mixup", "--cutmix"])
def test_mixing_needs_batches_of_two_or_more(squares, tmp_path, capsys, flag):
    flags = f"{TINY} --batch-size 1 {flag} 1 --save-dir {tmp_path}"
    assert vision_train.main([str(squares), *flags.split()]) == 2
    expected = f"{flag} 1 does nothing with --batch-size 1, where there is no other image"
    assert expected in capsys.readouterr().err


def test_a_zip_of_the_folder_and_another_back_end_train_the_same_model(squares, tmp_path):
    zip_folder(squares, tmp_path / "squares.zip")
    flags = f"{TINY} --max-epoch 1 --attention reluformer --no-epoch-checkpoints"
    run(squares, f"{flags} --attention-backend reference --save-dir {tmp_path}/a")
    run(tmp_path / "squares.zip", f"{flags} --attention-backend reference --save-dir {tmp_path}/b")
    assert_same_tensors(tensors(tmp_path / "a"), tensors(tmp_path / "b"))
    stored = load_checkpoint(tmp_path / "a/checkpoint_last.safetensors").metadata
    assert "attention_backend" not in json.dumps(stored)


def test_validation_sets_can_be_held_out_or_named(squares, tmp_path, capsys):
    zip_folder(squares / "val", tmp_path / "test.zip")
    flags = f"{TINY} --max-update 1 --no-save --valid-fraction 0.25"
    _, lines = run(squares / "train", f"{flags} --valid-data {tmp_path}/test.zip", capsys)
    messages = "\n".join(values(lines, "message"))
    assert "losses are in bits per image" in messages
    assert "train: 90 images of 3 classes" in messages
    assert "valid: 30 images of 3 classes" in messages
    assert "test: 30 images of 3 classes" in messages
    assert values(lines, "valid_accuracy") and values(lines, "test_accuracy")
    # If --valid-data has train and val, the val is used.
    flags = f"{TINY} --max-update 1 --no-save --valid-data {squares}"
    _, lines = run(squares / "train", flags, capsys)
    assert "val: 30 images of 3 classes" in "\n".join(values(lines, "message"))


def test_missing_classes_are_reported(squares, tmp_path, capsys):
    shutil.copytree(squares, tmp_path / "some")
    shutil.rmtree(tmp_path / "some/val/red")
    (tmp_path / "some/train/violet").mkdir()
    _, lines = run(tmp_path / "some", f"{TINY} --max-update 1 --no-save", capsys)
    messages = "\n".join(values(lines, "message"))
    assert "no classes are made of the folders that hold no images in train: violet" in messages
    assert "val: 20 images of 2 classes" in messages
    assert f"NOTE: {tmp_path}/some: val has no images of the classes red" in messages
    assert "train has no images" not in messages


def test_tensorboard_has_losses_accuracy_and_attention_statistics(squares, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    flags = f"{TINY} --max-update 4 --log-interval 2 --telemetry-interval 2 --no-save"
    attention = "--attention reluformer --attention-norm-weight 0.1"
    run(squares, f"{flags} {attention} --tensorboard-logdir {tmp_path}")
    curves = EventAccumulator(str(tmp_path / "train_inner")).Reload()
    names = set(curves.Tags()["scalars"])
    assert {"loss", "accuracy", "attention_norm", "lr", "gnorm", "wps"} <= names
    assert "attention/encoder.0.1/entropy" in names
    assert [event.step for event in curves.Scalars("accuracy")] == [2, 4]
    valid = EventAccumulator(str(tmp_path / "val")).Reload()
    assert {"loss", "accuracy"} <= set(valid.Tags()["scalars"])


@pytest.mark.parametrize(
    ("data", "flags", "message"),
    [
        ("nowhere", "", "nowhere: no such folder or file of images"),
        ("train/red", "", "no class in it; images (.jpg, "),
        ("train", "", "no images to validate on; give --valid-data"),
        ("", "--patch-size 4x4x4", "--patch-size 4x4x4: expected one number, or height and width"),
        ("", "--arch vit_x", "--arch vit_x: expected one of vit_ti, vit_s"),
        ("", "--best-checkpoint-metric bleu", "'val' has only loss, accuracy"),
        ("", "--valid-data train/red", "train/red: no such folder or file"),
        ("", "--fp16", "--fp16 needs a CUDA GPU"),
        ("", "--max-epoch 0", "cosine needs --lr-period-updates"),
        ("", "--crop-min-area .5", "auto is padded; it needs --train-crop resized"),
        ("", "--image-size 98x13 --crop-padding 2", "auto is resized; it needs"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(squares, tmp_path, data, flags, message):
    flags = f"{TINY} --max-epoch 1 --save-dir {tmp_path} {flags}"
    assert_refused(run_here("vision_train", squares / data, flags.split(), check=False), message)


def test_a_damaged_image_is_named(squares, tmp_path, capsys):
    shutil.copytree(squares, tmp_path / "damaged")
    (tmp_path / "damaged/train/red/0003.png").write_bytes(b"damaged")
    code, _ = run(tmp_path / "damaged", f"{TINY} --max-epoch 1 --no-save")
    assert code == 2
    assert re.search(r"train/red/0003\.png: cannot be read", capsys.readouterr().err)


def test_a_checkpoint_with_other_classes_is_refused(squares, tmp_path, capsys):
    flags = f"{TINY} --save-dir {tmp_path}/run --lr-period-updates 20"
    run(squares, f"{flags} --max-update 1")
    shutil.copytree(squares, tmp_path / "other")
    for split in ("train", "val"):
        (tmp_path / "other" / split / "red").rename(tmp_path / "other" / split / "violet")
    assert run(tmp_path / "other", f"{flags} --max-update 2")[0] == 2
    assert "trained with other classes" in capsys.readouterr().err
    with pytest.raises(CheckpointError):
        load_model(tmp_path / "run/checkpoint_last.safetensors")


def test_the_cosine_ends_with_the_training():
    schedule = replace(VisionTrainerConfig().schedule, lr=(1.0,), warmup_updates=5, min_lr=0.125)
    for limits, last in (
        (TrainerConfig(max_epoch=3), 21),  # 7 batches an epoch
        (TrainerConfig(max_epoch=3, update_freq=(2, 1)), 4 + 7 + 7),
        (TrainerConfig(max_epoch=3, max_update=11), 11),
        (TrainerConfig(max_update=30), 30),
    ):
        config = with_cosine_period(replace(limits, schedule=schedule), 7, 1)
        rates = build_schedule(config.schedule)
        rates_of = [rates.learning_rate(update, 1) for update in range(5, last + 1)]
        assert rates_of[0] == 1.0
        assert rates_of == sorted(rates_of, reverse=True)
        assert rates_of[-1] == pytest.approx(0.125, abs=0.1)
        assert rates.learning_rate(last + 1, 1) == pytest.approx(0.1)  # the next period


def test_a_training_that_ends_in_the_warm_up_is_allowed():
    schedule = replace(VisionTrainerConfig().schedule, warmup_updates=9)
    config = TrainerConfig(max_epoch=1, schedule=schedule)
    rates = build_schedule(with_cosine_period(config, 7, 1).schedule)
    assert rates.learning_rate(7, 1) == pytest.approx(7 / 9 * 1e-3)


def test_the_cosine_of_very_many_epochs_has_a_period_at_once():
    schedule = VisionTrainerConfig().schedule
    config = TrainerConfig(max_epoch=10**12, update_freq=(1, 2), schedule=schedule)
    period = with_cosine_period(config, 7, 1).schedule.lr_period_updates
    assert period == 7 + 4 * (10**12 - 1) + 1


def test_a_recipe_is_printed_without_overridden_settings(squares, capsys):
    flags = f"{TINY} --recipe swin --max-update 2 --no-save --mixup 0 --batch-size 16"
    flags = flags.replace("--lr 5e-3 --warmup-updates 4", "--update-freq 2")
    code, lines = run(squares, flags, capsys)
    assert code == 0
    [note] = starting(values(lines, "message"), "--recipe")
    assert note.startswith("--recipe swin: --rand-augment 2 --rand-augment-magnitude 9 ")
    assert "--cutmix 1 --label-smoothing 0.1 --eval-crop-ratio 0.875 --max-epoch 300" in note
    assert "--warmup-epochs 20" in note and "--clip-norm 5" in note
    assert "--mixup" not in note and "--batch-size" not in note
    messages = "\n".join(values(lines, "message"))
    assert (
        "learning rates --lr 3.125e-05 --warmup-init-lr 3.125e-08 --min-lr 3.125e-07: --lr 0.0005 "
        "--warmup-init-lr 5e-07 --min-lr 5e-06 for 512 images, of which an update has 32"
    ) in messages
    assert "80 updates of warm-up (20 epochs)" in messages  # 8 batches, 2 of them an update
    # 5e-4 * 32 / 512 after 80 updates, from 5e-7 * 32 / 512.
    expected = (5e-7 + 2 / 80 * (5e-4 - 5e-7)) * 32 / 512
    assert values(lines, "lr")[-1] == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("batch_size", [2, 1024])  # the papers have 1,024
def test_learning_rates_scale_with_the_batch_size(batch_size):
    settings = ImageTrainingSettings.of(data="d", recipe="deit")
    config = config_for_data(settings.trainer, batch_size, 9, 1, lambda line: None)
    schedule = config.schedule
    share = batch_size / 1024
    assert schedule.lr[0] == pytest.approx(1e-3 * share)
    assert (schedule.warmup_init_lr, schedule.min_lr) == pytest.approx((1e-6 * share, 1e-5 * share))


def test_rates_that_are_not_set_are_not_scaled():
    notes = []
    settings = ImageTrainingSettings.of(data="d", lr=1, lr_batch_size=4, max_epoch=3)
    schedule = config_for_data(settings.trainer, 2, 9, 1, notes.append).schedule
    assert (schedule.lr, schedule.warmup_init_lr, schedule.min_lr) == ((0.5,), -1, 0)
    assert notes == ["learning rates --lr 0.5: --lr 1 for 4 images, of which an update has 2"]


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "none"])
def test_every_recipe_trains(squares, recipe, capsys):
    flags = f"{TINY} --recipe {recipe} --max-update 2 --no-save --disable-validation"
    flags = flags.replace("--lr 5e-3 --warmup-updates 4", "--batch-size 8")
    code, lines = run(squares, flags, capsys)
    assert code == 0
    assert np.isfinite(values(lines, "loss")).all()


def test_sigmoid_losses_learn_independent_probabilities(squares, tmp_path, capsys):
    flags = f"{TINY} --criterion sigmoid_cross_entropy --max-epoch 6 --no-epoch-checkpoints"
    code, lines = run(squares, f"{flags} --mixup 0.2 --save-dir {tmp_path}", capsys)
    assert code == 0
    assert max(values(lines, "val_accuracy")) > 90
    classifier = ImageClassifier.from_checkpoint(tmp_path / "checkpoint_last.safetensors")
    images = open_images(squares)["val"]
    [shares] = classifier.classify([images.read(0)])
    view = torch.from_numpy(classifier.transform.evaluation(images.read(0)))[None]
    logits = classifier.outputs(view).logits[0]
    expected = dict(zip(classifier.classes, logits.sigmoid().tolist(), strict=True))
    assert shares == pytest.approx(expected)


def test_a_numpy_archive_trains_the_same_model(squares, tmp_path):
    arrays = {}
    for part, images in open_images(squares).items():
        pixels = [np.asarray(images.read(i)) for i in range(len(images))]
        arrays |= {f"{part}_images": np.stack(pixels), f"{part}_labels": images.labels}
    np.savez(tmp_path / "squares.npz", **arrays, classes=np.array(["blue", "green", "red"]))
    flags = f"{TINY} --max-epoch 1 --no-epoch-checkpoints --save-dir {tmp_path}"
    run(tmp_path / "squares.npz", f"{flags}/a")
    run(squares, f"{flags}/b")
    assert_same_tensors(tensors(tmp_path / "a"), tensors(tmp_path / "b"))


@pytest.mark.parametrize("in_struct", [True, False])
def test_parquet_files_train_the_same_model(squares, tmp_path, in_struct):
    """The files have the format of Hugging Face, with training images in two files."""
    names = ["blue", "green", "red"]
    for part, number, count in (("train", 0, 2), ("train", 1, 2), ("val", 0, 1)):
        paths = sorted((squares / part).rglob("*.png"))
        start, end = (len(paths) * n // count for n in (number, number + 1))
        files = list(map(Path.read_bytes, paths[start:end]))
        labels = [names.index(path.parent.name) for path in paths[start:end]]
        rows = [{"bytes": file, "path": None} for file in files] if in_struct else files
        (tmp_path / "table").mkdir(exist_ok=True)
        file = tmp_path / f"table/{part}-{number:05d}-of-{count:05d}.parquet"
        write_table(file, {"image": rows, "label": labels}, names)
    flags = f"{TINY} --max-epoch 1 --no-epoch-checkpoints --save-dir {tmp_path}"
    run(tmp_path / "table", f"{flags}/a")
    run(squares, f"{flags}/b")
    assert_same_tensors(tensors(tmp_path / "a"), tensors(tmp_path / "b"))


def test_enlarged_images_are_reported_before_the_training(squares, tmp_path, capsys):
    for size, is_reported in ((24, True), (20, False)):
        flags = f"{TINY} --image-size {size} --max-update 1 --save-dir {tmp_path / str(size)}"
        _, lines = run(squares, flags, capsys)
        messages = values(lines, "message")
        notes = starting(messages, "NOTE: images")
        assert bool(notes) == is_reported
        if is_reported:
            longest = max(max(picture.size) for picture in pictures(squares / "train"))
            assert f"images of {longest} pixels a side are enlarged to 24x24" in notes[0]
            assert f"{24**2 / longest**2:.0f} times as many pixels" in notes[0]
            assert messages.index(notes[0]) < len(messages) - 1


def pictures(folder):
    from PIL import Image

    return [Image.open(path) for path in folder.rglob("*.png")]


def test_a_budget_ends_the_schedule_in_place_of_the_recipe(squares, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("relu_nmt.jobs.budget.TIMED_UPDATES", 1)
    flags = f"{TINY} --recipe deit --budget 6u --save-dir {tmp_path}"
    code, lines = run(squares, flags.replace("--warmup-updates 4", ""), capsys)
    assert code == 0
    assert values(lines, "num_updates")[-1] == 6
    assert values(lines, "lr")[-1] < 0.2 * max(values(lines, "lr"))
    trainer = load_checkpoint(tmp_path / "checkpoint_last.safetensors").metadata["args"]["trainer"]
    assert trainer["max_update"] == 6 and trainer["max_epoch"] == 0
    assert trainer["schedule"]["warmup_updates"] == 1
    assert trainer["optimizer"]["store_ema"]
