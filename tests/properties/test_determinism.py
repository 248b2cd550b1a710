"""The same seed gives the same sketches, rows, programs and LLVM IR in another process."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("determinism_cases.py")
DAGS = 3


def _digests(hash_seed: int) -> list[str]:
    """The script's lines, in a process whose hashes of strings are different."""
    env = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(DAGS)],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_two_processes_agree() -> None:
    first = _digests(1)
    assert len(set(first)) == DAGS
    assert _digests(2) == first
