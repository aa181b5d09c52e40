import sys
from pathlib import Path

import torch

# The toy models are a plain module beside the tests.
sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
