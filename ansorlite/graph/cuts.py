"""Further cuts of a network: kernels of several anchors in place of separate ones.

In: a `Partition`. Out: `Merge`s, each a chain of two or three of its kernels, of which every one is
read by the next alone, as one kernel, if the search space has a way to compute them together tile
by tile (`space.anchors`). `chosen` takes those that are faster as measured; `with_merges` is the
partition that they give.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ansorlite.errors import AnsorliteError
from ansorlite.graph.fuse import Group, fuse
from ansorlite.graph.ir import Node
from ansorlite.graph.lower import lower_together
from ansorlite.graph.partition import Partition, Step, Subgraph, has_views
from ansorlite.graph.types import TensorType, integer
from ansorlite.schedule.state import State
from ansorlite.space.anchors import anchors, can_fuse
from ansorlite.space.sketch import constants_evaluated
from ansorlite.target import Target

LONGEST = 3  # kernels of a chain
# A merge is worth a search where the bytes that it saves, at the speed of the level of memory that
# holds them, take this share of the separate kernels' time.
GAIN = 0.1
CACHE_SPEED = 1e11  # bytes per second, about, of a cache that holds what kernels hand on
HELD = 0.5  # share of the last cache that one value may take and still be there when it is read
# Merged kernels that took so many times as long alone may still be faster in their place: threads
# wait for each other less often, data stays in the caches, and the separate ones were measured at
# another time, when a neighbour may have been less busy.
NEAR = 1.25


@dataclass(frozen=True)
class Merge:
    """`subgraph` computes what the subgraphs named in `replaces` compute, in their order.

    Values of so many bytes `between` them are neither written nor read.
    """

    subgraph: Subgraph
    replaces: tuple[str, ...]
    between: tuple[int, ...]

    @property
    def saved_bytes(self) -> int:
        """Bytes that are neither written nor read."""
        return 2 * sum(self.between)

    def apart_s(self, seconds: Mapping[str, float]) -> float:
        """What the kernels that it replaces take together; 0 where one of them is not known.

        `seconds` are by the name of a subgraph.
        """
        times = [seconds.get(name, 0.0) for name in self.replaces]
        return sum(times) if all(times) else 0.0

    def is_hopeful(
        self, seconds: Mapping[str, float], target: Target, memory_speed: float | None
    ) -> bool:
        """Do the bytes that it saves take a share of its kernels' time that is worth a search?

        Values too large for the caches move at `memory_speed`, in bytes per second.
        """
        held = HELD * max(target.l3_bytes, target.l2_bytes * target.cores)
        slow = min(memory_speed or CACHE_SPEED, CACHE_SPEED)
        saved_s = sum(2 * n / (CACHE_SPEED if n <= held else slow) for n in self.between)
        return 0 < GAIN * self.apart_s(seconds) <= saved_s


def merges(
    parts: Partition, exact: bool = False, through: Callable[[Node], bool] | None = None
) -> tuple[Merge, ...]:
    """The chains of a partition that one kernel may compute, in running order.

    Chains are looked at that have an operator to go `through`; by default all are.
    """
    graph = parts.graph
    if any(n.operator.kind == "loop" for n in graph.nodes):
        return ()
    groups = fuse(graph)
    known = {s.nodes: s for s in parts.subgraphs}
    own = {g.output: g for g in groups}
    after: dict[str, Group] = {}  # by the result of a group: its only reader
    for g in groups:
        readers = [n for n in graph.nodes if g.output in n.inputs]
        into = [h for h in groups if h is not g and any(n in h.nodes for n in readers)]
        inside = len(into) == 1 and all(n in into[0].nodes for n in readers)
        if inside and g.output not in graph.outputs:
            after[g.output] = into[0]
    found = []
    for g in own.values():
        chain = [g]
        while len(chain) < LONGEST and chain[-1].output in after:
            chain.append(after[chain[-1].output])
            if through and not any(through(n) for group in chain for n in group.nodes):
                continue
            made = _merge(parts, chain, known, exact)
            if made is not None:
                found.append(made)
    return tuple(found)


def _merge(
    parts: Partition,
    chain: Sequence[Group],
    known: Mapping[tuple[str, ...], Subgraph],
    exact: bool,
) -> Merge | None:
    """The chain as one kernel; None where there is no way to fuse its anchors."""
    graph = parts.graph
    names = [tuple(n.name for n in g.nodes) for g in chain]
    if any(g.anchor is None for g in chain) or not all(n in known for n in names):
        return None
    between = [graph.types[g.output] for g in chain[:-1]]
    if any(t.dtype != "float32" for t in between):
        return None
    try:
        lowered = lower_together(graph, chain, exact)
    except AnsorliteError:  # too large an expression
        return None
    if lowered is None:
        return None
    state = constants_evaluated(State(lowered.dag))
    if len(anchors(state)) < 2 or not can_fuse(state):
        return None
    sizes = tuple(map(_size_bytes, between))
    again = {v for v in lowered.inputs if v in graph.constants}
    if 2 * sum(sizes) < sum(_size_bytes(graph.types[v]) for v in again):
        return None  # tiles of rows read the constants again and again
    old = [known[n] for n in names]
    merged = replace(
        old[-1],
        name=f"{old[0].name}_to_{old[-1].name}",
        dag=lowered.dag,
        inputs=lowered.inputs,
        nodes=tuple(n for own in names for n in own),
        others=(),
    )
    if not has_views(merged, parts.place):
        return None
    return Merge(merged, tuple(s.name for s in old), sizes)


def is_softmax(node: Node) -> bool:
    """Is the operator one, as in attention?"""
    return node.op == "softmax"


def is_often_merged(node: Node) -> bool:
    """Do all chains that programs are shipped of have such an operator?"""
    return is_softmax(node) or (node.op == "conv" and integer(node.attrs, "groups") > 1)


def kernel_seconds(parts: Partition, known: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each kernel by name, as far as those of its task are `known` by workload key."""
    return {s.name: known[k] for s in parts.subgraphs if (k := s.dag.workload_key) in known}


