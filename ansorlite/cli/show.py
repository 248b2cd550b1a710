"""The commands `ansorlite show` and `ansorlite devices`: what is looked at, not searched.

In: parsed arguments. Out: the exit status; text on standard output.
"""

import argparse
import sys
from pathlib import Path

import ansorlite
from ansorlite.cli.inputs import case, one_network, sized_network
from ansorlite.cli.options import Command, count, size_options, what_option
from ansorlite.errors import UsageError
from ansorlite.streams import put, tell

STAGES = ("dag", "sketches", "program", "features", "llvm", "asm")
NETWORK_STAGES = ("passes", "partition", "svg")
ROWS = ("random", "plain", "best")


def show_options(p: argparse.ArgumentParser) -> None:
    what_option(p, "CASE|NETWORK|FILE.onnx", "a case of the operator suite, or a network")
    size_options(p)
    p.add_argument(
        "--stage",
        choices=(*STAGES, *NETWORK_STAGES),
        default="program",
        help=f"of a case (default program), or of a network: {', '.join(NETWORK_STAGES)}",
    )
    p.add_argument("--log", type=Path, metavar="F", help="tuning log whose best program is shown")
    p.add_argument("--row", choices=ROWS, help="best where a log is given, otherwise random")
    p.add_argument("--seed", type=count, metavar="K", default=0, help="of the random row")
    p.add_argument(
        "--roofline", action="store_true", help="the limits of the case and of the program instead"
    )


def devices_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--calibrate",
        action="store_true",
        help="measure caches and register tiles now (some ten seconds) and keep the figures",
    )


def show(args: argparse.Namespace) -> int:
    """Print one stage of one candidate of a case, or its roofline; or a stage of a network."""
    if args.stage in NETWORK_STAGES:
        from ansorlite.graph.ir import Graph
        from ansorlite.report.networks import network_stage

        found = sized_network(args, args.case)
        if isinstance(found, Graph) or args.stage == "svg":
            put(network_stage(one_network(args, args.case), args.stage), end="")
            return 0
        for label, graph in zip(found.labels, found.graphs, strict=True):
            put(f"# size {label}\n{network_stage(graph, args.stage)}", end="")
        return 0
    from ansorlite.report.show import roofline, stage

    if args.dim or args.shape:
        given = "--dim" if args.dim else "--shape"
        raise UsageError(f"{given} is for networks ({', '.join(NETWORK_STAGES)}): leave it out")
    task = case(args.case, args.batch)
    row = args.row or ("best" if args.log else "random")
    if args.roofline:
        text, problems = roofline(task, row, args.log, args.seed)
    else:
        text, problems = stage(task, args.stage, row, args.log, args.seed)
    for problem in problems:
        tell(f"log: {problem}")
    put(text, end="")
    return 0


def devices(args: argparse.Namespace) -> int:
    """What kernels are made for: the machine, its limits, and the libraries that make them."""
    from ansorlite.codegen.openmp import max_threads
    from ansorlite.ir.packed import PACKED
    from ansorlite.measure.calibrate import calibrate, calibration
    from ansorlite.measure.limits import dot_limit
    from ansorlite.measure.peak import measure_peak
    from ansorlite.report.limits import calibration_text
    from ansorlite.target import Target

    target, peak = Target.detect(), measure_peak(Target.detect())
    known = calibrate(target) if args.calibrate else calibration(target)
    kib = 1024
    lines = [
        ("cpu", f"{target.cpu} ({target.triple})"),
        ("cores", str(target.cores)),
        ("vectors", f"{target.vector_registers} of {target.vector_bytes} B"),
        ("l1, l2", f"{target.l1_bytes // kib} KiB, {target.l2_bytes // kib} KiB a core"),
        ("l3", f"{target.l3_bytes // kib} KiB shared" if target.l3_bytes else "none"),
        ("threads", str(max_threads())),
        (
            "multiply-add",
            f"{peak.flops_all / 1e9:.1f} GFLOP/s, one core {peak.flops_one / 1e9:.1f}",
        ),
        *(
            (limit[0], f"{speed / 1e9:.1f} {unit}, one core {peak.dots_one[op] / 1e9:.1f}")
            for op, speed in peak.dots_all.items()
            for unit in ["GFLOP/s" if PACKED[op].dtype == "float32" else "Gop/s"]
            if (limit := dot_limit(op, target, peak))
        ),
        ("copy", f"{peak.copy_bytes_per_s / 1e9:.1f} GB/s"),
        ("fingerprint", target.fingerprint),
        *_versions(),
    ]
    for name, value in lines:
        put(f"{name:<13} {value}")
    put(
        f"{'calibration':<13} {'none: run devices --calibrate once' if known is None else ''}",
        end="",
    )
    put("" if known is None else calibration_text(known))
    return 0


def _versions() -> list[tuple[str, str]]:
    from importlib.metadata import PackageNotFoundError, version

    import llvmlite.binding as llvm

    found = [("ansorlite", ansorlite.__version__), ("python", sys.version.split()[0])]
    for name in ("numpy", "llvmlite", "lightgbm", "networkx", "onnx"):
        try:
            number = version(name)
        except PackageNotFoundError:
            number = "not installed"
        if name == "llvmlite":
            number += f" (LLVM {'.'.join(map(str, llvm.llvm_version_info))})"
        found.append((name, number))
    return found


COMMANDS = (
    Command(
        "show",
        show,
        show_options,
        "print a stage between operator and machine code",
        (
            ("ansorlite show C2D:2 --stage sketches", "the search space of a convolution"),
            ("ansorlite show C2D:2 --log c2d.log --stage asm", "the best program of a log"),
            ("ansorlite show resnet18 --stage svg > resnet18.svg", "a picture of the kernels"),
            ("ansorlite show m.onnx --shape x=1,3,48,192 --stage passes", "of an input's shape"),
        ),
    ),
    Command(
        "devices",
        devices,
        devices_options,
        "print the machine and its limits",
        (("ansorlite devices --calibrate", "measure caches and register tiles once"),),
    ),
)
