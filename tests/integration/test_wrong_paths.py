"""A path to something else is told what it is. So are values that no computer can hold."""

import io
import os
import shutil
from pathlib import Path

import pytest
import torch

from relu_nmt.errors import DataError
from relu_nmt.jobs.translate import lines as translate_lines
from relu_nmt.jobs.translate.lines import READ_BYTES, read_buffers
from relu_nmt.training.checkpoint import Checkpoint, save_checkpoint
from tests.commands import assert_refused, run_here

IMAGES = Path(__file__).parents[1] / "compat/files/checkpoints/vit-class.safetensors"
MODEL = IMAGES.with_name("softmax.safetensors")
DATA = Path(__file__).parents[1] / "compat/files/data-joined"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory, monkeypatch):
    """A training makes the folder of its checkpoints where it is started."""
    monkeypatch.chdir(tmp_path_factory.mktemp("started"))


def error_of(command, *words):
    done = run_here(command, words, check=False)
    assert_refused(done)
    return done.stderr


@pytest.mark.parametrize("command", ["generate", "interactive", "translate_document", "train"])
def test_a_checkpoint_of_images_is_called_so(command, tmp_path):
    words = [command, DATA, "--cpu", "--path", IMAGES]
    if command == "translate_document":
        words[1] = Path(__file__)
    if command == "train":
        words[3:] = ["--finetune-from-model", IMAGES, "--max-tokens", "99", "--no-save"]
    assert f"{IMAGES}: the checkpoint of an image classifier" in error_of(*words)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("checkpoint_last.safetensors", "a folder of checkpoints"),
        ("train.de", "a folder of text"),
        ("cat.jpg", "a folder of images"),
        ("other", "no binarized corpus"),
    ],
)
def test_a_folder_that_is_no_data_folder_is_told_what_it_is(tmp_path, name, what):
    (tmp_path / name).write_bytes(b"")
    for words in (("generate", "--path", MODEL), ("train", "--max-tokens", "9")):
        command, *flags = words
        assert f"{tmp_path}: {what}" in error_of(command, tmp_path, "--cpu", flags)


