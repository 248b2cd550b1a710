"""An empty parallel kernel against an empty `#pragma omp parallel` of C (seconds).

Claim: starting a parallel kernel costs at most 1.2 times what the same OpenMP runtime costs a C
program. Needs `cc` with OpenMP. Both run in a process of their own, in turn. Writes
results/parallel_overhead.jsonl.
Usage: python scripts/parallel_overhead.py
"""

import ctypes
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.experiment import RESULTS, Experiment, Row

CALLS, TURNS = 20_000, 9
SOURCE = """
#include <omp.h>
void empty(void *unused) {
#pragma omp parallel
  { __asm__ volatile("" ::: "memory"); }
}
void repeat(long n) {
  for (long i = 0; i < n; ++i) empty(0);
}
"""


def ours() -> float:
    """Seconds of a parallel kernel that stores one number a thread."""
    from ansorlite import te
    from ansorlite.calls import aligned_empty
    from ansorlite.codegen.build import build_program
    from ansorlite.codegen.loader import load_image
    from ansorlite.schedule.lower import lower
    from ansorlite.schedule.state import State
    from ansorlite.schedule.steps import Annotate
    from ansorlite.target import Target

    target = Target.detect()
    y = te.compute((target.cores,), lambda i: te.const(0.0, "float32"), name="y")
    state = State(te.ComputeDAG([y])).apply(Annotate("y", "i", "parallel", 1))
    kernel = load_image(build_program(lower(state), target))
    args = kernel.pointer_array([aligned_empty((target.cores,), "float32")])
    kernel.repeat(args, CALLS)
    began = time.perf_counter()
    kernel.repeat(args, CALLS)
    return (time.perf_counter() - began) / CALLS


def theirs(library: str) -> float:
    """Seconds of C's empty parallel region."""
    repeat = ctypes.CDLL(library).repeat
    repeat.argtypes = [ctypes.c_long]
    repeat(CALLS)
    began = time.perf_counter()
    repeat(CALLS)
    return (time.perf_counter() - began) / CALLS


def table_line(row: Row) -> str:
    mine, c = row["ours_s"] * 1e6, row["c_s"] * 1e6
    return f"ours {mine:.2f} us, C {c:.2f} us, ratio {row['ratio']:.2f} (claim: at most 1.2)"


def main() -> int:
    if len(sys.argv) > 1:
        print(ours() if sys.argv[1] == "ours" else theirs(sys.argv[1]))
        return 0
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        print("no C compiler: install gcc", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "empty.c", str(Path(folder) / "empty.so")
        source.write_text(SOURCE)
        subprocess.run(
            [compiler, "-O2", "-fopenmp", "-shared", "-fPIC", source, "-o", library], check=True
        )
        turns = []
        for _ in range(TURNS):
            pair = [
                float(subprocess.check_output([sys.executable, __file__, who], text=True))
                for who in ("ours", library)
            ]
            turns.append(pair)
    mine, c = (median(t[k] for t in turns) for k in (0, 1))
    row = {"ours_s": mine, "c_s": c, "ratio": median(a / b for a, b in turns), "turns_s": turns}
    experiment = Experiment[Row](
        RESULTS / "parallel_overhead.jsonl", key=lambda r: "ratio", line=table_line
    )
    experiment.add({**row, "date": time.strftime("%Y-%m-%d")})
    return 0


if __name__ == "__main__":
    sys.exit(main())
