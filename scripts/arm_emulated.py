"""Arm without an Arm machine: tuned by estimates, cross-compiled, run under qemu (ten minutes).

Claim: programs of the operator suite, networks (in bfloat16 too) and the hot loops chosen for six
Arm cores are right under emulation; a library for the Cortex-A53 has no instruction beyond ARMv8.0,
and products of bfloat16 and of bytes use the core's dot-product instruction. Only numbers count:
emulated times mean nothing, and none is written. Needs the checkout (the emulator's side is
tests/emulated.py) and Debian's qemu-user-static, gcc-aarch64-linux-gnu and libc6-dev-arm64-cross;
with `--userland` (made by arm_userland.sh) saved networks are also loaded by an emulated Python.
Writes results/arm.jsonl and the table arm.txt.
Usage: python scripts/arm_emulated.py [--only operators networks loops python] [--userland DIR]
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ansorlite as al
from ansorlite import te
from ansorlite.codegen.build import build_program, kernel_assembly
from ansorlite.codegen.hot_loop import hot_loop, look
from ansorlite.errors import MachineError
from ansorlite.graph.inputs import random_inputs
from ansorlite.graph.ir import Graph
from ansorlite.graph.ops.low_precision import KINDS, Kind
from ansorlite.manifest import LIBRARY
from ansorlite.measure.compare import relative_error
from ansorlite.measure.inputs import random_inputs as task_inputs
from ansorlite.pipeline import compile_plain
from ansorlite.presets import CORES
from ansorlite.schedule.holes import population_columns
from ansorlite.space.legality import legal
from ansorlite.space.sketch import sketches
from ansorlite.target import Target
from ansorlite.workloads.networks import mobilenet_v2, resnet
from ansorlite.workloads.ops import define
from ansorlite.workloads.transformers import bert
from bench.experiment import RESULTS, Experiment, Row, exit_status

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # for the emulator's side

PROGRAMS, TRIALS, LOOP_TRIALS, SIDE = 10, 60, 16, 512
PRODUCTS = {kind.name: kind for kind in KINDS}
OPERATOR_CPUS = ("cortex-a53", "cortex-a76", "neoverse-v2")
NETWORK_CPUS = ("cortex-a53", "cortex-a76")
BF16_CPU = "neoverse-v2"
LOOP_CPUS = tuple(CORES)
DOT_CPUS = {"bf16": ("neoverse-v2",), "u8s8": ("cortex-a76", "neoverse-n1", "neoverse-v2")}
NETWORKS: dict[str, tuple[str, Callable[[], Graph]]] = {
    "resnet18": ("64 x 64 pixels", lambda: resnet("resnet18", 1, 0, size=64)),
    "mobilenet_v2": ("64 x 64 pixels", lambda: mobilenet_v2("mobilenet_v2", 1, 0, size=64)),
    "bert_layer": (
        "1 layer, width 256, 32 tokens",
        lambda: bert("bert", 1, 0, size=32, layers=1, width=256, heads=4, vocabulary=99),
    ),
}
EMULATED = {"neoverse-v2": "max"}  # what qemu calls a CPU, where it has none of the name
LOAD = """
import sys
for name in ("llvmlite", "lightgbm", "networkx", "tqdm", "onnx"):
    sys.modules[name] = None
