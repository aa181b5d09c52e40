import json
import os
import random
import stat
import subprocess
import zipfile
import zlib

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from relu_nmt.errors import CheckpointError
from relu_nmt.training.checkpoint import (
    Checkpoint,
    load_checkpoint,
    read_metadata,
    read_tensors,
    save_checkpoint,
)
from tests.outputs import assert_same_tensors


def example() -> Checkpoint:
    shared = torch.randn(5, 3)
    return Checkpoint(
        model_tensors={
            "embed.weight": shared,
            "output.weight": shared,
            "half": torch.randn(4).to(torch.bfloat16),
            "count": torch.tensor(7),
        },
        metadata={"model_config": {"width": 3, "name": "größe"}, "args": {"lr": [0.1]}},
        training_tensors={"optimizer.embed.weight.exp_avg": torch.randn(5, 3)},
    )


def test_a_loaded_checkpoint_equals_the_saved_one(tmp_path):
    saved = example()
    save_checkpoint(tmp_path / "c.safetensors", saved)
    loaded = load_checkpoint(tmp_path / "c.safetensors", with_training_state=True)
    assert loaded.metadata == saved.metadata
    assert loaded.model_tensors.keys() == saved.model_tensors.keys()
    for name, tensor in saved.model_tensors.items():
        assert loaded.model_tensors[name].dtype == tensor.dtype
        assert torch.equal(loaded.model_tensors[name], tensor)
    assert torch.equal(
        loaded.training_tensors["optimizer.embed.weight.exp_avg"],
        saved.training_tensors["optimizer.embed.weight.exp_avg"],
    )


def test_tied_tensors_are_stored_once_and_stay_tied(tmp_path):
    save_checkpoint(tmp_path / "c.safetensors", example())
    loaded = load_checkpoint(tmp_path / "c.safetensors")
    assert loaded.model_tensors["embed.weight"] is loaded.model_tensors["output.weight"]
    with open(tmp_path / "c.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    assert sorted(header.keys() - {"__metadata__"}) == [
        "model.count",
        "model.embed.weight",
        "model.half",
        "optimizer.embed.weight.exp_avg",
    ]


def test_views_and_transposes_are_stored_by_value(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {"row": base[1], "transposed": base.T, "base": base, "part": base[:, :2]}
    save_checkpoint(tmp_path / "c.safetensors", Checkpoint(tensors))
    assert_same_tensors(load_checkpoint(tmp_path / "c.safetensors").model_tensors, tensors)


def test_training_tensors_are_read_only_when_asked(tmp_path):
    save_checkpoint(tmp_path / "c.safetensors", example())
    assert load_checkpoint(tmp_path / "c.safetensors").training_tensors == {}
    assert read_metadata(tmp_path / "c.safetensors")["args"] == {"lr": [0.1]}


def test_a_new_checkpoint_has_ordinary_permissions_and_leaves_no_temporary_file(tmp_path):
    save_checkpoint(tmp_path / "c.safetensors", example())
    (tmp_path / "ordinary").touch()
    assert sorted(os.listdir(tmp_path)) == ["c.safetensors", "ordinary"]
    mode = stat.S_IMODE((tmp_path / "c.safetensors").stat().st_mode)
    assert mode == stat.S_IMODE((tmp_path / "ordinary").stat().st_mode)


FULL_DISK = """
import resource, sys, torch
from relu_nmt.errors import CheckpointError
from relu_nmt.training.checkpoint import Checkpoint, save_checkpoint
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    save_checkpoint(sys.argv[1], Checkpoint({"w": torch.zeros(100_000)}))
except CheckpointError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_old_checkpoint_whole(tmp_path, quick_python):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, Checkpoint({"w": torch.ones(3)}))
    run = subprocess.run(
        [quick_python, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=False
    )
    assert "cannot write the checkpoint" in run.stdout, run.stderr
    assert torch.equal(load_checkpoint(path).model_tensors["w"], torch.ones(3))
    assert os.listdir(tmp_path) == ["c.safetensors"]


@pytest.mark.parametrize("size", [0, 4, 8, 9, 60, 0.5, 0.9, -1])
def test_a_truncated_checkpoint_is_an_error(tmp_path, size):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, example())
    contents = path.read_bytes()
    path.write_bytes(contents[: int(size * len(contents)) if isinstance(size, float) else size])
    for read in (load_checkpoint, read_metadata):
        with pytest.raises(CheckpointError, match=r"c\.safetensors") as caught:
            read(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [load_checkpoint, read_tensors])
def test_tensors_stay_when_another_program_writes_over_the_file_and_cuts_it(tmp_path, read):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, Checkpoint({"w": torch.ones(5000)}))
    loaded = read(path)
    tensors = loaded if isinstance(loaded, dict) else loaded.model_tensors
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.write(bytes(size))
    for tensor in tensors.values():
        assert torch.equal(tensor, torch.ones(5000))
    path.write_bytes(b"")
    for tensor in tensors.values():
        assert torch.equal(tensor, torch.ones(5000))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_header_whose_length_begins_as_a_pickle_does(tmp_path, protocol):
    path = tmp_path / "c.safetensors"
    length = 0x10080 + 0x100 * protocol

    def length_with(note):
        save_checkpoint(path, Checkpoint({"w": torch.ones(1)}, {"note": note}, {}))
        return int.from_bytes(path.read_bytes()[:8], "little")

    size = length - length_with("") - 16  # checksums have about as many digits
    while length_with("x" * size) < length:
        size += 1
    assert path.read_bytes().startswith(bytes([0x80, protocol]))
    assert read_metadata(path) == {"note": "x" * size}
    assert load_checkpoint(path).model_tensors["w"].item() == 1


def test_files_of_other_programs_are_refused(tmp_path):
    torch.save({"w": torch.ones(1)}, tmp_path / "new.pt")
    torch.save({"w": torch.ones(1)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x", "y")
    for name in ("new.pt", "old.pt", "a.zip"):
        with pytest.raises(CheckpointError, match="pickled"):
            load_checkpoint(tmp_path / name)
    (tmp_path / "text").write_text("a text file of some length\n")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        load_checkpoint(tmp_path / "text")
    save_file({"w": torch.ones(1)}, tmp_path / "other.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="not a checkpoint of relu_nmt"):
        load_checkpoint(tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        load_checkpoint(tmp_path / "missing.safetensors")
    with pytest.raises(CheckpointError, match="a folder"):
        load_checkpoint(tmp_path)


def test_a_later_version_is_refused(tmp_path):
    metadata = {"format": json.dumps("relu_nmt checkpoint"), "version": "99"}
    save_file({"model.w": torch.ones(1)}, tmp_path / "c.safetensors", metadata=metadata)
    with pytest.raises(CheckpointError, match="version 99"):
        load_checkpoint(tmp_path / "c.safetensors")


def tensor_bytes(path):
    """Return where each tensor's bytes are in the file."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__")
    positions = {}
    for name, entry in header.items():
        positions[name] = tuple(np.add(entry["data_offsets"], 8 + size))
    return positions


def flip(path, position, bit):
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ (1 << bit)]))


