import sys
from pathlib import Path

import pytest
import torch

# The toy models are a plain module beside the tests.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def one_thread():
    """As in a worker, whose products and attention are those of the kernels."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
