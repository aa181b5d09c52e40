import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.training.batches import load_ahead, own_batches


@given(
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_shares_cover_the_rest_of_the_epoch_once(num_batches, offset, update_freq, world_size):
    offset = min(offset, num_batches)
    shares = [
        own_batches(num_batches, offset, update_freq, rank, world_size)
        for rank in range(world_size)
    ]
    # All processes make as many updates, each of as many batches.
    assert len({tuple(len(update) for update in share) for share in shares}) == 1
    done = sorted(i for share in shares for update in share for i in update if i is not None)
    assert done == list(range(offset, num_batches))


@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 4))
def test_processes_and_accumulation_are_interchangeable(num_batches, update_freq, world_size):
    many = [own_batches(num_batches, 0, update_freq, r, world_size) for r in range(world_size)]
    joined = [
        sorted(i for update in updates for i in update if i is not None)
        for updates in zip(*many, strict=True)
    ]
    assert joined == own_batches(num_batches, 0, update_freq * world_size, 0, 1)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_come_in_order(workers):
    def load(index):
        time.sleep(0.002 * (index % 3))
        return index

    assert list(load_ahead(load, range(20), workers, pin_memory=False)) == list(range(20))


def test_loading_runs_ahead_but_not_too_far():
    loaded = []
    batches = load_ahead(lambda i: loaded.append(i) or i, range(100), 2, pin_memory=False)
    assert next(batches) == 0
    time.sleep(0.05)
    assert 2 < len(loaded) < 12
    batches.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("batches")]


def test_an_error_while_loading_reaches_the_trainer():
    def load(index):
        raise ValueError(f"batch {index}")

    with pytest.raises(ValueError, match="batch 0"):
        next(load_ahead(load, range(3), 1, pin_memory=False))
