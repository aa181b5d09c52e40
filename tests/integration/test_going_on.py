"""A training goes on with the model that it began with. What else was changed is told."""

import os
import random
import subprocess
from pathlib import Path

import pytest
import torch

from tests import tiny
from tests.commands import assert_refused, run_here
from tests.outputs import assert_same_tensors, contents, json_lines, starting, values, weights
from tests.tiny import preprocessed, write_lines

FILES = Path(__file__).parents[1] / "compat/files/checkpoints"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("going-on")
    rng = random.Random(0)
    for split in ("train", "valid"):
        write_lines(folder, split, tiny.digit_lines(rng, 20, 5, 5))
    return preprocessed(folder, joined_dictionary=True)


@pytest.fixture(scope="module")
def begun(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("begun")
    train(data, folder, "--max-update", "1")
    return folder


def train(data, folder, *flags, check=True):
    options = "--batch-size 10 --log-interval 100 --disable-validation --no-epoch-checkpoints"
    return tiny.train(data, folder, options.split(), flags, check=check)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--source-lang en --target-lang de", "was trained on de-en, not en-de"),
        ("--attention rela", "--encoder-attention softmax"),
        ("--cross-attention rela", "--cross-attention softmax, not --cross-attention rela"),
        ("--decoder-positions learned", "--decoder-positions sinusoidal, not"),
        ("--encoder-layers 1", "--encoder-layers 2, not --encoder-layers 1"),
        ("--arch transformer_iwslt_de_en", "--encoder-embed-dim 64"),
        ("--activation-fn gelu", "--feed-forward relu, not --feed-forward gelu"),
        ("--optimizer adafactor", "state of --optimizer adam, which adafactor cannot use"),
    ],
)
def test_another_model_direction_or_optimizer_is_refused(data, begun, flags, message):
    before = (begun / "checkpoint_last.safetensors").read_bytes()
    done = train(data, begun, "--max-update", "2", flags.split(), check=False)
    assert_refused(done, message, "--save-dir")
    assert (begun / "checkpoint_last.safetensors").read_bytes() == before


def different(first, second):
    """Return the names of the weights that differ."""
    return [name for name in first if not torch.equal(first[name], second[name])]


def test_parts_may_be_frozen_and_trained_one_after_the_other(data, tmp_path):
    train(data, tmp_path, "--max-update", "1")
    was = weights(tmp_path)
    done = train(data, tmp_path, "--freeze", "encoder,embeddings", "--max-update", "2")
    assert "--freeze encoder,embeddings (was '')" in done.stdout
    last = weights(tmp_path)
    changed = different(last, was)
    assert changed and not starting(changed, "encoder.")
    train(data, tmp_path, "--freeze", "decoder", "--max-update", "3")
    first = weights(tmp_path)
    changed = different(first, last)
    assert starting(changed, "encoder.") and not starting(changed, "decoder.")


def test_its_weights_may_start_another(data, begun, tmp_path):
    start = ("--finetune-from-model", begun / "checkpoint_last.safetensors", "--max-update", "1")
    train(data, tmp_path, start, "--source-lang", "en", "--target-lang", "de")


def test_the_same_model_in_other_words_goes_on(data, begun, tmp_path):
    (tmp_path / "checkpoint_last.safetensors").write_bytes(
        (begun / "checkpoint_last.safetensors").read_bytes()
    )
    flags = "--encoder-attention softmax --max-update 2 --save-interval 2 --log-interval 1"
    assert "note: " not in train(data, tmp_path, flags.split()).stdout