@pytest.mark.parametrize("bit", [0, 6, 7])
def test_a_flipped_bit_in_a_tensor_is_found(tmp_path, bit):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, example())
    for name, (start, end) in tensor_bytes(path).items():
        for position in (start, (start + end) // 2, end - 1):
            flip(path, position, bit)
            with pytest.raises(CheckpointError) as caught:
                load_checkpoint(path, with_training_state=True)
            message = str(caught.value)
            assert str(path) in message
            assert f"the tensor {name} does not fit its checksum" in message
            assert "\n" not in message
            flip(path, position, bit)
    load_checkpoint(path, with_training_state=True)


def test_any_flipped_bit_is_found_or_changes_nothing(tmp_path):
    """Also in the header: names, shapes, types and settings."""
    path = tmp_path / "c.safetensors"
    saved = example()
    save_checkpoint(path, saved)
    flips = random.Random(1)
    size = path.stat().st_size
    for _ in range(1500):
        position = flips.randrange(size)
        bit = flips.randrange(8)
        flip(path, position, bit)
        try:
            loaded = load_checkpoint(path, with_training_state=True)
        except CheckpointError:
            pass
        else:
            assert loaded.metadata == saved.metadata
            assert loaded.model_tensors.keys() == saved.model_tensors.keys()
            for name, tensor in saved.model_tensors.items():
                assert torch.equal(loaded.model_tensors[name], tensor)
                assert loaded.model_tensors[name].dtype == tensor.dtype
            assert loaded.training_tensors.keys() == saved.training_tensors.keys()
        flip(path, position, bit)


def test_a_file_from_before_there_were_checksums_is_read(tmp_path):
    path = tmp_path / "c.safetensors"
    header = {"format": "relu_nmt checkpoint", "version": 1, "tied": {"model.v": "model.w"}}
    metadata = {key: json.dumps(value) for key, value in header.items()}
    save_file({"model.w": torch.arange(3.0)}, path, metadata=metadata)
    assert load_checkpoint(path).model_tensors["v"].tolist() == [0.0, 1.0, 2.0]
    assert load_checkpoint(path).metadata == {}


DEEP = "[" * 20_000 + "]" * 20_000


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("tied", "[1]"),
        ("tied", '{"model.v": ["model.w"]}'),
        ("checksums", "5"),
        ("checksums", '{"model.w": "5"}'),
        ("version", "true"),
        ("task", "5"),
        ("training_state", "[]"),
        ("args", '{"model": 5}'),
        ("args", '{"lr": [[1]]}'),
        ("args", '{"lr": "\\ud800"}'),
        *((key, DEEP) for key in ("tied", "checksums", "task", "args", "model_config", "mine")),
    ],
)
def test_metadata_of_other_types_behind_a_right_checksum_are_one_line(tmp_path, key, text):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, example())
    with safe_open(path, "pt") as file:
        texts = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.offset_keys()}
    del texts["metadata_checksum"]
    texts[key] = text
    checksum = zlib.crc32(json.dumps(sorted(texts.items())).encode())
    save_file(tensors, path, metadata={**texts, "metadata_checksum": str(checksum)})
    for read in (read_metadata, load_checkpoint):
        with pytest.raises(CheckpointError, match=r"c\.safetensors: (damaged|checkpoint version)"):
            read(path)


def test_tensors_that_training_alone_needs_are_not_checked_for_decoding(tmp_path):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, example())
    start, _ = tensor_bytes(path)["optimizer.embed.weight.exp_avg"]
    flip(path, start, 3)
    assert load_checkpoint(path).model_tensors
    with pytest.raises(CheckpointError, match=r"optimizer\.embed\.weight\.exp_avg"):
        load_checkpoint(path, with_training_state=True)
