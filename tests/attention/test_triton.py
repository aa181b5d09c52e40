"""Run ``triton_cases.py`` in separate processes, see there."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from relu_nmt.attention.base import AttentionProblem, Need
from relu_nmt.attention.kernels import triton as backend
from relu_nmt.attention.kernels.tuned import BlockSizes, candidates, choose
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.pointwise import pointwise_maps

CASES = Path(__file__).with_name("triton_cases.py")
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed: pip install 'relu-nmt[triton]'"
)


def run_cases(*flags, **settings):
    environment = {**os.environ}
    environment.pop("TRITON_INTERPRET", None)
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **settings}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *flags, str(CASES)],
        env=environment,
        capture_output=True,
        text=True,
        cwd=CASES.parents[2],
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "passed" in ran.stdout


@pytest.mark.slow
@needs_triton
def test_kernels_in_the_interpreter():
    run_cases(TRITON_INTERPRET="1", OMP_NUM_THREADS="1")


@pytest.mark.gpu
@needs_triton
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_kernels_on_the_device():
    # Compiling takes most of the time, so processes share it, one for each logical core.
    processes = ["-n", str(min(16, len(os.sched_getaffinity(0))))]
    run_cases(*(processes if find_spec("xdist") else []))


def test_triton_does_not_support_tensors_on_the_cpu():
    q = torch.ones(1, 1, 2, 4)
    visibility = Visibility(2, 2)
    attention = SimpleNamespace(map=pointwise_maps.get("relu"))
    problem = AttentionProblem(attention, q, q, q, visibility, None, 0.0, Need())
    assert not backend.supports(problem)


def test_key_bounds_are_the_first_hidden_key_and_the_end_of_the_visible_ones():
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 1, 0]])
    bounds = Visibility(1, 4, key_mask=mask.bool()).key_bounds
    assert bounds.tolist() == [[2, 2], [1, 3], [4, 4], [0, 0], [0, 3]]
    assert Visibility(1, 4).key_bounds is None


@pytest.mark.parametrize("kernel", ["forward", "rows", "columns", "fused"])
@pytest.mark.parametrize("width", [16, 64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("long", [False, True])
def test_there_are_block_sizes_for_every_problem(kernel, width, dtype, long):
    tried = candidates(kernel, width, dtype, long, rectifies=False)
    for blocks in tried:
        assert not blocks.skip
        for size in (blocks.rows, blocks.columns, blocks.warps):
            assert size & (size - 1) == 0
    assert min(b.rows * b.columns for b in tried) == tried[-1].rows * tried[-1].columns == 256


@needs_triton
def test_the_first_block_size_that_fits_into_the_memory_is_used():
    from triton.runtime.errors import OutOfResources

    ran = []

    def launch(blocks):
        if blocks.rows > 32:
            raise OutOfResources(300_000, 200_000, "shared memory")
        ran.append(blocks.rows)

    tried = tuple(BlockSizes(rows, 16, 4, 1) for rows in (128, 64, 32, 16))
    for _ in range(2):
        assert choose("a key of this test", tried, launch, measure=False) == (tried[2], 0.0)
    assert ran == [32]
    with pytest.raises(RuntimeError, match="shared memory"):
        choose("another key", tried[:2], launch, measure=False)
