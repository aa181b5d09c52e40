import subprocess
import sys

import pytest

from relu_nmt.io.safe_write import safe_writer, write_text


def test_text_keeps_its_line_ends(tmp_path):
    write_text(tmp_path / "x", "a\r\nä\n")
    assert (tmp_path / "x").read_bytes() == "a\r\nä\n".encode()


def test_failure_keeps_the_old_file(tmp_path):
    write_text(tmp_path / "x", "old")
    with pytest.raises(KeyError), safe_writer(tmp_path / "x") as file:
        file.write(b"new")
        raise KeyError
    assert (tmp_path / "x").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_file_appears_at_the_end(tmp_path):
    with safe_writer(tmp_path / "x") as file:
        file.write(b"new")
        assert not (tmp_path / "x").exists()
    assert (tmp_path / "x").read_bytes() == b"new"


def test_two_processes_may_write_a_file_at_once(tmp_path):
    code = (
        "import sys; from relu_nmt.io.safe_write import write_text\n"
        "for _ in range(100):\n    write_text(sys.argv[1], sys.argv[2] * 1_000_000)"
    )
    path = tmp_path / "report.html"
    commands = [[sys.executable, "-c", code, str(path), letter] for letter in "ab"]
    processes = [subprocess.Popen(command) for command in commands]
    assert [process.wait() for process in processes] == [0, 0]
    assert path.read_text() in ("a" * 1_000_000, "b" * 1_000_000)
    assert list(tmp_path.iterdir()) == [path]