def test_everything_else_is_told_in_one_note(data, begun, tmp_path):
    (tmp_path / "checkpoint_last.safetensors").write_bytes(
        (begun / "checkpoint_last.safetensors").read_bytes()
    )
    flags = "--lr 1e-3 --warmup-updates 5 --seed 3 --batch-size 7 --dropout 0.2 --max-update 2"
    lines = json_lines(train(data, tmp_path, flags.split()).stdout)
    [note] = starting(values(lines, "message"), "note: ")
    for text in (
        "--lr 0.001 (was 0.0005)",
        "--warmup-updates 5 (was not given)",
        "--seed 3 (was 1)",
        "--batch-size 7 (was 10)",
        "--dropout 0.2 (was 0.1)",
    ):
        assert text in note
    assert note.count("(was") == 5


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint_best.safetensors",
        "checkpoint1.safetensors",
        "checkpoint_1_20.safetensors",
        "checkpoint.best_loss_3.1416.safetensors",
    ],
)
@pytest.mark.parametrize("kind", ["another training's", "weights alone", "no checkpoint"])
def test_checkpoints_of_something_else_are_not_written_over(data, begun, tmp_path, name, kind):
    last = begun / "checkpoint_last.safetensors"
    if kind == "no checkpoint":
        (tmp_path / name).write_bytes(b"mine")
    elif kind == "weights alone":
        run_here("convert", last, "--output", tmp_path / name)
    else:
        (tmp_path / name).write_bytes(last.read_bytes())
    before = contents(tmp_path)
    for flags in ("--lr 3e-4", f"--lr 3e-4 --restore-file {last}", f"--finetune-from-model {last}"):
        flags = f"{flags} --max-update 2 --seed 5".split()
        done = train(data, tmp_path, flags, check=False)
        remedy = f"choose another --save-dir than {tmp_path}, or move"
        assert_refused(done, f"{tmp_path / name}: is another training's", remedy)
        assert (f"--restore-file {name}" in done.stderr) == (kind == "another training's")
        assert contents(tmp_path) == before
    if kind == "another training's":
        train(data, tmp_path, "--max-update", "2", "--restore-file", name)


def test_a_last_checkpoint_is_not_written_over_by_one_from_elsewhere(data, begun, tmp_path):
    train(data, tmp_path, "--max-update", "1", "--seed", "7")
    before = contents(tmp_path)
    start = ("--restore-file", begun / "checkpoint_last.safetensors", "--max-update", "2")
    done = train(data, tmp_path, start, check=False)
    assert_refused(done, "checkpoint_last.safetensors: is another")
    assert contents(tmp_path) == before


def test_a_training_killed_in_its_first_save_begins_anew(data, tmp_path):
    flags = ("--max-update", "1", "--save-interval-updates", "1")
    train(data, tmp_path, flags)
    (tmp_path / "checkpoint_last.safetensors").unlink()  # which is written last
    first = tmp_path / "checkpoint_1_1.safetensors"
    done = train(data, tmp_path, flags)
    assert f"note: {first} is of the same training, which starts again" in done.stdout
    assert (tmp_path / "checkpoint_last.safetensors").exists()


def test_results_of_something_else(data, tmp_path):
    file = tmp_path / "results.json"
    file.write_text('{"top1": 99.0}\n')
    done = train(data, tmp_path, "--max-update", "1", check=False)
    lost = "was not written by a training, and would be lost; choose another"
    assert_refused(done, f"{file}: {lost}")
    assert contents(tmp_path) == {"results.json": b'{"top1": 99.0}\n'}
    file.unlink()
    train(data, tmp_path, "--max-update", "1")
    (tmp_path / "checkpoint_last.safetensors").unlink()
    assert "is replaced" not in train(data, tmp_path, "--max-update", "1").stdout
    (tmp_path / "checkpoint_last.safetensors").unlink()
    done = train(data, tmp_path, "--max-update", "1", "--seed", "9")
    assert f"note: {file} is of another training, and is replaced" in done.stdout


