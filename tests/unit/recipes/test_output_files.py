import os

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
