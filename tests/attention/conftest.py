import pytest
import torch

from relu_nmt.attention import attentions
from tests.attention.helpers import VARIANTS

collect_ignore = ["own_map.py"]  # registers a map, which a test does itself


@pytest.fixture(params=[*attentions.names(), *VARIANTS])
def name(request) -> str:
    return request.param


@pytest.fixture(autouse=True)
def uninitialized_memory_is_nan():
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
