import os
from importlib import import_module

import pytest

from relu_nmt.errors import DataError
from relu_nmt.recipes.output_files import check_writable


def test_a_file_that_cannot_be_written_is_known_before_the_work(tmp_path):
    check_writable("--output", None)
    check_writable("--output", str(tmp_path / "new" / "file"))
    assert not list((tmp_path / "new").iterdir())
    with pytest.raises(DataError, match="is a folder"):
        check_writable("--output", str(tmp_path))
    # A folder in which nobody, not even root, can make a file; where there is none, nor can it be.
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