def test_other_files_and_folders_that_are_not_written_do_not_matter(data, begun, tmp_path):
    last = begun / "checkpoint_last.safetensors"
    for name in ("average.safetensors", "checkpoint_mine.safetensors", "checkpoint1.pt"):
        (tmp_path / name).write_bytes(last.read_bytes())
    train(data, tmp_path, "--max-update", "1")
    train(data, tmp_path / "new" / "folder", "--max-update", "1")
    (tmp_path / "checkpoint1.safetensors").write_bytes(last.read_bytes())
    train(data, tmp_path, "--max-update", "2")  # it goes on from its own
    (tmp_path / "checkpoint_last.safetensors").unlink()
    before = contents(tmp_path)
    flags = "--arch transformer_tiny --cpu --batch-size 10 --max-update 1 --no-save --save-dir"
    run_here("train", data, flags.split(), tmp_path)
    assert contents(tmp_path) == before


def test_a_training_of_images_replaces_nothing_either(begun, tmp_path):
    last = begun / "checkpoint_last.safetensors"
    (tmp_path / "checkpoint1.safetensors").write_bytes(last.read_bytes())
    flags = "--cpu --image-size 8 --patch-size 4 --max-update 1 --disable-validation"
    words = [FILES.parent / "images.zip", *flags.split(), "--save-dir", tmp_path]
    done = run_here("vision_train", words, check=False)
    assert_refused(done, "checkpoint1.safetensors: is another training's")
    assert list(contents(tmp_path)) == ["checkpoint1.safetensors"]


@pytest.mark.parametrize("command", ["average", "convert"])
def test_an_output_replaces_only_its_like(data, begun, tmp_path, command):
    last = begun / "checkpoint_last.safetensors"
    images = FILES / "vit-class.safetensors"
    output = tmp_path / "out.safetensors"
    words = ["--inputs", last] if command == "average" else [last]
    for earlier, message in (
        (last.read_bytes(), "holds the state that a training goes on from, and would be lost"),
        (b"mine", "is there already; give another name"),
        (weights_of(images, tmp_path), "a checkpoint of image_classification, not of translation"),
    ):
        output.write_bytes(earlier)
        done = run_here(command, words, "--output", output, check=False)
        assert_refused(done, f"--output {output}: ", message)
        assert output.read_bytes() == earlier
    output.unlink()
    for _ in range(2):  # an earlier output is replaced
        run_here(command, words, "--output", output)


def weights_of(path, folder):
    run_here("convert", path, "--output", folder / "weights.safetensors")
    return (folder / "weights.safetensors").read_bytes()


def test_another_attention_starts_calibrated_once(data, begun, tmp_path):
    start = ("--finetune-from-model", begun / "checkpoint_last.safetensors", "--attention")
    first = train(data, tmp_path / "run", start, "reluformer", "--max-update", "1").stdout
    full = train(data, tmp_path / "whole", start, "reluformer", "--max-update", "2").stdout
    again = train(data, tmp_path / "run", start, "reluformer", "--max-update", "2").stdout
    for output in (first, full):
        assert output.count("attention softmax to reluformer: rows sum to 1 with queries") == 3
    assert "reluformer:" not in again
    assert_same_tensors(weights(tmp_path / "run"), weights(tmp_path / "whole"))


def test_a_start_is_calibrated_whatever_back_end_the_training_has(data, begun, tmp_path):
    pytest.importorskip("triton")
    start = ("--finetune-from-model", begun / "checkpoint_last.safetensors", "--max-update", "1")
    flags = ("--attention", "reluformer", "--attention-backend", "triton")
    done = train(data, tmp_path, start, flags, check=False)
    assert done.stdout.count("rows sum to 1") == 3
    assert "triton needs a GPU" in done.stderr  # later, as the training itself is on a CPU


def test_every_process_starts_calibrated_in_the_same_way(data, begun, tmp_path, quick_python):
    flags = f"{tiny.TRAIN} --attention reluformer --batch-size 5 --disable-validation"
    flags += f" --finetune-from-model {begun}/checkpoint_last.safetensors --max-update 1 --lr 1e-9"
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    command = [quick_python, "-m", *launcher, "relu_nmt.cli.train", data, *flags.split()]
    command += ["--save-dir", tmp_path / "two", "--ddp-backend", "fully_sharded"]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    train(data, tmp_path / "one", flags.split())
    single, double = map(weights, (tmp_path / "one", tmp_path / "two"))
    torch.testing.assert_close(single, double, atol=1e-6, rtol=1e-4)


