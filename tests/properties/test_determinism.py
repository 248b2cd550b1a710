"""The same seed gives the same sketches, rows, programs and LLVM IR in another process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("determinism_cases.py")


def _digests(dags: int, hash_seed: int) -> list[str]:
    """The script's lines, in a process whose hashes of strings are different."""
    env = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(dags)],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("dags", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_two_processes_agree(dags: int) -> None:
    first = _digests(dags, 1)
    assert len(set(first)) == dags
    assert _digests(dags, 2) == first
