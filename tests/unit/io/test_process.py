"""The number of cores and threads that compute, and the warning on a crowded machine."""

import os

import pytest

from relu_nmt.io import process
from relu_nmt.io.process import available_cores, choose_threads, crowding_note, other_threads


@pytest.fixture
def machine(monkeypatch):
    """Return a function that sets the environment, and the counts that looks at the load find."""

    def become(environment, counts):
        monkeypatch.setattr(os, "environ", environment)
        monkeypatch.setattr(os, "cpu_count", lambda: 4)
        monkeypatch.setattr(process, "other_threads", counts)

    return become


@pytest.mark.parametrize(("other_count", "spin_count"), [(0, "4000"), (1, "1000"), (None, "1000")])
def test_threads_are_chosen_unless_the_user_does(machine, other_count, spin_count):
    environment = {}
    machine(environment, lambda: other_count)
    choose_threads()
    assert environment == {"OMP_NUM_THREADS": str(available_cores()), "GOMP_SPINCOUNT": spin_count}


@pytest.mark.parametrize(
    "chosen", [{"OMP_NUM_THREADS": "7", "OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "5"}]
)
def test_the_users_choice_of_threads_stays(machine, chosen):
    environment = dict(chosen)
    machine(environment, lambda: 0)
    choose_threads()
    assert environment == {"OMP_NUM_THREADS": str(available_cores())} | chosen


@pytest.mark.parametrize(
    ("threads", "other_count", "advice"),
    [("4", 0, None), ("4", 2, 2), ("4", 23, 1), ("1", 23, None), ("2", 2, None)],
)
def test_a_crowded_machine_gets_a_note(machine, threads, other_count, advice):
    machine({"OMP_NUM_THREADS": threads}, lambda: other_count)
    note = crowding_note()
    assert (f"OMP_NUM_THREADS={advice} may be faster" in note) if advice else note == ""


@pytest.mark.parametrize("counts", [[2, 2, 0], [0], [3, 1, 3, 3, 0], [3, 3, 3, 3, 0], [2, None]])
def test_threads_that_end_at_once_give_no_note(machine, counts):
    looks = iter(counts)
    machine({"OMP_NUM_THREADS": "4"}, lambda: next(looks))
    assert crowding_note() == ""
    assert next(looks, None) is None  # an idle machine is looked at once


def test_threads_found_by_every_look_are_counted(machine):
    looks = iter([9, 3, 2, 7, 5])
    machine({"OMP_NUM_THREADS": "4"}, lambda: next(looks))
    note = crowding_note()
    assert note.startswith("NOTE: 2 other threads run on the 4 cores")


def test_threads_of_this_process_do_not_count(monkeypatch, tmp_path):
    load = tmp_path / "loadavg"
    load.write_text("0.10 0.20 0.30 5/195 4711\n")
    for number, stat in enumerate(("R", "R", "S")):
        (tmp_path / f"task/{number}").mkdir(parents=True)
        (tmp_path / f"task/{number}/stat").write_text(f"{number} (a (b) R) {stat} 1 1")
    monkeypatch.setattr(process, "LOAD_FILE", load)
    monkeypatch.setattr(process, "TASKS_FOLDER", tmp_path / "task")
    assert other_threads() == 3
    monkeypatch.setattr(process, "TASKS_FOLDER", tmp_path / "absent")
    assert other_threads() == 4
    monkeypatch.setattr(process, "LOAD_FILE", tmp_path / "absent")
    assert other_threads() is None


def test_the_load_of_this_system_is_a_number_or_unknown():
    count = other_threads()
    assert count is None or count >= 0


def test_an_unknown_load_gives_no_note(machine):
    machine({"OMP_NUM_THREADS": "4"}, lambda: None)
    assert crowding_note() == ""


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000\n", None), ("150000 100000\n", 1), ("50000 100000\n", 1)]
)
def test_a_container_bounds_the_cores(monkeypatch, tmp_path, text, cores):
    file = tmp_path / "cpu.max"
    monkeypatch.setattr(process, "QUOTA_FILE", file)
    unbounded = available_cores()
    file.write_text(text)
    assert available_cores() == (cores or unbounded)


def test_at_least_one_core_is_available():
    assert available_cores() >= 1
