"""The computation of a task: operations in topological order, and their graph.

In: output tensors. Out: `ComputeDAG` with unique operation names, a FLOP count, a workload key that
depends on the structure but not on names, and an evaluation in numpy. A ComputeDAG is immutable;
schedules refer to it and never change it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy.typing as npt

from ansorlite.errors import ModelError
from ansorlite.ir.expr import Var
from ansorlite.ir.traverse import loads, rename_loads, substitute
from ansorlite.te.evaluate import check_inputs, evaluate_op
from ansorlite.te.tensor import Axis, ComputeOp, Operation, Placeholder, Tensor
from ansorlite.te.work import dot_of, least_flop, op_flop


class ComputeDAG:
    """The operations of one task: `ops` in topological order, `output_names` of the outputs.

    Example: `dag = ComputeDAG([C]); dag.evaluate({"A": a, "B": b})["C"]`. `str(dag)` prints one
    operation a line. Raises ModelError if there is no output, if an output is listed twice, or if
    an output is a placeholder.
    """

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        if not outputs:
            raise ModelError("a ComputeDAG needs at least one output tensor")
        order = _topological(outputs)
        names = _unique_names(order)
        self.ops: tuple[Operation, ...] = tuple(_renamed(t, names) for t in order)
        self.output_names = tuple(names[id(t)] for t in outputs)
        if len(set(self.output_names)) != len(self.output_names):
            raise ModelError(f"an output is listed twice: {', '.join(self.output_names)}")
        for t in outputs:
            if isinstance(t.op, Placeholder):
                raise ModelError(f"output {t.name} is a placeholder: an output must be computed")

    @classmethod
    def from_ops(cls, ops: Sequence[Operation], output_names: Sequence[str]) -> "ComputeDAG":
        """A DAG of operations whose loads already refer to operations by name."""
        dag = cls.__new__(cls)
        dag.ops, dag.output_names = tuple(ops), tuple(output_names)
        return dag

    @cached_property
    def by_name(self) -> dict[str, Operation]:
        """Operation by name."""
        return {op.name: op for op in self.ops}

    @property
    def inputs(self) -> tuple[Placeholder, ...]:
        """The placeholders, in topological order."""
        return tuple(op for op in self.ops if isinstance(op, Placeholder))

    @property
    def outputs(self) -> tuple[ComputeOp, ...]:
        """The operations that compute the outputs, in the order of `output_names`."""
        ops = [self.by_name[n] for n in self.output_names]
        return tuple(op for op in ops if isinstance(op, ComputeOp))

    @property
    def computes(self) -> tuple[ComputeOp, ...]:
        """The operations that are not placeholders, in topological order."""
        return tuple(op for op in self.ops if isinstance(op, ComputeOp))

    @cached_property
    def reads(self) -> dict[str, frozenset[str]]:
        """By name of an operation: the operations whose results it loads."""
        own = {op.name: frozenset(load.tensor for load in loads(op.body)) for op in self.computes}
        return {op.name: own.get(op.name, frozenset()) for op in self.ops}

    def above(self, name: str) -> set[str]:
        """The operation and all that it depends on, by name."""
        found, open_ = {name}, [name]
        while open_:
            new = self.reads[open_.pop()] - found
            found |= new
            open_ += new
        return found

    @cached_property
    def flop(self) -> float:
        """Floating-point operations of one run as written (see `te.work.op_flop`)."""
        return float(sum(map(op_flop, self.computes)))

    @cached_property
    def run_flop(self) -> float:
        """Floating-point operations that every program must execute (see `te.work.least_flop`).

        Intermediate tensors that depend only on constants, such as transformed weights, do not
        count: such tensors are computed once, when the kernel is bound to its constants.
        """
        return sum(self.run_flop_by_dot.values())

    @cached_property
    def run_flop_by_dot(self) -> dict[str, float]:
        """`run_flop` by the packed product that is summed ("dot_bf16"), "" for all other work."""
        known = {p.name for p in self.inputs if p.constant}
        for op in self.computes:
            sources = {load.tensor for load in loads(op.body)}
            if sources and sources <= known and op.name not in self.output_names:
                known.add(op.name)
        run = [op for op in self.computes if op.name not in known]
        found = {"": 0.0}
        for op in run:
            name = dot_of(op)
            found[name] = found.get(name, 0.0) + least_flop(op, self.by_name)
        return found

    @cached_property
    def workload_key(self) -> str:
        """Hash (20 hexadecimal digits) of `canonical_text`; does not depend on names."""
        return hashlib.sha256(self.canonical_text.encode()).hexdigest()[:20]

    @cached_property
    def canonical_text(self) -> str:
        """The DAG printed with tensors named T0, T1, ... and axes named a0, a1, ..."""
        rename = {op.name: f"T{k}" for k, op in enumerate(self.ops)}
        lines = [f"{_canonical(op, rename)} {op.dtype}" for op in self.ops]
        return "\n".join([*lines, "out " + " ".join(rename[n] for n in self.output_names)])

    def evaluate(self, inputs: Mapping[str, npt.ArrayLike]) -> dict[str, npt.NDArray[Any]]:
        """Outputs by name for input arrays by placeholder name.

        The reference result: evaluated in numpy with float64 accumulators, slow. Raises ModelError
        if an input is missing or has the wrong shape or dtype.
        """
        values = check_inputs(self.inputs, inputs)
        for op in self.computes:
            values[op.name] = evaluate_op(op, values)
        return {n: values[n] for n in self.output_names}

    @cached_property
    def _text(self) -> str:
        return "\n".join(map(str, self.ops)) + f"\nreturn {', '.join(self.output_names)}\n"

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        inputs = ", ".join(op.name for op in self.inputs)
        return f"<ComputeDAG ({inputs}) -> {', '.join(self.output_names)}>"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ComputeDAG) and self._text == other._text)

    def __hash__(self) -> int:
        return hash(self._text)


def _topological(outputs: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that the outputs depend on, producers before readers (depth-first search)."""
    order: list[Tensor] = []
    seen: set[int] = set()
    stack = [(t, False) for t in reversed(outputs)]
    while stack:
        t, done = stack.pop()
        if done:
            order.append(t)
        elif id(t) not in seen:
            seen.add(id(t))
            stack.append((t, True))
            stack.extend((s, False) for s in reversed(t.inputs))
    return order


