"""Each process's batches, batches loaded ahead, and the largest one that fits into memory."""

import copy
import itertools
import math
import threading
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from relu_nmt.attention.base import build_attention
from relu_nmt.attention.masks import Visibility
from relu_nmt.config.registry import Spec
from relu_nmt.errors import ConfigError, OutOfMemoryError
from relu_nmt.training import preflight as memory
from relu_nmt.training.batches import batches_of_process, load_ahead
from relu_nmt.training.distributed import ProcessGroup
from relu_nmt.training.learner import Learner
from relu_nmt.training.preflight import fitting_tokens, largest_that_fits, leaving_no_trace
from tests.ranks import run_ranks
from tests.tiny import gradients
from tests.unit.training.toy import Toy, ToyModel, ToyObjective, ToySource

CPU = torch.device("cpu")


def shares_of(num_batches, offset, update_freq, world_size):
    """Return the batches of each update of each process."""
    return [
        batches_of_process(num_batches, offset, update_freq, rank, world_size)
        for rank in range(world_size)
    ]


def filled(updates):
    """Return the numbers of the batches in updates, sorted. None stands for no batch."""
    return sorted(index for index in itertools.chain(*updates) if index is not None)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 5), st.integers(1, 4))
def test_shares_cover_the_rest_of_the_epoch_once(num_batches, offset, update_freq, world_size):
    offset = min(offset, num_batches)
    shares = shares_of(num_batches, offset, update_freq, world_size)
    # All processes make as many updates, each of as many batches.
    assert len({tuple(map(len, share)) for share in shares}) == 1
    assert filled(itertools.chain(*shares)) == list(range(offset, num_batches))


@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 4))
def test_processes_and_accumulation_are_interchangeable(num_batches, update_freq, world_size):
    shares = shares_of(num_batches, 0, update_freq, world_size)
    joined = list(map(filled, zip(*shares, strict=True)))
    assert joined == batches_of_process(num_batches, 0, update_freq * world_size, 0, 1)


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
    while len(loaded) < 3:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(loaded) < 12
    batches.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("batches")]


def test_an_error_while_loading_reaches_the_trainer():
    def load(index):
        raise ValueError(f"batch {index}")

    with pytest.raises(ValueError, match="batch 0"):
        next(load_ahead(load, range(3), 1, pin_memory=False))


def test_random_numbers_buffers_and_gradients_come_back():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Dropout(0.5))
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    with leaving_no_trace(model):
        model(torch.randn(3, 1, 4, 4)).sum().backward()
        assert not torch.equal(model[1].running_mean, before["1.running_mean"])
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert set(gradients(model).values()) == {None}


def test_random_features_are_drawn_again():
    attention = build_attention(Spec("performer"), "encoder", 0, 1, 4, 0.0)
    with torch.no_grad():
        attention.directions.fill_(torch.nan)  # whatever memory holds before the first draw
    states = torch.ones(1, 1, 3, 4)
    with leaving_no_trace(nn.ModuleList([attention, nn.Linear(1, 1)])):
        attention(states, states, states, Visibility(3, 3))
    assert attention.seed_and_passes[1] == 0
    assert attention(states, states, states, Visibility(3, 3)).values.isfinite().all()


@given(st.floats(0, 0.79), st.floats(1e-6, 1e-4), st.integers(1, 2000))
def test_no_size_is_tried_that_does_not_fit(base, slope, min_size):
    tried = []

    def share_of(tokens):
        tried.append(tokens)
        return base + slope * tokens

    size = largest_that_fits(share_of, min_size, largest=65_536)
    fits = [tokens for tokens in tried if base + slope * tokens <= 0.8]
    assert size == max(fits, default=0)
    assert max(tried[1:], default=0) <= size or size == 0
    ideal = min(65_536, (0.8 - base) / slope)
    # Steps below a tenth end the search: they leave at most that share of the memory.
    assert not size or base + slope * size > 0.6 or size > ideal - 64


@pytest.mark.parametrize(("max_size", "size"), [(5000, 5000), (256, 256), (100, 100)])
def test_the_limit_is_reached_exactly(max_size, size):
    assert largest_that_fits(lambda tokens: tokens / 1e6, smallest=10, largest=max_size) == size


def test_a_batch_that_fails_is_not_taken():
    def share_of(tokens):
        return 0.1 if tokens <= 1024 else math.inf

    assert largest_that_fits(share_of, smallest=10, largest=10**6) == 1024
    assert largest_that_fits(share_of, smallest=2000, largest=10**6) == 0


