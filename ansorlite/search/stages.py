"""The stages of one candidate as text, under the names of the flow: what `ansorlite show` prints.

In: a `SearchTask`, its sketches, a concrete `Program`. Out: text that ends in a newline. The same
functions serve the command line, ANSORLITE_DEBUG and ANSORLITE_DUMP, so that a stage looks the same
wherever it is printed. Latencies in seconds.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from ansorlite.codegen.build import kernel_assembly, llvm_ir
from ansorlite.cost.features import FeaturePlan
from ansorlite.cost.names import FEATURE_NAMES
from ansorlite.errors import UsageError
from ansorlite.ir.program import Program
from ansorlite.names import shown
from ansorlite.space.sketch import Sketch
from ansorlite.target import Target
from ansorlite.task import SearchTask
from ansorlite.units import format_gflops, format_latency, rate

PROGRAM_STAGES = ("program", "features", "llvm", "asm")


def sketches_text(sketches: Sequence[Sketch]) -> str:
    """Every sketch with its holes and its program."""
    return "\n".join(map(str, sketches))


def program_stage(stage: str, program: Program, target: Target) -> str:
    """A concrete program in one of the forms of `PROGRAM_STAGES`.

    Raises BuildError where the program has no native form.
    """
    match stage:
        case "program":
            return str(program)
        case "features":
            return features_table(program, target)
        case "llvm":
            return llvm_ir(program, target)
        case "asm":
            return kernel_assembly(program, target)
    known = ", ".join(PROGRAM_STAGES)
    raise UsageError(f"{stage!r} is no stage of a program: choose one of {known}")


def features_table(program: Program, target: Target) -> str:
    """A line a feature, a column a statement; magnitudes are log2(1 + x) (see `cost.features`)."""
    plan = FeaturePlan(program)
    values = plan({}, 1, target)[0]
    heads = [f"{k}: {st.store.stage}" for k, st in enumerate(plan.statements)]
    wide = max(map(len, FEATURE_NAMES))
    widths = [max(len(h), 10) for h in heads]
    lines = [
        " ".join(["feature".ljust(wide), *(h.rjust(w) for h, w in zip(heads, widths, strict=True))])
    ]
    for c, name in enumerate(FEATURE_NAMES):
        cells = [f"{values[k, c]:.3f}".rjust(w) for k, w in enumerate(widths)]
        lines.append(" ".join([name.ljust(wide), *cells]))
    return "\n".join(lines) + "\n"


def values_text(values: Mapping[str, Sequence[int]]) -> str:
    """`C.i=2,4 C.unroll=16`."""
    return " ".join(f"{name}={','.join(map(str, vs))}" for name, vs in values.items())


def trial_line(
    task: SearchTask,
    trial: int,
    status: str,
    latency_s: float | None,
    sketch: str,
    values: Mapping[str, Sequence[int]],
    score: float | None = None,
) -> str:
    """One measured candidate on one line."""
    speed = rate(task.flop, latency_s)
    parts = [
        f"{task.name} trial {trial}: {status}",
        "" if latency_s is None else format_latency(latency_s),
        "" if speed is None else f"{format_gflops(speed)} GFLOP/s",
        "" if score is None or not np.isfinite(score) else f"predicted {score:.4g}",
        f"sketch {sketch}",
        values_text(values),
    ]
    return shown(", ".join(p for p in parts if p))
