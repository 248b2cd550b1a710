"""Tunes GMM:2 (512^3, both operands variable) and times it against numpy (under a minute).

Claim: 64 trials end within 40 s on two cores, builds included, at 0.7 of OpenBLAS's speed or
better. Each contender is timed in a process of its own, in turn, seven times, with the same
statistic. Writes results/gmm_numpy.jsonl and the table beside it.
Usage: python scripts/compare_numpy.py
"""

import sys
from pathlib import Path

from ansorlite.cli import main

OUTPUT = Path(__file__).parents[1] / "results" / "gmm_numpy.jsonl"

if __name__ == "__main__":
    options = ["--trials", "64", "--timeout", "40", "--peers", "numpy", "--output", str(OUTPUT)]
    sys.exit(main(["bench", "ops", "--only", "GMM:2", *options, *sys.argv[1:]]))
