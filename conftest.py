"""What pytest leaves out: files that import Triton, where there is none (it exists for Linux)."""

from importlib.util import find_spec

collect_ignore_glob = []
if find_spec("triton") is None:
    collect_ignore_glob += [
        "relu_nmt/attention/kernels/triton_*.py",
        "tests/attention/own_map.py",
        "tests/extending/parts/pointwise_map.py",
    ]
