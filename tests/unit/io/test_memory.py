"""The free memory, also of containers, and refusals of what would not fit."""

import pytest

from relu_nmt.errors import OutOfMemoryError
from relu_nmt.io import memory
from relu_nmt.io.memory import free_memory, require_memory


@pytest.mark.parametrize(
    ("below", "limit_name", "used_name", "cached"),
    [
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_a_container_bounds_the_memory(tmp_path, below, limit_name, used_name, cached):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 24000 kB\nMemAvailable:   16000 kB\n")
    groups = "3:cpuset:/\n4:memory:/jobs/mine\n0::/jobs/mine\n"
    (tmp_path / "proc/self/cgroup").write_text(groups)

    def group(name, limit, used):
        folder = tmp_path / "sys/fs/cgroup" / below / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / limit_name).write_text(f"{limit}\n")
        (folder / used_name).write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 7\n{cached} 1000\n")

    assert free_memory(str(tmp_path)) == 16_000 * 1024
    group("jobs/mine", 2**62 if below else "max", 5_000_000)
    assert free_memory(str(tmp_path)) == 16_000 * 1024
    # The group above has a limit. Files in its cache count as free.
    group("jobs", 9_000_000, 5_000_000)
    assert free_memory(str(tmp_path)) == 4_001_000
    group("jobs", 5_000_000, 9_000_000)
    assert free_memory(str(tmp_path)) == 0


def test_a_kernel_without_control_groups_has_its_free_memory(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 24000 kB\nMemAvailable:   16000 kB\n")
    assert free_memory(str(tmp_path)) == 16_000 * 1024


def test_without_a_count_of_free_memory_all_of_the_machine_counts(tmp_path):
    assert free_memory(str(tmp_path)) >= free_memory()


def test_more_memory_than_is_free_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 2 * 10**9)
    require_memory("a batch", 2 * 10**9, "take less")
    message = "a batch would take 3.0 GB at least, and 2.0 GB are free; take less"
    with pytest.raises(OutOfMemoryError, match=message):
        require_memory("a batch", 3 * 10**9, "take less")


def test_little_memory_is_not_compared(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 0)
    require_memory("a sentence", 1000, "")