import numpy as np
import ansorlite as al
net = al.load_module(sys.argv[1])
np.save(sys.argv[3], net(np.load(sys.argv[2])))
"""


def operators(cpu: str, name: str) -> Row:
    """Random programs of one operator at a small size: how many, and the largest error."""
    from emulated import run_kernels
    from small_cases import SMALL

    target, rng = Target.named(cpu), np.random.default_rng(7)
    task = al.SearchTask([define(name, SMALL[name])], target, name)
    space, programs = sketches(task.dag, target), []
    for k in rng.integers(0, len(space), 4 * PROGRAMS):
        rows = space[k].sample(256, rng)
        mask = legal(space[k].program, population_columns(space[k].holes, rows), len(rows), target)
        programs += [space[k].fill(row) for row in rows[mask][:1]]
    programs = programs[:PROGRAMS]
    inputs = task_inputs(task.dag, 0)
    want = task.dag.evaluate(inputs)
    with tempfile.TemporaryDirectory() as folder:
        cases = [(build_program(p, target), inputs) for p in programs]
        found = run_kernels(cases, Path(folder), EMULATED.get(cpu, cpu), threads=3)
    errors = [relative_error(got[v], want[v]) for got in found for v in want]
    return {"programs": len(programs), "error": float(max(errors))}


def networks(cpu: str, name: str, userland: Path | None = None) -> Row:
    """A network tuned by estimates, saved and run: by a C program, or by an emulated Python."""
    from emulated import later_instructions, run_network, run_python

    graph, precision = NETWORKS[name][1](), "bf16" if cpu == BF16_CPU else "float32"
    module = al.auto_schedule(graph, TRIALS, target=cpu, precision=precision, progress=False)
    inputs = random_inputs(graph)
    want: Any = compile_plain(graph, precision=precision)(*inputs)
    with tempfile.TemporaryDirectory() as folder:
        saved = module.save(Path(folder) / "net")
        if userland is not None:
            np.save(Path(folder) / "x.npy", inputs[0])
            run_python(userland, LOAD, saved, f"{folder}/x.npy", f"{folder}/y.npy")
            got = np.load(Path(folder) / "y.npy")
        else:
            (got,) = run_network(saved, inputs, EMULATED.get(cpu, cpu))
        later = later_instructions(saved / LIBRARY, Path(folder)) if cpu == "cortex-a53" else None
    return {
        "size": NETWORKS[name][0] + (", bfloat16" if precision == "bf16" else ""),
        "programs": module.report.rows and sum(r.trials for r in module.report.rows),
        "kernels": len(module.images),
        "error": relative_error(got, want),
        "later": None if later is None else len(later),
    }


def product(kind: Kind) -> te.Tensor:
    """Data [512, 512] of a kind of numbers times packed weights."""
    a = te.placeholder((SIDE, SIDE), kind.stored, name="A")
    b = te.placeholder((SIDE // kind.depth, SIDE), "int32", name="B", constant=True)
    k = te.reduce_axis(SIDE // kind.depth, "k")
    return te.compute(
        (SIDE, SIDE),
        lambda i, j: te.sum(kind.dot(kind.words(a, (i,), k), b[k, j]), axis=k),
        "C",
    )


def loops(cpu: str, name: str) -> Row:
    """The hot loop of the program that estimates choose: of a workload, or of packed numbers."""
    from emulated import run_kernels

    kind, target = PRODUCTS.get(name), Target.named(cpu)
    task = al.SearchTask(product(kind), target, name) if kind else al.workload(name, target=target)
    result = al.tune(task, LOOP_TRIALS, progress=False)
    text = kernel_assembly(result.program, task.target)
    seen = look(text)
    kept = ("instructions", "fma", "by_element", "accumulators", "loads", "spills", "code_bytes")
    row = {"programs": result.trials, **{k: getattr(seen, k) for k in kept}}
    if kind is None:
        return row
    inputs = task_inputs(task.dag, 0)
    with tempfile.TemporaryDirectory() as folder:
        (got,) = run_kernels([(build_program(result.program, target), inputs)], Path(folder))
    dots = {w for line in hot_loop(text) for w in line.split()[:1] if "dot" in w}
    error = relative_error(got["C"], task.dag.evaluate(inputs)["C"])
    return {**row, "error": error, "dots": sorted(d.split(".")[0] for d in dots)}


def table_line(row: Row) -> str:
    head = f"{row['kind']:10} {row['name']:13} {row['cpu']:12} {row['programs']:5}  "
    if row["kind"] == "loops":
        return head + (
            f"{row['accumulators']} accumulators, {row['fma']} multiply-adds"
            f" ({row['by_element']} by element) in {row['instructions']} instructions,"
            f" {row['loads']} loads, {row['spills']} spills"
            + (f"; {', '.join(row['dots'])}" if row.get("dots") else "")
            + (f"; largest error {row['error']:.1e}" if "error" in row else "")
        )
    text = f"largest error {row['error']:.1e} of the largest value"
    if row.get("size"):
        text += f", {row['size']}, {row['kernels']} kernels"
    if row.get("later") is not None:
        text += f", {row['later']} instructions beyond ARMv8.0"
    return head + text


def closing(rows: Sequence[Row]) -> list[str]:
    wrong = sum(r.get("error", 0.0) > (1e-2 if _is_bfloat16(r) else 1e-4) for r in rows)
    return [
        f"{len(rows)} rows, {wrong} with an error above 1e-4 (bfloat16: above 1e-2);"
        f" {rows[-1]['date']}, emulated"
    ]


def _is_bfloat16(row: Row) -> bool:
    """A number stored as bfloat16 may be rounded to its neighbour."""
    return row["kind"] == "networks" and row["cpu"] == BF16_CPU


KINDS = ("operators", "networks", "python", "loops")
EXPERIMENT = Experiment[Row](
    RESULTS / "arm.jsonl",
    key=lambda r: (r["kind"], r["name"], r["cpu"]),
    line=table_line,
    head=f"{'what':10} {'of':13} {'for':12} built  what was found",
    foot=closing,
    order=lambda r: KINDS.index(r["kind"]),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--userland", type=Path, metavar="DIR", help="of arm_userland.sh")
    parser.add_argument("--table", action="store_true", help="draw the table of recorded rows")
    args = parser.parse_args()
    if args.table:
        EXPERIMENT.finish()
        return 0
    from emulated import missing
    from small_cases import SMALL

    if missing:
        raise MachineError(f"no {' and no '.join(missing)}: install Debian's packages, see above")
    wanted = [("operators", n, c) for c in OPERATOR_CPUS for n in SMALL]
    wanted += [("networks", n, c) for c in NETWORK_CPUS for n in NETWORKS]
    wanted += [("networks", n, BF16_CPU) for n in NETWORKS]
    wanted += [("python", n, "cortex-a76") for n in NETWORKS if args.userland]
    wanted += [("loops", n, c) for n in ("GMM:2", "C2D:2") for c in LOOP_CPUS]
    wanted += [("loops", n, c) for n in PRODUCTS for c in DOT_CPUS[n]]

    def once(key: tuple[str, str, str]) -> Row:
        kind, name, cpu = key
        if kind == "python":
            found = networks(cpu, name, args.userland)
        else:
            found = {"operators": operators, "networks": networks, "loops": loops}[kind](cpu, name)
        return {"kind": kind, "name": name, "cpu": cpu, "date": time.strftime("%Y-%m-%d"), **found}

    EXPERIMENT.run([key for key in wanted if key[0] in args.only], once)
    EXPERIMENT.finish()
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