@pytest.fixture
def sized(monkeypatch):
    """A function that makes batches take 10 bytes a token, in so many bytes of memory."""

    def make(memory_bytes):
        monkeypatch.setattr(memory, "memory_of", lambda process: memory_bytes)
        monkeypatch.setattr(memory, "peak_of", lambda learner, batch: 10 * batch)

    return make


def fitting(folder, process=None, **options):
    config = Toy(folder).trainer().config
    process = process or ProcessGroup(0, 1, CPU)
    arguments = {"batch_of": lambda tokens: tokens, "longest_group": 20, **options}
    return fitting_tokens(Learner(ToyObjective(ToyModel()), config, process), **arguments)


def test_the_batch_fills_the_memory_up_to_the_limit_of_the_device(tmp_path, sized):
    sized(30_000)
    num_tokens = fitting(tmp_path)
    assert 2000 < num_tokens <= 2400 and num_tokens % 64 == 0
    assert fitting(tmp_path, share=500) == 500
    # Batches divide an update evenly.
    assert fitting(tmp_path, share=5000) == 1667
    sized(10**9)
    assert fitting(tmp_path) == memory.MOST_AUTO_TOKENS["cpu"]
    assert fitting(tmp_path, longest_group=9000) == 9000


def test_gradients_and_memory_that_runs_out_count(tmp_path, sized, monkeypatch):
    sized(30_000)
    without = fitting(tmp_path)
    # A model of more weights, whose gradients take a part of the memory.
    monkeypatch.setattr(memory, "num_trained", lambda learner: 2000)
    assert fitting(tmp_path) < without - 600

    def fails(learner, batch):
        if batch > 600:
            raise OutOfMemoryError("update: out of memory")
        return 0

    monkeypatch.setattr(memory, "peak_of", fails)
    monkeypatch.setattr(memory, "num_trained", lambda learner: 0)
    assert fitting(tmp_path) == 256


def test_sentences_that_do_not_fit_are_an_error(tmp_path, sized):
    sized(30_000)
    message = (
        r"--max-tokens auto: the longest sentences, 3,000 tokens, need more than 80% of the 0.0 GB"
    )
    with pytest.raises(ConfigError, match=message):
        fitting(tmp_path, longest_group=3000)


def test_a_stored_number_is_kept_or_refused(tmp_path, sized):
    sized(30_000)
    # It may take the margin, which the search leaves.
    assert fitting(tmp_path, stored=2900) == 2900
    message = r"the 3,100 tokens of the checkpoint need more of .* memory here; .* --max-tokens 2"
    with pytest.raises(ConfigError, match=message):
        fitting(tmp_path, stored=3100)


def test_all_processes_take_what_fits_the_smallest(quick_python, tmp_path):
    def work(process):
        memory.memory_of = lambda process: 30_000 if process.rank else 60_000
        memory.peak_of = lambda learner, batch: 10 * batch
        num_tokens = fitting(tmp_path / str(process.rank), process)
        assert 2000 < num_tokens <= 2400, num_tokens

    assert run_ranks(quick_python, work, 2, tmp_path) == [0, 0], (tmp_path / "rank.0").read_text()


def test_the_memory_of_a_cpu_is_shared_by_the_processes_of_the_machine(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 8000)
    monkeypatch.setattr(memory, "peak_resident_bytes", lambda: 500)
    assert memory.memory_of(ProcessGroup(0, 1, CPU)) == 8500
    assert memory.memory_of(ProcessGroup(0, 4, CPU)) == 2500
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert memory.memory_of(ProcessGroup(0, 4, CPU)) == 4500


def test_the_memory_of_a_gpu_is_free_or_reserved(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (700, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 200)
    assert memory.memory_of(ProcessGroup(0, 4, torch.device("cuda", 1))) == 900


def test_a_larger_batch_takes_more_memory(tmp_path):
    """The peak is from the batch, not from the process's past."""
    torch.ones(100_000_000).sum()
    learner = Toy(tmp_path).trainer().learner
    rows = 4_000_000
    small = ToySource().load(0)
    large = type(small)(torch.arange(rows), torch.randn(rows, 4), torch.randn(rows, 1))
    peaks = []
    for batch in (small, large):
        memory.memory_of(learner.process)
        peaks.append(memory.peak_of(learner, batch))
    assert peaks[1] > peaks[0] + 200e6
