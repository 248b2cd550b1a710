"""What the benchmarks share. Unless asked to, they use nothing that the machine has learned."""

import os

os.environ.setdefault("ANSORLITE_KNOWLEDGE", "0")