def _unique_names(order: Sequence[Tensor]) -> dict[int, str]:
    """A unique name by id of a tensor: a repeated name gets the suffix _1, _2, ..."""
    names: dict[int, str] = {}
    taken: set[str] = set()
    following: dict[str, int] = {}  # next suffix to try, by name
    for t in order:
        name, k = t.name, following.get(t.name, 1)
        while name in taken:
            name, k = f"{t.name}_{k}", k + 1
        names[id(t)], following[t.name] = name, k
        taken.add(name)
    return names


def _renamed(t: Tensor, names: dict[int, str]) -> Operation:
    """The operation of `t` with its unique name; loads `#d` become loads of named tensors."""
    op = replace(t.op, name=names[id(t)])
    if isinstance(op, Placeholder):
        return op
    sources = {f"#{d}": names[id(s)] for d, s in enumerate(t.inputs)}
    return replace(op, body=rename_loads(op.body, sources))


def _canonical(op: Operation, rename: Mapping[str, str]) -> Operation:
    """The operation with canonical names of tensors and axes."""
    if isinstance(op, Placeholder):
        return Placeholder(rename[op.name], op.extents, op.dtype, op.constant)
    axes = {a.name: f"a{k}" for k, a in enumerate(op.axes + op.reduce_axes)}
    body = substitute(op.body, {old: Var(new, "axis") for old, new in axes.items()})
    return ComputeOp(
        rename[op.name],
        tuple(Axis(axes[a.name], a.extent) for a in op.axes),
        tuple(Axis(axes[a.name], a.extent) for a in op.reduce_axes),
        op.combiner,
        rename_loads(body, rename),
        tuple((k, _canonical_attr(v, axes)) for k, v in op.attrs),
    )


def _canonical_attr(value: Any, axes: Mapping[str, str]) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(axes.get(v, v) for v in value)
    return value
