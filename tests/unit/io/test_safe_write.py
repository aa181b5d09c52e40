import errno
import os
import signal
import stat
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from relu_nmt.io import safe_write
from relu_nmt.io.safe_write import (
    copy_file,
    remove_abandoned,
    replacing,
    safe_writer,
    temporary_folder,
    write_text,
)

KILLED = """
import os, signal, sys
from relu_nmt.io.safe_write import replacing
with replacing(sys.argv[1]) as temporary:
    temporary.write_bytes(b"half")
    temporary.with_name(".tmpA1b2C3").write_bytes(b"of a library")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def names_in(folder):
    return sorted(os.listdir(folder))


def leave_half(path):
    """Return the folder that a killed writer of a file leaves."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)])
    assert done.returncode == -signal.SIGKILL
    [left] = set(path.parent.glob(".*.tmp"))
    return left


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def mask_022():
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_text_keeps_its_line_ends(tmp_path):
    write_text(tmp_path / "x", "a\r\nä\n")
    assert (tmp_path / "x").read_bytes() == "a\r\nä\n".encode()


def test_failure_keeps_the_old_file(tmp_path):
    write_text(tmp_path / "x", "old")
    with pytest.raises(KeyError), safe_writer(tmp_path / "x") as file:
        file.write(b"new")
        raise KeyError
    assert (tmp_path / "x").read_text() == "old"
    assert names_in(tmp_path) == ["x"]


def test_a_safely_written_file_appears_at_the_end(tmp_path):
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
    processes = []
    for letter in "ab":
        processes.append(subprocess.Popen([sys.executable, "-c", code, str(path), letter]))
    assert [process.wait() for process in processes] == [0, 0]
    assert path.read_text() in ("a" * 1_000_000, "b" * 1_000_000)
    assert list(tmp_path.iterdir()) == [path]


def test_the_next_writer_takes_over_the_folder_of_a_killed_one(tmp_path):
    leave_half(tmp_path / "x")
    with replacing(tmp_path / "x") as temporary:
        assert names_in(temporary.parent) == [safe_write.LOCK]
        temporary.touch()
    assert names_in(tmp_path) == ["x"]


def test_a_folder_in_use_is_neither_taken_nor_removed(tmp_path):
    with replacing(tmp_path / "x") as first, replacing(tmp_path / "x") as other:
        first.write_text("one")
        other.write_text("other")
        remove_abandoned(tmp_path)
        assert (first.read_text(), other.read_text()) == ("one", "other")
    assert names_in(tmp_path) == ["x"]


def test_folders_of_killed_writers_are_removed_and_those_of_others_stay(tmp_path):
    leave_half(tmp_path / "x")
    (tmp_path / ".x.7.tmp").mkdir()  # its process was killed before it had the lock
    (tmp_path / ".mine.1.tmp").mkdir()
    (tmp_path / ".mine.1.tmp" / "kept").touch()
    remove_abandoned(tmp_path)
    assert names_in(tmp_path) == [".mine.1.tmp"]


def test_where_there_are_no_locks_nothing_that_may_be_in_use_is_removed(tmp_path, monkeypatch):
    left = leave_half(tmp_path / "x")

    def refuse(descriptor):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(safe_write, "try_lock", refuse)
    remove_abandoned(tmp_path)
    write_text(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text() == "new"
    assert names_in(tmp_path) == [left.name, "x"]


def test_a_folder_removed_at_the_last_moment_is_not_written_to(tmp_path, monkeypatch):
    """Between opening and locking, another process may remove the folder."""
    left = leave_half(tmp_path / "x")
    lock = safe_write.try_lock
    locked = []

    def late(descriptor):
        if not locked:
            locked.append(left)
            remove_abandoned(tmp_path)
        return lock(descriptor)

    monkeypatch.setattr(safe_write, "try_lock", late)
    write_text(tmp_path / "x", "new")
    assert names_in(tmp_path) == ["x"]


@pytest.mark.parametrize("before", [0o600, 0o640, 0o664, 0o444])
def test_a_replaced_file_keeps_its_permissions(tmp_path, before):
    for write in (
        lambda path: write_text(path, "new"),
        lambda path: copy_file(tmp_path / "source", path),
    ):
        (tmp_path / "source").write_text("new")
        path = tmp_path / "x"
        path.unlink(missing_ok=True)
        path.write_text("old")
        path.chmod(before)
        write(path)
        assert (path.read_text(), mode(path)) == ("new", before)


def test_a_new_file_has_the_permissions_that_the_user_gives_new_files(tmp_path, mask_022):
    write_text(tmp_path / "text", "new")
    with replacing(tmp_path / "tensors") as temporary:
        save_file({"w": torch.ones(1)}, temporary)  # safetensors 0.8.0: for the owner alone
    assert (mode(tmp_path / "text"), mode(tmp_path / "tensors")) == (0o644, 0o644)
    os.umask(0o077)
    write_text(tmp_path / "private", "new")
    assert mode(tmp_path / "private") == 0o600


def test_a_file_that_replaces_a_private_one_is_private_from_the_beginning(tmp_path, mask_022):
    with temporary_folder(tmp_path / "x") as folder:
        assert mode(folder) == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
def test_a_replaced_file_keeps_owner_and_group(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.touch()
    os.chown(path, 1234, 5678)
    path.chmod(0o640)
    write_text(path, "new")
    assert (path.stat().st_uid, path.stat().st_gid, mode(path)) == (1234, 5678, 0o640)

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "chown", refuse)
    write_text(path, "newer")
    assert mode(path) == 0o600, "the group is another one, which may not read the file"


def test_a_link_is_replaced_and_its_target_stays(tmp_path):
    """A data folder's dictionary may be a link to the dictionary of another folder."""
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    write_text(tmp_path / "link", "new")
    assert not (tmp_path / "link").is_symlink()
    assert ((tmp_path / "target").read_text(), (tmp_path / "link").read_text()) == ("old", "new")


def test_a_copy_is_a_file_of_its_own(tmp_path):
    (tmp_path / "a").write_text("one")
    copy_file(tmp_path / "a", tmp_path / "b")
    (tmp_path / "a").write_text("two")
    assert (tmp_path / "b").read_text() == "one"
    assert (tmp_path / "b").stat().st_nlink == 1
