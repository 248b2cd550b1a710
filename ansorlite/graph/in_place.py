"""Concatenations and slices without a copy: kernels write and read parts of larger values.

In: a `Partition`. Out: one in which the operands of a concatenation are parts of its result, which
their kernels write there, and slices are parts of what they are taken from. A value moves where its
kernels have views of its rows, see `places`. An operand that cannot move (an input of the network,
a value that lies elsewhere already) is copied into its part alone. Outputs of the network and
indices that are checked stay where they are.
"""

import math
from dataclasses import replace

from ansorlite.graph.ir import Node
from ansorlite.graph.partition import (
    Buffer,
    Partition,
    Step,
    Subgraph,
    View,
    copied,
    has_views,
    unused,
)
from ansorlite.graph.places import Place
from ansorlite.graph.types import integer, ints

LEAST_SHARE = 0.5  # of a concatenation, that must be written in place


def without_copies(parts: Partition) -> Partition:
    """The partition with concatenations and slices in place, wherever that is possible."""
    placing = _Placing(parts)
    nodes = {n.output: n for n in parts.graph.nodes}
    for s in parts.subgraphs:
        node = nodes.get(s.outputs[0])
        if node is None or len(s.nodes) != 1 or s.loop:
            continue
        if node.op == "slice":
            placing.slice(s, node)
        elif node.op == "concat":
            placing.concat(s, node)
    return placing.partition() if placing.gone else parts


class _Placing:
    """The parts found so far: `views` by result, in the place of kernels that are `gone`."""

    def __init__(self, parts: Partition) -> None:
        self.parts, self.graph = parts, parts.graph
        self.types = dict(parts.graph.types)
        self.views = {s.result: s for s in parts.steps if isinstance(s, View)}
        self.writer = {v: s for s in parts.subgraphs for v in s.outputs}
        self.gone: dict[str, list[Step]] = {}  # what is in the place of a kernel
        self.joined: list[tuple[str, list[View]]] = []  # concatenations with their parts, in order
        self.fixed = {*parts.graph.outputs, *(c.value for c in parts.checks)}
        self.touching: dict[str, list[Subgraph]] = {}
        for s in parts.subgraphs:
            for v in dict.fromkeys(
                (*s.inputs, *s.outputs, *(v for f in s.others for v in f.inputs))
            ):
                self.touching.setdefault(v, []).append(s)

    def slice(self, s: Subgraph, node: Node) -> None:
        """Make the result of a kernel that only slices a part of its operand."""
        (source,) = node.inputs
        starts, sizes, steps = (ints(node.attrs, k) for k in ("starts", "sizes", "steps"))
        shape = self.types[source].shape
        cut = [d for d, n in enumerate(sizes) if n != shape[d]]
        if len(cut) != 1 or (steps[cut[0]] != 1 and sizes[cut[0]] > 1):
            return
        if source in self.graph.constants or node.output in self.fixed:
            return
        view = _part(source, node.output, shape, cut[0], starts[cut[0]])
        if self._fits([view], without=s):
            self.views[node.output] = view
            self.gone[s.name] = [view]

    def concat(self, s: Subgraph, node: Node) -> None:
        """Make the operands of a concatenation parts of its result."""
        axis, at = integer(node.attrs, "axis"), 0
        views, copies, moved = list[View](), list[Subgraph](), 0
        for k, v in enumerate(node.inputs):
            shape = self.types[v].shape
            root = self._root(v)
            view = _part(node.output, root, self.types[node.output].shape, axis, at)
            at += shape[axis]
            if self._may_move(root, views) and self._fits([*views, view], without=s):
                moved += self.types[v].size
            else:
                own = unused(f"{v}.part{k}", self.types)
                self.types[own] = self.types[v]
                view = replace(view, result=own)
                dag = copied(shape, self.types[v].dtype)
                copies.append(Subgraph(f"copy_{own}", dag, (v,), (own,), ()))
                if not self._fits([*views, view], copies[-1], without=s):
                    moved = 0
                    break
            views.append(view)
        if moved < LEAST_SHARE * self.types[node.output].size:  # it stays a kernel
            for c in copies:
                del self.types[c.outputs[0]]
            return
        self.views |= {v.result: v for v in views}
        self.joined.append((node.output, views))
        self.gone[s.name] = list(copies)
        for c in copies:
            self.writer[c.outputs[0]] = c
            for v in (*c.inputs, *c.outputs):
                self.touching.setdefault(v, []).append(c)

    def _root(self, v: str) -> str:
        """The value of which `v` is another shape."""
        while (view := self.views.get(v)) is not None and view.place == Place(view.source):
            if self.types[view.source].size != self.types[v].size:
                break
            v = view.source
        return v

    def _may_move(self, v: str, taken: list[View]) -> bool:
        """Is `v` written by a kernel, or by the kernels of its parts, and in no place yet?"""
        written = v in self.writer and not self.writer[v].loop
        return written and v not in self.views and v not in self.fixed and v not in _results(taken)

    def _fits(self, added: list[View], *copies: Subgraph, without: Subgraph) -> bool:
        """Do all kernels but one have views of their operands in place, with these views?"""
        views = self.views | {v.result: v for v in added}
        places: dict[str, Place | None] = {}

        def place(v: str) -> Place | None:
            if v not in places:
                view = views.get(v)
                at: Place | None = Place(v)
                if view is not None:
                    outer = place(view.source)
                    sizes = self.types[view.source].size, self.types[v].size
                    at = None if outer is None else outer.part(view.place, *sizes)
                places[v] = at
            return places[v]

        moved = {v.result for v in added}
        pending = list(moved)
        while pending:  # all that lies in what moves
            now = pending.pop()
            inner = {w.result for w in views.values() if w.source == now} - moved
            pending += inner
            moved |= inner
        calls = {id(s): s for s in copies}
        calls |= {id(s): s for v in moved for s in self.touching.get(v, [])}
        return not moved & self.fixed and all(
            s is without or s.name in self.gone or (not s.loop and has_views(s, place))
            for s in calls.values()
        )

    def partition(self) -> Partition:
        """The partition with all that was found."""
        steps: list[Step] = []
        for whole, views in reversed(self.joined):  # what has parts itself comes first
            if whole not in self.views:
                steps.append(Buffer(whole))
            steps += views
        for s in self.parts.steps:
            found = self.gone.get(s.name) if isinstance(s, Subgraph) else None
            steps += [s] if found is None else found
        graph = replace(self.graph, types=self.types)
        made = replace(self.parts, graph=graph, steps=tuple(steps))
        made.verify()
        return made


def _results(views: list[View]) -> set[str]:
    return {v.result for v in views}


def _part(whole: str, part: str, shape: tuple[int, ...], axis: int, first: int) -> View:
    """The view of a part that begins at element `first` of an axis of the whole."""
    rows, row = math.prod(shape[:axis]), math.prod(shape[axis:])
    start = first * math.prod(shape[axis + 1 :])
    return View(whole, part, start, 0, rows, row) if rows > 1 else View(whole, part, start)
