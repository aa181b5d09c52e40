"""What holds for all tests."""

import gc
import os
import random
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# Tiny models are fastest on one thread. What a test starts inherits it. Before PyTorch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
import torch

from relu_nmt.engine import native
from relu_nmt.jobs.preprocess import inputs as preprocess_inputs
from tests import quick_python as quick

# Under nohup, or in the background of a script, signals are ignored here and in all that tests
# start: trainings that they end by them would run on.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The tests' files need not outlive a loss of power, and waiting for the disk takes minutes.
os.fsync = lambda descriptor: None

# Forks of the tests' process are slow: tests of several workers say how many.
preprocess_inputs.available_cores = lambda: 1

# PyTorch would keep a trace of the stack for each kind of device that has no seed yet.
if not torch.cuda.is_available():
    torch.manual_seed = lambda seed: torch.default_generator.manual_seed(int(seed))

# Seeds are fixed but in tests/fuzz, and a busy machine must not fail a test.
settings.register_profile("relu_nmt", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("thorough", settings.get_profile("relu_nmt"), max_examples=500)
settings.load_profile("relu_nmt")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Draw the seed of the examples that are new in each run. Worker processes get it, too."""
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Let the collector of garbage leave out what stays to the end: modules and tests."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Let what a test and its fixtures draw not depend on the tests before it."""
    torch.manual_seed(1)


@pytest.fixture(scope="session")
def quick_python():
    """Return the path of a Python that has imported PyTorch and relu_nmt already."""
    with tempfile.TemporaryDirectory() as folder, quick.start(Path(folder)) as program:
        yield str(program)


@pytest.fixture
def kernel_form(request, monkeypatch):
    """Have only the kernels of this form, a parameter of the test: one of ``native.forms()``."""
    monkeypatch.setattr(native, "forms", lambda: (request.param,))
    native._find.cache_clear()
    yield request.param
    native._find.cache_clear()


def pytest_terminal_summary(terminalreporter, config):
    """Print it."""
    seed = config.option.hypothesis_seed
    terminalreporter.write_line(f"the fresh examples again: --hypothesis-seed={seed}")


@pytest.fixture
def one_thread():
    """Use one thread, as in a worker, where the kernels compute products and attention."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
