"""A step runs once, however many sweeps there are."""

import subprocess
import sys

import pytest

from relu_nmt.errors import DataError
from relu_nmt.sweep.locks import StepLock


def test_a_command_keeps_the_lock_when_its_sweep_is_gone(tmp_path):
    first, second = StepLock(tmp_path / "a.lock"), StepLock(tmp_path / "a.lock")
    assert first.acquire()
    command = [sys.executable, "-c", "input()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[first.descriptor])
    first.release()
    assert not second.acquire()
    child.communicate(b"\n")
    assert second.acquire()
    second.release()


def test_the_folder_is_made_or_its_lack_reported(tmp_path):
    lock = StepLock(tmp_path / "new/a.lock")
    assert lock.acquire()
    lock.release()
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be made"):
        StepLock(tmp_path / "file/a.lock").acquire()
