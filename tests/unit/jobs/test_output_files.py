import os
from importlib import import_module

import pytest

from relu_nmt.errors import DataError
from relu_nmt.io.safe_write import check_writable, write_output


def test_a_file_that_cannot_be_written_is_known_before_the_work(tmp_path):
    check_writable("--output", None)
    check_writable("--output", str(tmp_path / "new" / "file"))
    assert not list((tmp_path / "new").iterdir())
    with pytest.raises(DataError, match="is a folder"):
        check_writable("--output", str(tmp_path))
    # A folder in which nobody, not even root, can make a file. Where there is none, nor can it be.
    with pytest.raises(DataError, match="--output /proc/file: cannot write it"):
        check_writable("--output", "/proc/file")


def test_no_file_takes_the_place_of_a_device(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/null", "/dev/stdout", str(tmp_path / "pipe")):
        with pytest.raises(DataError, match="is no plain file"):
            check_writable("--output", path)
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "file").touch()
    check_writable("--output", str(tmp_path / "link"))


def test_a_link_is_written_through(tmp_path):
    """As by a shell: the user has said where the file is."""
    (tmp_path / "link").symlink_to("folder/file")
    check_writable("--output", str(tmp_path / "link"))
    for text in ("new", "newer"):
        write_output("--output", str(tmp_path / "link"), text)
        assert (tmp_path / "folder/file").read_text() == text
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize(
    ("command", "words", "flag"),
    [
        ("score", ("--ref", "absent"), "--results"),
        ("average", ("--inputs", "absent"), "--output"),
        ("vision_evaluate", ("absent", "--data", "absent"), "--results"),
        (
            "vision_probe",
            ("absent", "--train", "absent", "--test", "absent", "--method", "knn"),
            "--results",
        ),
    ],
)
def test_commands_know_it_before_they_read_anything(command, words, flag, tmp_path, capsys):
    """Before, a file took the place of the pipe, or device, when all was done."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    main = import_module(f"relu_nmt.cli.{command}").main
    assert main([*words, flag, str(pipe)]) == 2
    assert f"{flag} {pipe}: is no plain file" in capsys.readouterr().err
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("command", "words", "flag", "name"),
    [
        ("score", "--sys other --ref other,input", "--results", "input"),
        ("score", "--contrastive other --path other:input", "--results", "input"),
        ("average", "--inputs other model.safetensors", "--output", "model.safetensors"),
        ("convert", "model.safetensors", "--output", "model.safetensors"),
        (
            "import_fairseq",
            "model.safetensors --data other --trust-pickle",
            "--output",
            "model.safetensors",
        ),
        ("import_marian", ".", "--output", "model.safetensors"),
        ("analyze", "--log other input", "--output", "input"),
    ],
)
def test_what_is_read_is_not_written_over(
    command, words, flag, name, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for path in ("other", name):
        (tmp_path / path).write_text("valuable")
    main = import_module(f"relu_nmt.cli.{command}").main
    assert main([*words.split(), flag, name]) == 2
    assert f"{flag} {name}: is a file that is read, and would be lost" in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "valuable"


def test_the_name_of_a_models_weights_is_theirs(tmp_path, capsys):
    """Beside a pytorch_model.bin, a model.safetensors would be read instead of it."""
    (tmp_path / "pytorch_model.bin").touch()
    main = import_module("relu_nmt.cli.import_marian").main
    assert main([str(tmp_path), "--output", str(tmp_path / "model.safetensors")]) == 2
    assert "is a file that is read" in capsys.readouterr().err
