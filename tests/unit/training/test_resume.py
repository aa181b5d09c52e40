"""A training that is interrupted at any update and goes on is, bit for bit, one that was not."""

import copy
import dataclasses
import functools
import itertools
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from relu_nmt.errors import CheckpointError
from relu_nmt.training import SCHEDULES
from relu_nmt.training.batches import batches_of_process
from relu_nmt.training.config import OptimizerConfig
from relu_nmt.training.optimizers import freeze
from tests.fuzz.fresh import fresh
from tests.outputs import assert_same_tensors, last_checkpoint, tensors
from tests.ranks import errors_of, run_ranks
from tests.unit.training import toy
from tests.unit.training.toy import Toy, ToySource

UPDATES = 17
SCHEDULE_SETTINGS = {
    "inverse_sqrt": {},
    "cosine": {"lr_period_updates": 6, "t_mult": 2, "lr_shrink": 0.5},
    "polynomial_decay": {"total_num_update": 12, "power": 2, "end_learning_rate": 0.001},
    "fixed": {"lr": (0.05, 0.03), "force_anneal": 2, "lr_shrink": 0.5, "warmup_updates": 3},
    "reduce_lr_on_plateau": {"lr_threshold": 0.5, "lr_shrink": 0.5},
}
MODES = {
    "accumulation": {"run": {"update_freq": (3,)}},
    "accumulation by epoch": {"run": {"update_freq": (1, 2, 4)}},
    "average": {"optimizer": {"store_ema": True, "ema_decay": 0.9}},
    "average now and then": {
        "optimizer": {
            "store_ema": True,
            "ema_decay": 0.5,
            "ema_start_update": 3,
            "ema_update_freq": 2,
        }
    },
    "adafactor, rates by part": {
        "optimizer": {"optimizer": "adafactor", "lr_scales": ("output=0.5",)}
    },
    "bfloat16": {"run": {"bf16": True, "clip_norm": 0.5}},
    "workers": {"run": {"num_workers": 2}},
    "validation often": {
        "validation": {"validate_interval_updates": 2},
        "run": {"patience": 50},
        "schedule": {"lr_scheduler": "reduce_lr_on_plateau", "lr_threshold": 0.5},
    },
    "all together": {
        "run": {"update_freq": (2,), "bf16": True, "clip_norm": 0.5, "num_workers": 1},
        "optimizer": {"store_ema": True, "ema_decay": 0.9},
        "schedule": {"lr_scheduler": "cosine", "lr_period_updates": 6},
    },
} | {
    name: {"schedule": {"lr_scheduler": name, **options}}
    for name, options in SCHEDULE_SETTINGS.items()
}


class Interrupting(ToySource):
    """A signal comes as it reads a batch for the n-th time. Batches of unequal sizes."""

    def __init__(self, at=None):
        super().__init__()
        self.at = at

    def load(self, index):
        batch = super().load(index)
        if len(self.loaded) == self.at:
            signal.raise_signal(signal.SIGTERM)
        return batch


def train(folder, mode, at=None):
    """Train up to UPDATES, or to a signal. Returns the trainer."""
    settings = copy.deepcopy(MODES[mode])
    run = {"max_update": UPDATES, "preflight": False, **settings.pop("run", {})}
    keep = {"no_epoch_checkpoints": True}
    trainer = Toy(folder, run, keep, train=Interrupting(at), **settings).trainer()
    trainer.train()
    return trainer


def assert_same(left, right, left_folder, right_folder):
    """Compare all that is stored, but for times."""
    first = last_checkpoint(left_folder)
    second = last_checkpoint(right_folder)
    for kind in ("model_tensors", "training_tensors"):
        tensors = getattr(first, kind)
        torch.testing.assert_close(tensors, getattr(second, kind), rtol=0, atol=0)
    states = [dataclasses.asdict(trainer.state) for trainer in (left, right)]
    for state in states:
        del state["seconds"]
        for meters in ("inner", "epoch_meters"):
            del state[meters]["seconds"]
    assert states[0] == states[1]


@functools.cache
def uninterrupted(mode):
    folder = Path(tempfile.mkdtemp(prefix="whole"))
    return folder, train(folder, mode)


@pytest.fixture(scope="module", autouse=True)
def _remove_wholes():
    yield
    for mode in MODES:
        shutil.rmtree(uninterrupted(mode)[0], ignore_errors=True)
    uninterrupted.cache_clear()


def test_every_schedule_is_among_the_tested_modes():
    assert set(SCHEDULE_SETTINGS) == set(SCHEDULES.names())


@pytest.mark.parametrize("mode", MODES)
@fresh(2)
@given(stops=st.lists(st.integers(1, UPDATES), min_size=1, max_size=3))
@example(stops=[UPDATES])  # with the last update, before the validation at the end
@example(stops=[4])  # where one mode validates
def test_interrupted_at_any_update(mode, stops):
    expected_folder, expected = uninterrupted(mode)
    with tempfile.TemporaryDirectory() as folder:
        for at in stops:
            train(Path(folder), mode, at)
        trainer = train(Path(folder), mode)
        assert_same(expected, trainer, expected_folder, Path(folder))