def _size_bytes(t: TensorType) -> int:
    return t.size * np.dtype(t.dtype).itemsize


def with_merges(parts: Partition, taken: Sequence[Merge]) -> Partition:
    """The partition with merged kernels, each in the place of the last kernel that it replaces.

    Merges that replace the same kernel must not be taken together.
    """
    last = {m.replaces[-1]: m.subgraph for m in taken}
    gone = {name for m in taken for name in m.replaces}
    steps: list[Step] = []
    for s in parts.steps:
        if not isinstance(s, Subgraph) or s.name not in gone:
            steps.append(s)
        elif s.name in last:
            steps.append(last[s.name])
    made = replace(parts, steps=tuple(steps))
    made.verify()
    return made


def chosen(
    parts: Partition, found: Sequence[Merge], latency_s: Mapping[str, float], near: float = 1.0
) -> tuple[Merge, ...]:
    """The merges of the fastest cut, by seconds of each kernel by the name of its subgraph.

    Merged kernels count as `near` times as fast. Merges without a latency, or with parts without
    one, are not taken. Kernels that are read by one other alone form trees, on which chains
    overlap: `best[k]` is what the fastest cut of the tree below kernel k gains, in seconds, and its
    merges.
    """
    below: dict[str, set[str]] = {}
    ends: dict[str, list[tuple[float, Merge]]] = {}
    for m in found:
        for a, b in pairwise(m.replaces):
            below.setdefault(b, set()).add(a)
        if all(name in latency_s for name in (m.subgraph.name, *m.replaces)):
            alone_s = sum(latency_s[name] for name in m.replaces)
            gain = alone_s - latency_s[m.subgraph.name] / near
            ends.setdefault(m.replaces[-1], []).append((gain, m))
    best: dict[str, tuple[float, tuple[Merge, ...]]] = {}
    for name in (s.name for s in parts.subgraphs):
        options = [_joined(best, below.get(name, ()))]
        for gain, m in ends.get(name, ()):
            left = {c for x in m.replaces for c in below.get(x, ())} - set(m.replaces)
            rest, others = _joined(best, left)
            options.append((gain + rest, (*others, m)))
        best[name] = max(options, key=lambda o: o[0])
    inner = {c for own in below.values() for c in own}
    return _joined(best, [name for name in best if name not in inner])[1]


def _joined(
    best: Mapping[str, tuple[float, tuple[Merge, ...]]], names: Iterable[str]
) -> tuple[float, tuple[Merge, ...]]:
    """The gains and merges of several trees together."""
    own = [best[n] for n in sorted(names)]
    return sum(g for g, _ in own), tuple(m for _, ms in own for m in ms)