@pytest.fixture(scope="module")
def other_data(tmp_path_factory):
    """Return data of letters, with another dictionary, and the folder of its text."""
    folder = tmp_path_factory.mktemp("letters")
    for split in ("train", "valid"):
        write_lines(folder, split, ["a b c", "b c d"], ["c b a", "d c b"])
    return preprocessed(folder, joined_dictionary=True)


def test_weights_of_another_dictionary_are_refused_with_advice_that_works(
    begun, other_data, tmp_path
):
    start = begun / "checkpoint_last.safetensors"
    flags = ("--finetune-from-model", start, "--max-update", "1")
    done = train(other_data, tmp_path / "run", flags, check=False)
    assert_refused(done, "trained with another source dictionary")
    like = f"make the data with relu-nmt-preprocess --like {start}"
    assert f"{like}, or leave --finetune-from-model out for a fresh start\n" in done.stderr
    text = other_data.parent
    sets = ("--trainpref", text / "train", "--validpref", text / "valid")
    languages = ("--source-lang", "de", "--target-lang", "en")
    run_here("preprocess", languages, sets, "--like", start, "--destdir", tmp_path / "like")
    assert train(tmp_path / "like", tmp_path / "run", flags).returncode == 0
    assert train(other_data, tmp_path / "fresh", "--max-update", "1").returncode == 0


@pytest.mark.parametrize("way", ["save-dir", "restore-file", "both"])
def test_data_of_another_dictionary_are_refused_with_the_flags_of_a_fresh_start(
    begun, other_data, tmp_path, way
):
    start = begun / "checkpoint_last.safetensors"
    flags = ("--max-update", "2")
    folder = begun
    without = ""
    if way == "restore-file":
        flags = (*flags, "--restore-file", start)
        folder = tmp_path / "run"
        without = " without --restore-file"
    elif way == "both":
        copied = tmp_path / "start.safetensors"
        copied.write_bytes(start.read_bytes())
        flags = (*flags, "--finetune-from-model", copied)
        without = " without --finetune-from-model"
    done = train(other_data, folder, flags, check=False)
    assert_refused(done, f", or choose another --save-dir{without} for a fresh start\n")
    assert train(other_data, tmp_path / "fresh", "--max-update", "1").returncode == 0


def test_weights_of_another_shape_are_refused_with_advice_that_works(data, begun, tmp_path):
    start = begun / "checkpoint_last.safetensors"
    flags = ("--finetune-from-model", start, "--max-update", "1")
    done = train(data, tmp_path, flags, "--encoder-layers", "1", check=False)
    assert_refused(done, "does not fit the model")
    advice = "(--config reads them from a checkpoint) and data, or leave --finetune-from-model out"
    assert advice in done.stderr
    assert train(data, tmp_path, flags, "--config", start).returncode == 0


def test_a_model_that_goes_on_is_refused_with_advice_that_works(data, begun, tmp_path):
    start = begun / "checkpoint_last.safetensors"
    flags = ("--attention", "rela", "--max-update", "2")
    done = train(data, begun, flags, check=False)
    message = "choose another --save-dir for a fresh start; if the weights fit, start from"
    assert message in done.stderr
    assert f"with --finetune-from-model {start} in another --save-dir" in done.stderr
    train(data, tmp_path, flags, "--finetune-from-model", start)


def test_weights_alone_are_refused_with_advice_that_works(data, begun, tmp_path):
    averaged = tmp_path / "averaged.safetensors"
    run_here("average", "--inputs", begun / "checkpoint_last.safetensors", "--output", averaged)
    flags = ("--max-update", "2")
    done = train(data, tmp_path / "run", flags, "--restore-file", averaged, check=False)
    advice = f"start from its weights with --finetune-from-model {averaged} in another"
    assert_refused(done, "holds weights only", advice)
    train(data, tmp_path / "other", flags, "--finetune-from-model", averaged)
