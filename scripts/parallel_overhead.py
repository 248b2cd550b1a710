"""An empty parallel kernel against an empty `#pragma omp parallel` of C (seconds).

Claims: starting a parallel kernel costs at most 1.2 times what the same OpenMP runtime costs a C
program; a network of 50 kernels that do nothing costs at most 20 us a call, as compiled and, saved,
from C. Needs `cc` with OpenMP. All run in processes of their own, in turn. Writes
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
from typing import Any

from bench.experiment import RESULTS, Experiment, Row

CALLS, TURNS = 20_000, 9
KERNELS, NETWORK_CALLS = 50, 1_000
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
    kernel, args = empty_kernel()
    kernel.repeat(args, CALLS)
    began = time.perf_counter()
    kernel.repeat(args, CALLS)
    return (time.perf_counter() - began) / CALLS


def network() -> float:
    """Seconds of a call of 50 such kernels in a row."""
    from ansorlite.codegen.loader import CallSequence

    sequence = CallSequence([empty_kernel()] * KERNELS)
    times = []
    for _ in range(NETWORK_CALLS):
        began = time.perf_counter()
        sequence.run()
        times.append(time.perf_counter() - began)
    return median(times)


def saved() -> float:
    """Seconds of `network_run` of a saved network of 50 kernels of 32 numbers each."""
    with tempfile.TemporaryDirectory() as folder:
        small_network().save(Path(folder) / "net")
        library = ctypes.CDLL(str(Path(folder) / "net" / "libnetwork.so"))
        library.network_open.restype = ctypes.c_void_p
        library.network_run.argtypes = [ctypes.c_void_p] * 3
        net = library.network_open(str(Path(folder) / "net" / "weights.bin").encode(), None)
        x, y = (ctypes.c_float * 32)(), (ctypes.c_float * 32)()
        ends = [(ctypes.c_void_p * 1)(ctypes.addressof(end)) for end in (x, y)]
        times = []
        for _ in range(NETWORK_CALLS):
            began = time.perf_counter()
            library.network_run(net, *ends)
            times.append(time.perf_counter() - began)
        library.network_close(ctypes.c_void_p(net))
    return median(times)


def small_network() -> Any:
    """50 kernels, none of which runs together with another one."""
    from ansorlite.codegen.build import build_program
    from ansorlite.graph.build import GraphBuilder
    from ansorlite.graph.module import CompiledModule
    from ansorlite.graph.partition import partition, tasks
    from ansorlite.schedule.lower import lower
    from ansorlite.space.plain import plain_state
    from ansorlite.target import Target

    b, target = GraphBuilder("small"), Target.detect()
    x = b.input("x", (8, 4))
    for _ in range(KERNELS):
        rows = b.emit("reshape", [x], shape=(8, 4, 1))
        x = b.emit("reduce_max", [rows], axes=(2,), keepdims=False)
    parts = partition(b.finish([x]))
    images = [build_program(lower(plain_state(t.dag, target)), target) for t in tasks(parts)]
    return CompiledModule(parts, images)


def empty_kernel() -> tuple[Any, Any]:
    """A parallel kernel that stores one number a thread, and its arguments."""
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
    return kernel, kernel.pointer_array([aligned_empty((target.cores,), "float32")])


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
    text = f"ours {mine:.2f} us, C {c:.2f} us, ratio {row['ratio']:.2f} (claim: at most 1.2)"
    if "network_s" in row:
        text += f"; {KERNELS} kernels {row['network_s'] * 1e6:.1f} us"
    if "saved_s" in row:
        text += f", saved {row['saved_s'] * 1e6:.1f} us (claim: at most 20)"
    return text


def main() -> int:
    if len(sys.argv) > 1:
        own = {"ours": ours, "network": network, "saved": saved}.get(sys.argv[1])
        print(theirs(sys.argv[1]) if own is None else own())
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
            turn = [
                float(subprocess.check_output([sys.executable, __file__, who], text=True))
                for who in ("ours", library, "network", "saved")
            ]
            turns.append(turn)
    mine, c, whole, native = (median(t[k] for t in turns) for k in range(4))
    row = {"ours_s": mine, "c_s": c, "network_s": whole, "saved_s": native, "turns_s": turns}
    row["ratio"] = median(t[0] / t[1] for t in turns)
    experiment = Experiment[Row](
        RESULTS / "parallel_overhead.jsonl", key=lambda r: "ratio", line=table_line
    )
    experiment.add({**row, "date": time.strftime("%Y-%m-%d")})
    return 0


if __name__ == "__main__":
    sys.exit(main())