@fresh(200)
@given(
    count=st.integers(1, 40),
    parts=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6)), max_size=5),
)
def test_any_numbers_of_processes_train_on_every_batch_once(count, parts):
    """Each part: processes, batches that they accumulate, and updates until they are stopped."""
    offset = 0
    indices = []
    for world_size, update_freq, stop in [*parts, (1, 1, count)]:
        updates = [
            batches_of_process(count, offset, update_freq, rank, world_size)[:stop]
            for rank in range(world_size)
        ]
        assert len(set(map(len, updates))) == 1
        batches = list(itertools.chain(*updates))
        assert len(set(map(len, batches))) <= 2  # the last is shorter
        indices += [i for i in itertools.chain(*batches) if i is not None]
        offset = min(offset + len(updates[0]) * update_freq * world_size, count)
    assert sorted(indices) == list(range(count))


def train_as_ranks(folder, process, max_update, at=None):
    """Train in this process, one of however many. Only the last one may get the signal."""
    toy.ProcessGroup = lambda *_: process
    at = at if process.rank == process.world_size - 1 else None
    ema = {"store_ema": True, "ema_decay": 0.9}
    run = {"max_update": max_update, "update_freq": (2,), "preflight": False}
    keep = {"no_epoch_checkpoints": True}
    trainer = Toy(folder, run, keep, train=Interrupting(at), optimizer=ema).trainer()
    trainer.train()
    process.gather(None)  # the first one has written, before another goes on or compares
    return trainer


def test_two_processes_interrupted_and_then_only_one(quick_python, tmp_path):
    """7 batches an epoch, 4 of which an update takes."""

    def work(process):
        expected = train_as_ranks(tmp_path / "whole", process, 7)
        for at in (4, 5, None):
            trainer = train_as_ranks(tmp_path / "parts", process, 7, at)
        assert_same(expected, trainer, tmp_path / "whole", tmp_path / "parts")
        # Into the middle of an epoch, for one process to go on from.
        train_as_ranks(tmp_path / "fewer", process, 3)

    codes = run_ranks(quick_python, work, 2, tmp_path / "errors")
    errors = errors_of(tmp_path / "errors")
    assert codes == [0, 0], errors
    before = toy.ProcessGroup
    alone = before(0, 1, torch.device("cpu"))
    trainer = train_as_ranks(tmp_path / "fewer", alone, 5)
    toy.ProcessGroup = before
    # The second epoch is complete: as many samples as its batches have, each counted once.
    assert trainer.state.epoch == 3
    sizes = [len(ToySource().load(index).ids) for index in range(7)]
    assert trainer.result.epochs[-1]["bsz"] * 3 == pytest.approx(sum(sizes), abs=0.2)


@pytest.mark.parametrize("replaced", ["checkpoint_best", "checkpoint1", "checkpoint_1_3"])
def test_a_checkpoint_that_is_copied_over_changes_no_other(tmp_path, replaced):
    """A copy with cp writes into the file that is there, which was several names' once."""
    settings = {"checkpoint": {"save_interval_updates": 3}}
    Toy(tmp_path / "whole", run={"max_update": 12}, **settings).trainer().train()
    Toy(tmp_path / "parts", run={"max_update": 7}, **settings).trainer().train()
    Toy(tmp_path / "other", run={"max_update": 1, "seed": 5}, **settings).trainer().train()
    parts = tmp_path / "parts"
    shutil.copyfile(
        tmp_path / "other/checkpoint_last.safetensors", parts / f"{replaced}.safetensors"
    )
    Toy(parts, run={"max_update": 12}, **settings).trainer().train()
    assert last_checkpoint(parts).metadata["training_state"]["num_updates"] == 12
    assert_same_tensors(tensors(parts), tensors(tmp_path / "whole"))


FROZEN = {"hidden": ["output"], "": ["hidden", "output"], "output": ["hidden"]}


@pytest.mark.parametrize("before", FROZEN)
@pytest.mark.parametrize("after", FROZEN)
def test_a_training_goes_on_with_other_parts_frozen(tmp_path, before, after):
    """Parts that are trained again go on with their state of the optimizer. New ones begin one."""
    for frozen, updates in ((before, 3), (after, 5)):
        objective = toy.ToyObjective(toy.ToyModel())
        freeze(objective.model, OptimizerConfig(freeze=(frozen,) if frozen else ()))
        Toy(tmp_path, {"max_update": updates}).trainer(objective).train()
    stored = last_checkpoint(tmp_path)
    steps = {f"{part}.weight": 5 if part in FROZEN[before] else 2 for part in FROZEN[after]}
    num_steps = {name: stored.training_tensors[f"optimizer.{name}.step"].item() for name in steps}
    assert num_steps == steps
    assert len(stored.training_tensors) == 3 * 2 * len(FROZEN[after])


def test_a_checkpoint_without_state_of_the_optimizer_is_refused(tmp_path):
    keep = {"no_save_optimizer_state": True}
    Toy(tmp_path, {"max_update": 3}, keep).trainer().train()
    with pytest.raises(CheckpointError, match="holds no optimizer state for this model; add --re"):
        Toy(tmp_path, {"max_update": 5}).trainer().train()
