"""Damaged checkpoints give one line, never a crash and never wrong shapes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relu_nmt.errors import CheckpointError, ReluNmtError
from relu_nmt.training.checkpoint import (
    Checkpoint,
    load_checkpoint,
    read_metadata,
    save_checkpoint,
)
from tests.unit.training.toy import Toy


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a training checkpoint."""
    folder = tmp_path_factory.mktemp("whole")
    Toy(folder, run={"max_update": 2}, ema={"store_ema": True}).trainer().train()
    return (folder / "checkpoint_last.safetensors").read_bytes()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged") / "checkpoint_last.safetensors"


def read(path):
    for reader in (load_checkpoint, read_metadata):
        try:
            reader(path)
        except CheckpointError as error:
            assert str(path) in str(error)
            assert "\n" not in str(error)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_changed_bytes(whole, path, data):
    damaged = bytearray(whole)
    # Most of what can go wrong is in the header, at the beginning.
    header = 8 + int.from_bytes(whole[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, header - 1))
        damaged[position] = data.draw(st.integers(0, 255))
    path.write_bytes(damaged)
    read(path)


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 1))
def test_truncation_never_goes_unnoticed(whole, path, share):
    path.write_bytes(whole[: int(share * (len(whole) - 1))])
    for reader in (load_checkpoint, read_metadata):
        with pytest.raises(CheckpointError):
            reader(path)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes(path, content):
    path.write_bytes(content)
    with pytest.raises(CheckpointError):
        load_checkpoint(path)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_training_does_not_go_on_with_what_does_not_fit(whole, path, data):
    path.write_bytes(whole)
    checkpoint = load_checkpoint(path, with_training_state=True)
    groups = [checkpoint.model_tensors, checkpoint.training_tensors]
    group = groups[data.draw(st.integers(0, 1))]
    name = data.draw(st.sampled_from(sorted(group)))
    how = data.draw(st.sampled_from(["drop", "rename", "reshape", "state"]))
    tensor = group.pop(name) if how != "state" else None
    if how == "rename":
        group[name + "x"] = tensor
    elif how == "reshape":
        group[name] = torch.zeros(*tensor.shape, 2)
    elif how == "state":
        state = checkpoint.metadata["training_state"]
        state.pop(data.draw(st.sampled_from(["inner", "epoch_meters"])))
    save_checkpoint(path, Checkpoint(*vars(checkpoint).values()))
    with pytest.raises(ReluNmtError) as caught:
        Toy(path.parent, run={"max_update": 3}).trainer().train()
    assert "\n" not in str(caught.value)
