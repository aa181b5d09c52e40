import os

import pytest

from relu_nmt.cli.document_options import SplitDocumentOptions, WindowOptions, check_writable
from relu_nmt.errors import ConfigError, DataError


def test_text_and_results_do_not_overwrite_each_other():
    SplitDocumentOptions(max_doc_tokens=9).check(WindowOptions())
    SplitDocumentOptions(max_doc_tokens=9, output="a", results="b").check(WindowOptions())
    with pytest.raises(ConfigError, match="--output and --results are both a"):
        SplitDocumentOptions(max_doc_tokens=9, output="a", results="a").check(WindowOptions())
    with pytest.raises(ConfigError, match="--output and --results are both"):
        SplitDocumentOptions(max_doc_tokens=9, output="a", results="./a").check(WindowOptions())


@pytest.mark.parametrize("limit", [None, 9])
def test_a_separator_without_a_file_is_refused(limit):
    with pytest.raises(ConfigError, match="--output-separator goes with"):
        SplitDocumentOptions(max_doc_tokens=limit, output_separator="tag").check(WindowOptions())


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
