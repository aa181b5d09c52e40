"""How many threads compute, and what a crowded machine is told."""

import pytest

from relu_nmt.io.threads import choose_threads, crowding_note
from relu_nmt.io.worker_pool import available_cores


def test_what_the_user_has_left_open_is_chosen():
    environment = {}
    choose_threads(environment)
    assert environment == {"OMP_NUM_THREADS": str(available_cores()), "GOMP_SPINCOUNT": "1000"}


@pytest.mark.parametrize(
    "chosen", [{"OMP_NUM_THREADS": "7", "OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "5"}]
)
def test_what_the_user_has_chosen_stays(chosen):
    environment = dict(chosen)
    choose_threads(environment)
    left = {"OMP_NUM_THREADS": str(available_cores())}
    assert environment == left | chosen


@pytest.mark.parametrize(
    ("threads", "running", "advice"),
    [("4", 1, None), ("4", 3, 2), ("4", 24, 1), ("1", 24, None), ("2", 3, None)],
)
def test_a_crowded_machine_is_told_of(tmp_path, threads, running, advice):
    load = tmp_path / "loadavg"
    load.write_text(f"0.10 0.20 0.30 {running}/195 4711\n")
    note = crowding_note({"OMP_NUM_THREADS": threads}, 4, str(load))
    assert (f"OMP_NUM_THREADS={advice} may be faster" in note) if advice else note == ""


def test_a_system_that_does_not_tell_is_told_nothing(tmp_path):
    assert crowding_note({"OMP_NUM_THREADS": "4"}, 4, str(tmp_path / "absent")) == ""


@pytest.mark.parametrize(
    ("text", "most"), [("max 100000\n", None), ("150000 100000\n", 1), ("50000 100000\n", 1)]
)
def test_a_container_bounds_the_cores(tmp_path, text, most):
    file = tmp_path / "cpu.max"
    file.write_text(text)
    unbounded = available_cores(str(tmp_path / "absent"))
    assert available_cores(str(file)) == (most or unbounded)
