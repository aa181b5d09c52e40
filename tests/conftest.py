"""What holds for all tests."""

import os

from hypothesis import settings

# Tiny models are fastest on one thread; what a test starts inherits it. Before PyTorch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Seeds are fixed, and a busy machine must not fail a test.
settings.register_profile("relu_nmt", deadline=None, derandomize=True)
settings.load_profile("relu_nmt")