@pytest.mark.parametrize(
    "name",
    [
        *("manifest.json", "dict.de.txt", "train.de-en.en.idx", "train.de-en.de.bin"),
        *("train.de-en.documents", "preprocess.unfinished/journal.json", "valid.de-en.en.raw"),
    ],
)
def test_a_pipe_in_a_data_folder_is_refused(name, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(DATA, data)
    (data / "manifest.json").unlink()
    (data / name).parent.mkdir(exist_ok=True)
    (data / name).unlink(missing_ok=True)
    os.mkfifo(data / name)
    words = ["train", data, "--cpu", "--max-tokens", "99", "--max-update", "1", "--eval-bleu"]
    words += ["--sentence-separator", "--max-doc-tokens", "99"] if "documents" in name else []
    if "journal" in name:
        (tmp_path / "text.de").write_text("a\n")
        words = ["preprocess", "-s", "de", "--only-source", "--trainpref", tmp_path / "text"]
        words += ["--destdir", data, "--no-progress-bar"]
    assert f"{data / name}: is no plain file" in error_of(*words)


def test_a_pipe_in_place_of_a_checkpoint_is_refused(tmp_path):
    os.mkfifo(tmp_path / "checkpoint_last.safetensors")
    path = tmp_path / "checkpoint_last.safetensors"
    message = f"{path}: is no plain file"
    assert message in error_of("generate", DATA, "--path", path)
    assert message in error_of("average", "--output", "out", "--inputs", path)
    words = ["train", DATA, "--cpu", "--max-tokens", "99", "--save-dir", tmp_path]
    assert "checkpoint_last.safetensors: is no plain file" in error_of(*words)


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04and more of it"])
def test_a_pt_beside_a_safetensors_is_told(tmp_path, content):
    save_checkpoint(tmp_path / "checkpoint_best.safetensors", Checkpoint({}))
    if content is not None:
        (tmp_path / "checkpoint_best.pt").write_bytes(content)
    error = error_of("generate", DATA, "--cpu", "--path", tmp_path / "checkpoint_best.pt")
    assert error.endswith("; checkpoint_best.safetensors is there\n")


@pytest.mark.parametrize("command", ["train", "generate"])
def test_an_absurd_seed_is_one_line(command):
    flags = ["--path", MODEL, "--sampling"] if command == "generate" else ["--max-tokens", "9"]
    error = error_of(command, DATA, "--cpu", flags, "--seed", str(10**30))
    assert f"--seed {10**30}: expected 0 to" in error


@pytest.mark.parametrize("flag", ["--lr", "--clip-norm", "--dropout", "--weight-decay"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_what_is_no_number_is_one_line(flag, value):
    error = error_of("train", DATA, "--max-tokens", "9", flag, value)
    assert f"{flag} {value}: expected" in error


@pytest.mark.parametrize(
    "flag", ["--encoder-layers", "--decoder-ffn-embed-dim", "--num-workers", "--seed"]
)
def test_a_number_beyond_reason_is_one_line(flag):
    error = error_of("train", DATA, "--max-tokens", "9", flag, str(10**25))
    assert f"{flag} {10**25}: expected" in error


def test_a_model_larger_than_memory_is_one_line(monkeypatch):
    def exhausted(*_):
        torch.empty(1 << 50)

    monkeypatch.setattr("relu_nmt.jobs.train.job.run", exhausted)
    error = error_of("train", DATA, "--max-tokens", "9", "--no-save")
    assert "error: out of memory (" in error and "take a smaller model, batch or input" in error


@pytest.mark.parametrize("flag", ["--save-dir", "--finetune-from-model", "--extra-data=x,,y"])
def test_an_empty_path_is_one_line(flag):
    words = [flag] if "=" in flag else [flag, ""]
    assert "expected a path" in error_of("train", DATA, "--max-tokens", "9", words)


@pytest.mark.parametrize(
    ("command", "flags", "name"),
    [
        ("generate", ["--path", MODEL], "DATA"),
        ("interactive", ["--path", MODEL], "DATA"),
        ("analyze", ["--path", MODEL, "--output", "x.html"], "DATA"),
        ("shortlist", ["--output", "x"], "DATA"),
        ("translate_document", ["--path", MODEL], "FILE"),
    ],
)
def test_an_empty_argument_is_one_line(command, flags, name):
    """Such as a variable of the shell that is not set."""
    assert f"error: {name} '': expected a path" in error_of(command, "", flags)


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("generate", ["--beam"]),
        ("generate", ["--max-doc-tokens"]),
        ("generate", ["--lenpen"]),
        ("score", ["--sys", __file__, "--metrics", "chrf", "--chrf-word-order"]),
        ("score", ["--sys", __file__, "--baseline", __file__, "--paired-bs-n"]),
    ],
)
@pytest.mark.parametrize("value", [10**20, 10**400])
def test_an_absurd_number_is_one_line(command, flags, value):
    files = ["--ref", __file__] if command == "score" else [DATA, "--cpu", "--path", MODEL]
    error = error_of(command, files, flags, str(value))
    assert flags[-1] in error and "expected" in error


def test_a_beam_beyond_its_bound_is_one_line():
    error = error_of("generate", DATA, "--cpu", "--path", MODEL, "--beam", str(10**12))
    assert "--beam 1000000000000: expected 1 to 100000" in error


def test_a_results_path_that_is_a_file_is_told(tmp_path):
    file = tmp_path / "file"
    file.write_text("kept")
    for path in (file, "/dev/null"):
        error = error_of("generate", DATA, "--cpu", "--path", MODEL, "--results-path", path)
        assert f"--results-path {path}: is no folder" in error
    assert file.read_text() == "kept"


@pytest.mark.parametrize("path", [":", f"{MODEL}:"])
def test_an_empty_path_is_told(path):
    assert "an empty name of a checkpoint" in error_of("interactive", "--path", path)


def test_a_line_of_many_blocks_is_copied_once():
    class Block(bytes):
        def __radd__(self, before):
            pytest.fail("each block copies all before it, which takes the square of the length")

    class Blocks(io.BytesIO):
        def read1(self, size=-1):
            return Block(super().read1(size))

    text = b"x" * (3 * READ_BYTES) + b"\ny"
    assert list(read_buffers(Blocks(text), "text", 0)) == [["x" * (3 * READ_BYTES)], ["y"]]


def test_a_byte_order_mark_alone_is_no_line():
    assert list(read_buffers(io.BufferedReader(io.BytesIO(b"\xef\xbb\xbf")), "text", 0)) == []


def test_a_line_without_an_end_is_not_read_for_ever(monkeypatch):
    monkeypatch.setattr(translate_lines, "MOST_BYTES", 3 * READ_BYTES)
    with (
        open("/dev/zero", "rb") as endless,
        pytest.raises(DataError, match="a line that does not end"),
    ):
        next(read_buffers(endless, "/dev/zero", 0))


def test_a_checkpoint_is_not_converted_onto_itself(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(MODEL.read_bytes())
    error = error_of("convert", path, "--output", tmp_path / "." / "model.safetensors")
    assert "is a file that is read, and would be lost" in error
    assert path.read_bytes() == MODEL.read_bytes()
