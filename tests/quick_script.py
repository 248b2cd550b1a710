"""Runs a script as `python SCRIPT ARGUMENTS` does, with the tunings of tests.

Usage: python tests/quick_script.py SCRIPT ARGUMENTS. Kernels are timed briefly, races are short.
"""

import os
import runpy
import sys
from dataclasses import replace

import ansorlite.measure.runner as runner
import ansorlite.search.tune as tune
from ansorlite.search.settle import Race
from ansorlite.search.tune_tasks import ALONE, Manner


def quick_manner() -> Manner:
    """That of tuning one task, with a last race of 0.1 s."""
    return replace(ALONE, race=Race(contenders=4, seconds=0.1))


def be_quick() -> None:
    """From now on, tunings of this process are quick."""
    runner.CHILD_ENTRY = "quick_runner:serve"
    tune.ALONE = quick_manner()
    os.environ["ANSORLITE_BUILD_WORKERS"] = "1"


if __name__ == "__main__":
    be_quick()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
