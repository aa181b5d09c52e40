"""Parts that the corpus scripts share: downloads, archives, cleaning, documents, sentences."""

import sys
from pathlib import Path

# The scripts need relu_nmt.io, and run without an installation, too.
sys.path.append(str(Path(__file__).resolve().parents[2]))
