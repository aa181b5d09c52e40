"""relu-nmt-vision-train in two processes: the weights of one that accumulates, sharded or not."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from relu_nmt.cli import vision_train
from relu_nmt.errors import DataError
from relu_nmt.jobs import training
from relu_nmt.training.checkpoint import load_checkpoint
from relu_nmt.training.distributed import local_part
from relu_nmt.vision.images import ImageBatches
from tests.outputs import assert_same_tensors, column
from tests.ranks import errors_of, run_ranks
from tests.unit.vision.made_images import make_squares

QUICK = (
    "--cpu --image-size 12 --batch-size 10 --lr 2e-3 --warmup-updates 2 --max-epoch 2 "
    "--weight-decay 0.5 --no-epoch-checkpoints --log-format none"
)
# Attentions whose outputs change with the bias of the keys: for softmax its gradient is rounding.
RELU = "--attention reluformer --attention-norm-weight 0.1"
SHAPES = {
    "vit": f"--patch-size 4 --embed-dim 16 --heads 2 --layers 2 {RELU}",
    "xcit": "--arch xcit_nano_12_p4 --embed-dim 16 --heads 2 --layers 1 --attention sima "
    "--class-attention sima",
    "swin": f"--arch swin_tiny_patch2_window2_12 --stage-layers 2,1 --stage-heads 2,4 "
    f"--embed-dim 8 --drop-path 0 {RELU}",
    "cvt": f"--arch cvt_13_12 --stage-layers 1,1 --stage-heads 1,2 --embed-dim 8 --drop-path 0 "
    f"{RELU}",
}


@pytest.fixture(scope="module")
def squares(tmp_path_factory):
    """5 batches of training images, the last one with 5."""
    folder = tmp_path_factory.mktemp("squares")
    make_squares(folder / "train", 15, seed=1)
    make_squares(folder / "val", 5, seed=2)
    return folder


def train(process, words, folder):
    """Run the command as one of the processes. Each writes the weights that it has at the end."""
    models = []

    class Keeping(training.Trainer):
        def train(self):
            models.append(self.learner.model)
            return super().train()

    training.join_processes = lambda cpu: process
    training.Trainer = Keeping
    assert vision_train.main([*words, "--save-dir", str(folder)]) == 0
    state = {name: local_part(x).contiguous() for name, x in models[0].state_dict().items()}
    save_file(state, folder / f"rank-{process.rank}.safetensors")


def trained(python, squares, folder, flags, processes):
    """Train and return the weights of the last checkpoint, and the results."""
    words = [str(squares), *f"{QUICK} {flags}".split()]
    folder.mkdir()
    errors = folder.with_suffix(".errors")

    def work(process):
        train(process, words, folder)

    codes = run_ranks(python, work, processes, errors)
    assert codes == [0] * processes, errors_of(errors)
    result = json.loads((folder / "results.json").read_text())
    assert result["num_updates"] == 6
    return load_checkpoint(folder / "checkpoint_last.safetensors").model_tensors, result


def statistics(name):
    return "running" in name or "num_batches" in name


@pytest.mark.parametrize("family", SHAPES)
def test_two_processes_have_the_same_weights_as_one(quick_python, squares, tmp_path, family):
    single, alone = trained(
        quick_python, squares, tmp_path / "one", f"{SHAPES[family]} --update-freq 2", 1
    )
    two, together = trained(quick_python, squares, tmp_path / "two", SHAPES[family], 2)
    assert_same_tensors(*(load_file(tmp_path / f"two/rank-{rank}.safetensors") for rank in (0, 1)))
    for name, tensor in single.items():
        # One process updates the statistics of BatchNorm one batch after the other, two at once.
        if not statistics(name):
            torch.testing.assert_close(two[name], tensor, rtol=1e-3, atol=1e-5)
    losses = column(alone["epochs"], "loss")
    assert losses == pytest.approx(column(together["epochs"], "loss"), rel=1e-3)
    if not any(map(statistics, single)):  # otherwise validation differs
        losses = [result["valid"]["val"][-1]["loss"] for result in (alone, together)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.parametrize("family", ["vit", "cvt"])
def test_sharding_changes_no_weight(quick_python, squares, tmp_path, family):
    """Weight decay spares norms, biases and tokens in shards, too."""
    full, _ = trained(quick_python, squares, tmp_path / "whole", SHAPES[family], 2)
    flags = f"{SHAPES[family]} --ddp-backend fully_sharded"
    sharded, _ = trained(quick_python, squares, tmp_path / "sharded", flags, 2)
    torch.testing.assert_close(sharded, full, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("rank", [0, 1])
def test_damaged_data_in_one_process_lose_no_progress(quick_python, squares, tmp_path, rank):
    load = ImageBatches.load

    def failing(batches, index):
        if batches._epoch == 2 and batches._seed is not None:
            raise DataError("cat/1.jpg: damaged")
        return load(batches, index)

    def work(process):
        training.join_processes = lambda cpu: process
        if process.rank == rank:
            ImageBatches.load = failing
        folder = tmp_path / "run"
        words = [str(squares), *f"{QUICK} {SHAPES['vit']} --save-dir {folder}".split()]
        raise SystemExit(vision_train.main([*words, "--save-interval=9"]))

    run_ranks(quick_python, work, 2, tmp_path / "errors")
    stored = load_checkpoint(tmp_path / "run/checkpoint_last.safetensors").metadata
    assert stored["training_state"]["num_updates"] == 3
