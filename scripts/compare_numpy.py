"""Tunes GMM:2 (512^3, both operands variable) and times it against numpy (under a minute).

Claim: 64 trials end within 40 s on two cores, builds included, at 0.7 of OpenBLAS's speed or
better. Each contender is timed in a process of its own, in turn, seven times, with the same
statistic. Writes results/gmm_numpy.jsonl and the table beside it.
Usage: python scripts/compare_numpy.py [options of bench_ops.py]
"""

import sys

from bench_ops import main

from bench.experiment import RESULTS, exit_status

if __name__ == "__main__":
    claim = __doc__, ("numpy",), 64, 40.0, ("GMM:2",), RESULTS / "gmm_numpy.jsonl"
    sys.exit(exit_status(lambda: main(*claim)))
