"""What the benchmarks share. They begin as on a machine that has learned nothing, unless asked to."""

import os

os.environ.setdefault("ANSORLITE_KNOWLEDGE", "0")
