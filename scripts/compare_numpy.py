"""Tunes GMM:2 (512^3, both operands variable) and times it against numpy (about one minute).

Claim: 64 trials end within 40 s on two cores, builds included, at 0.7 of OpenBLAS's speed or
better. Each contender is timed in a process of its own, in turn, five times, with the
same statistic (the median of repeated calls). Writes results/gmm_numpy.jsonl.
Usage: python scripts/compare_numpy.py
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

CASE, TRIALS, TURNS = "GMM:2", 64, 5
RESULTS = Path(__file__).parent.parent / "results" / "gmm_numpy.jsonl"


def timed(call: Any, seconds: float = 1.0) -> float:
    """Median latency in seconds of calls during `seconds`, after a warm-up."""
    for _ in range(5):
        call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return median(times)


def contender(name: str, log: str) -> float:
    """Latency of one contender; runs in a process of its own."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((1, 512, 512)).astype(np.float32) for _ in range(2))
    if name == "numpy":
        out = np.empty((512, 512), np.float32)
        x, y = a[0], b[0]
        return timed(lambda: np.matmul(x, y, out=out))
    import ansorlite as al
    from ansorlite.codegen.loader import aligned_copy, aligned_empty

    kernel = al.tune(al.workload("GMM", 2), n_trials=0, log=log, progress=False).kernel
    a, b, result = aligned_copy(a), aligned_copy(b), aligned_empty((1, 512, 512), "float32")
    kernel(a, b, out=result)
    np.testing.assert_allclose(result[0], a[0] @ b[0], rtol=1e-3, atol=1e-3)
    return timed(lambda: kernel(a, b, out=result))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contender", choices=("ansorlite", "numpy"), help=argparse.SUPPRESS)
    parser.add_argument("--log", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contender:
        print(contender(args.contender, args.log))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        log = str(Path(folder) / "gmm.jsonl")
        command = [sys.executable, "-m", "ansorlite", "tune-op", CASE, "--trials", str(TRIALS)]
        began = time.perf_counter()
        subprocess.run([*command, "--log", log], check=True)
        tuning_s = time.perf_counter() - began
        found: dict[str, list[float]] = {"ansorlite": [], "numpy": []}
        for _ in range(TURNS):
            for name, times in found.items():
                own = [sys.executable, __file__, "--contender", name, "--log", log]
                times.append(float(subprocess.run(own, check=True, stdout=-1).stdout))
    ours, theirs = median(found["ansorlite"]), median(found["numpy"])
    row = {
        "case": CASE,
        "trials": TRIALS,
        "tuning_s": round(tuning_s, 1),
        "ansorlite_s": ours,
        "numpy_s": theirs,
        "ratio": round(theirs / ours, 3),
        "turns": found,
        "machine": f"{platform.processor() or platform.machine()}, numpy {np.__version__}",
        "date": time.strftime("%Y-%m-%d"),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as out:
        out.write(json.dumps(row) + "\n")
    print(
        f"{CASE}: tuned in {tuning_s:.1f} s; {ours * 1e3:.3f} ms against numpy's "
        f"{theirs * 1e3:.3f} ms: ratio {theirs / ours:.2f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
