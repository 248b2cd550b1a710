"""Which products of a network stay in float32, so that its outputs keep within an error.

In: an optimised `Graph`, inputs, the largest error allowed (of `accuracy`). Out: a `Choice`. Where
bfloat16 everywhere is too much, the error of each part of the network alone is measured; roundings
of different layers are independent, so squares add up. The parts with the most error for their
work fall back first, until the whole network, evaluated again, is within the error. A log keeps
the choice in a CHOSEN line, whose task is the network's digest.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path

import numpy as np

from ansorlite.calls import Array
from ansorlite.errors import UsageError
from ansorlite.graph.accuracy import compared
from ansorlite.graph.in_place import without_copies
from ansorlite.graph.inputs import random_inputs
from ansorlite.graph.ir import Graph, Node, check_inputs
from ansorlite.graph.lower import FORM_RTOL
from ansorlite.graph.ops.low_precision import BF16
from ansorlite.graph.partition import Begin, Partition, partition
from ansorlite.graph.passes import optimize
from ansorlite.graph.precision import lowered, products
from ansorlite.graph.rounding import Rounding
from ansorlite.records import Record, read_log
from ansorlite.records import choice as chosen_line

MAX_ERROR = 1e-2  # by default
MOST_PARTS = 24  # parts of a network whose errors are measured apart
PREFIX, SKETCH, KEPT = "precision:", "float32", "kept"  # of the CHOSEN line


@dataclass(frozen=True)
class Lowering:
    """How a network becomes kernels; the products `kept` stay in float32."""

    exact: bool = False
    precision: str = "float32"
    kept: frozenset[str] = frozenset()
    max_error: float | None = None
    rounding: Rounding = field(default_factory=Rounding, compare=False)

    def partition(
        self, graph: Graph, form_rtol: float = FORM_RTOL, begin: Begin | None = None
    ) -> Partition:
        """The kernels of an imported graph, in forms that err `form_rtol` at most.

        `begin` as in `graph.partition.partition`.
        """
        low = optimize(graph, self.exact, self.precision, self.kept, self.rounding)
        wide = self.precision == "auto"
        begun = {} if begin is None else {"begin": begin}
        return without_copies(partition(low, wide, form_rtol, **begun))


@dataclass(frozen=True)
class Choice:
    """`kept`: numbers of the products, of `precision.products`, that stay in float32.

    `error` is the largest error of an output; None where a log told the choice.
    """

    kept: tuple[int, ...]
    error: float | None = None
    seconds: float = 0.0

    def values(self, graph: Graph) -> frozenset[str]:
        """The results of the products that stay, in an optimised graph."""
        found = products(graph)
        return frozenset(found[k] for k in self.kept if 0 <= k < len(found))


def lowerings(
    graphs: Sequence[Graph],
    exact: bool = False,
    precision: str = "float32",
    max_error: float | None = None,
    inputs: Sequence[Array] | None = None,
    log: str | Path | None = None,
    target: str = "",
    together: bool = False,
) -> tuple[list[Lowering], list[Record]]:
    """How each network is lowered, and lines that a log is to keep.

    For precision "auto" the choice is the log's, if it has one, else that of `choose` on `inputs`
    or random ones. Networks that are `together`, sizes of one, keep what any of them keeps.
    """
    allowed = check_max_error(max_error, precision)
    if inputs is not None and (precision != "auto" or len(graphs) != 1):
        raise UsageError("error_inputs are for precision='auto' and one network of one size")
    if precision != "auto":
        one = Lowering(exact, precision)
        return [one if together else Lowering(exact, precision) for _ in graphs], []
    known = _choices(log)
    found, notes = [], []
    for graph in graphs:
        if inputs is not None:
            check_inputs(graph, inputs)
        wide = optimize(graph, exact)
        key = digest(wide, allowed)
        choice = noted(known, key)
        if choice is None:
            choice = choose(wide, allowed, inputs)
            notes.append(note(choice, key, graph.name, target))
        found.append(Lowering(exact, precision, choice.values(wide), allowed))
    if together:
        kept = frozenset[str]().union(*(way.kept for way in found))
        found = [replace(way, kept=kept, rounding=found[0].rounding) for way in found]
    return found, notes


def _choices(log: str | Path | None) -> tuple[Record, ...]:
    if log is None or not Path(log).expanduser().is_file():
        return ()
    return read_log(log).choices


def check_max_error(max_error: float | None, precision: str) -> float:
    """The error allowed, `MAX_ERROR` by default; UsageError for one that is none."""
    if max_error is None:
        return MAX_ERROR
    if isinstance(max_error, bool) or not isinstance(max_error, int | float):
        raise UsageError(f"max_error is {max_error!r}: give a number such as 1e-3")
    if precision != "auto":
        raise UsageError(f"max_error goes with precision='auto', not with {precision!r}")
    if not 0 < max_error < float("inf"):
        raise UsageError(f"max_error is {max_error!r}: give a number above 0, such as 1e-3")
    return float(max_error)


def choose(graph: Graph, max_error: float, inputs: Sequence[Array] | None = None) -> Choice:
    """The products of an optimised graph that stay in float32, on `inputs` or random ones.

    Raises ModelError for inputs that do not fit.
    """
    began = time.perf_counter()
    names = products(graph)
    network = _Network(graph, random_inputs(graph) if inputs is None else inputs)
    error = network.error(())
    kept: list[int] = []
    if error > max_error and names:
        parts = _parts(len(names))
        alone = [network.error(_but(names, part)) for part in parts]
        work = [sum(network.work(names[k]) for k in part) for part in parts]
        order = sorted(range(len(parts)), key=lambda p: -(alone[p] ** 2) / work[p])
        allowed = max_error
        while order and error > max_error:
            while order and sum(alone[p] ** 2 for p in order) > allowed**2:
                kept += parts[order.pop(0)]
            error = network.error([names[k] for k in kept])
            if error > max_error:  # the rest errs more together than it does apart
                if order:
                    kept += parts[order.pop(0)]
                allowed *= max_error / error
                error = network.error([names[k] for k in kept]) if not order else error
    return Choice(tuple(sorted(kept)), error, time.perf_counter() - began)


def _parts(count: int) -> list[range]:
    """`count` products in at most MOST_PARTS runs of neighbours."""
    n = min(count, MOST_PARTS)
    return [range(count * p // n, count * (p + 1) // n) for p in range(n)]


def _but(names: Sequence[str], part: Iterable[int]) -> list[str]:
    low = set(part)
    return [v for k, v in enumerate(names) if k not in low]


class _Network:
    """Values of a network in float32, and errors of lowered ones: what is the same is known."""

    def __init__(self, graph: Graph, inputs: Sequence[Array]) -> None:
        self.graph, self.rounding = graph, Rounding()
        self.inputs = check_inputs(graph, inputs)
        self.values: dict[str, Array] = {**graph.constants, **self.inputs}
        self.nodes = graph.producers
        for node in graph.nodes:
            self.values[node.output] = self._run(node, self.values)

    @staticmethod
    def _run(node: Node, values: dict[str, Array]) -> Array:
        with np.errstate(all="ignore"):
            return node.operator.meaning(node.attrs, tuple(values[v] for v in node.inputs))

    def work(self, value: str) -> float:
        node, types = self.nodes[value], self.graph.types
        operands = tuple(types[v] for v in node.inputs)
        return float(max(1, node.operator.work(node.attrs, operands, types[value])))

    def error(self, kept: Iterable[str]) -> float:
        """The largest error of an output with the products `kept` in float32."""
        low = lowered(self.graph, "auto", frozenset(kept), self.rounding)
        same = {v for v in low.constants if v in self.graph.constants} | {*self.inputs}
        values: dict[str, Array] = {**low.constants, **self.inputs}
        last = {v: k for k, n in enumerate(low.nodes) for v in n.inputs}
        for k, node in enumerate(low.nodes):
            known = self.nodes.get(node.output)
            if known is not None and _equal(known, node) and all(v in same for v in node.inputs):
                same.add(node.output)
                values[node.output] = self.values[node.output]
                continue
            values[node.output] = self._run(node, values)
            for v in dict.fromkeys(node.inputs):
                if last[v] == k and v not in low.outputs:
                    del values[v]
        pairs = zip(low.outputs, self.graph.outputs, strict=True)
        return max((_error(values[a], self.values[b], b) for a, b in pairs), default=0.0)


def _equal(a: Node, b: Node) -> bool:
    return (a.op, a.inputs) == (b.op, b.inputs)


def _error(got: Array, wanted: Array, name: str) -> float:
    return compared(name, got, wanted).largest


# ---- in a log -----------------------------------------------------------------------------------


def digest(graph: Graph, max_error: float) -> str:
    """The task of the CHOSEN line of a network: what it computes, and the error allowed."""
    state = blake2b(f"{graph.inputs} {graph.outputs} {max_error!r} {BF16.name}".encode())
    for node in graph.nodes:
        state.update(f"{node.op} {node.inputs} {node.outputs} {dict(node.attrs)}".encode())
    for name, array in graph.constants.items():
        state.update(name.encode())
        state.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    return f"{PREFIX}{state.hexdigest()[:32]}"


def _is_note(record: Record) -> bool:
    return record.task.startswith(PREFIX) and KEPT in record.holes


def noted(choices: Iterable[Record], key: str) -> Choice | None:
    """The last choice for a network that a log holds, if it has one."""
    for record in reversed([*choices]):
        if record.task == key and KEPT in record.holes:
            return Choice(tuple(record.holes[KEPT]))
    return None


def tuned_ways(graph: Graph, choices: Iterable[Record]) -> Iterator[Lowering]:
    """How a network may have been lowered: in each precision, "auto" as the log's lines tell."""
    kept = [Choice(tuple(c.holes[KEPT])) for c in choices if _is_note(c)]
    for exact in (False, True):
        yield Lowering(exact)
        yield Lowering(exact, "bf16")
        wide = optimize(graph, exact) if kept else graph
        for choice in kept:
            yield Lowering(exact, "auto", choice.values(wide))


def note(choice: Choice, key: str, name: str, target: str) -> Record:
    """The CHOSEN line of a choice; its latency is the time that it took."""
    line = Record(
        target=target,
        task=key,
        task_name=f"precision of {name}",
        sketch=SKETCH,
        steps=(),
        holes={KEPT: list(choice.kept)},
        status="OK",
    )
    return chosen_line(line, max(choice.seconds, 1e-9))
