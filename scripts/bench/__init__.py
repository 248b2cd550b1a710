"""What the benchmarks share. Unless asked to, they use nothing that the machine has learned.

The cost model that comes with the package is what every machine begins with, theirs, too.
"""

import os

os.environ.setdefault("ANSORLITE_KNOWLEDGE", "shipped")
