"""What each kernel of a network computes in, the bytes that it moves, and the network's error.

In: a `Partition` and which form of each task runs. Out: an `Arithmetic` with a row a kernel, and,
where numpy has compared the outputs, an `Accuracy` each. Bytes count each operand and result once.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ansorlite.graph.accuracy import Accuracy
from ansorlite.graph.partition import Partition, tasks
from ansorlite.graph.types import TensorType
from ansorlite.ir.expr import Op
from ansorlite.ir.packed import PACKED
from ansorlite.ir.traverse import walk
from ansorlite.tables import aligned, shortened
from ansorlite.te.dag import ComputeDAG
from ansorlite.units import format_bytes

BY_DOT = {"dot_bf16": "bf16", "dot_u8s8": "int8"}
BF16_DTYPE = "uint16"  # its bits


@dataclass(frozen=True)
class KernelArithmetic:
    """A kernel: "bf16", "int8" or the dtype in which it sums; operands' dtypes; bytes of a run.

    `like` is how many kernels of the network are the same computation, with bytes of all.
    """

    name: str
    computes_in: str
    reads: str
    writes: str
    moved: int
    like: int = 1


@dataclass(frozen=True)
class Arithmetic:
    """A row a distinct kernel, in running order, and errors against float32 (empty: not known)."""

    precision: str
    kernels: tuple[KernelArithmetic, ...]
    errors: tuple[Accuracy, ...] = ()
    max_error: float | None = None

    @property
    def moved(self) -> int:
        """Bytes of all kernels of a run."""
        return sum(k.moved for k in self.kernels)

    def with_errors(self, errors: Sequence[Accuracy]) -> "Arithmetic":
        return replace(self, errors=tuple(errors))

    def __str__(self) -> str:
        head = ["Kernel", "Times", "Computes in", "Reads", "Writes", "Bytes"]
        rows = [
            [
                shortened(k.name),
                str(k.like),
                k.computes_in,
                k.reads,
                k.writes,
                format_bytes(k.moved),
            ]
            for k in self.kernels
        ]
        counts = Counter[str]()
        for k in self.kernels:
            counts[k.computes_in] += k.like
        each = ", ".join(f"{n} {kind}" for kind, n in counts.most_common())
        total = ["total", str(sum(counts.values())), each, "", "", format_bytes(self.moved)]
        within = "" if self.max_error is None else f", error at most {self.max_error:g}"
        lines = [f"precision {self.precision}{within}"]
        lines += [f"against float32, {error}" for error in self.errors]
        table = aligned(head, rows, total, ("Kernel", "Computes in", "Reads", "Writes"))
        return "\n".join([table, *lines])


def computes_in(dag: ComputeDAG) -> str:
    """What the products of a kernel are computed in; where it has none, its widest float."""
    seen = {e.name for op in dag.computes for e in walk(op.body) if isinstance(e, Op)}
    for name, kind in BY_DOT.items():
        if name in seen:
            return kind
    dtypes = {str(op.dtype) for op in dag.computes} | {str(op.dtype) for op in dag.inputs}
    floats = [d for d in ("float64", "float32", "float16") if d in dtypes]
    widened = any(PACKED[n].dtype == "float32" for n in seen if n in PACKED)
    return floats[0] if floats else "float32" if widened else str(dag.outputs[0].dtype)


def arithmetic(
    parts: Partition, dags: Sequence[ComputeDAG], precision: str, max_error: float | None = None
) -> Arithmetic:
    """The arithmetic of a network whose task k computes `dags[k]`, one of its forms."""
    rows = []
    for task, dag in zip(tasks(parts), dags, strict=True):
        first = parts.subgraphs[task.subgraphs[0]]
        types = parts.graph.types
        moved = sum(_moved(parts, k, types) for k in task.subgraphs)
        rows.append(
            KernelArithmetic(
                first.name,
                computes_in(dag),
                _dtypes(types[v] for v in first.inputs if v not in parts.graph.constants),
                _dtypes(types[v] for v in first.outputs),
                moved,
                len(task.subgraphs),
            )
        )
    return Arithmetic(precision, tuple(rows), (), max_error)


def _moved(parts: Partition, k: int, types: Mapping[str, TensorType]) -> int:
    s = parts.subgraphs[k]
    each = (types[v].size * np.dtype(types[v].dtype).itemsize for v in (*s.inputs, *s.outputs))
    return sum(each) * s.times


def _dtypes(types: Any) -> str:
    found = dict.fromkeys("bf16" if t.dtype == BF16_DTYPE else t.dtype for t in types)
    return ", ".join(found) or "-"
