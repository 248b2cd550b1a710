"""Kernels of tests/measure serve the tests of pools, too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "measure"))
