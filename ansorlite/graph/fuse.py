"""Step `partition`, first half: which nodes form one kernel.

In: an optimised `Graph`. Out: `Group`s, each with one result that leaves it. An anchor takes the
element-wise nodes that follow as long as all paths from the anchor meet again inside the group (so
there are no cycles) and the shape stays. Reductions of the same rows and the element-wise nodes
between are one group, so a normalisation is a single task. Remaining element-wise chains are
groups of their own, or join the group that reads them where no element would be computed twice.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ansorlite.errors import ModelError
from ansorlite.graph.ir import Graph, Node
from ansorlite.graph.types import ints

# A stage of a kernel is one expression: its depth and code grow with the length of the chain.
MOST_NODES = 64
MOST_FACTORS = 64  # terms of an expression of integers, which is written out as a polynomial


@dataclass(frozen=True)
class Group:
    """Nodes in topological order; the last computes the result. `anchor` is the main node, if any.

    In a group over rows each node is element-wise or reduces rows; `columns` is the number of last
    axes that form a row (0 for other groups).
    """

    nodes: tuple[Node, ...]
    anchor: Node | None
    columns: int = 0

    @property
    def output(self) -> str:
        return self.nodes[-1].output


class _Growing:
    """Groups in the making: `owner[k]` is the group of node k, named by the index of its root."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.nodes = graph, graph.nodes
        self.owner: dict[int, int] = {}
        self.columns: dict[int, int] = {}  # of groups over rows
        self.position = {n.output: k for k, n in enumerate(self.nodes)}
        self.readers: list[list[int]] = [[] for _ in self.nodes]
        for k, n in enumerate(self.nodes):
            for v in dict.fromkeys(n.inputs):
                if v in self.position:
                    self.readers[self.position[v]].append(k)
        self.exits = {self.position[v] for v in graph.outputs if v in self.position}
        self.meeting = self._meetings()

    def _meetings(self) -> list[int]:
        """For each node the first node through which all its paths lead; len(nodes) if none."""
        end = len(self.nodes)
        meeting, depth = [end] * end, [0] * end + [0]
        for k in reversed(range(end)):
            targets = [end] * (k in self.exits) + self.readers[k] or [end]
            at = targets[0]
            for other in targets[1:]:
                while at != other:
                    if depth[at] >= depth[other]:
                        at = meeting[at]
                    else:
                        other = meeting[other]
            meeting[k], depth[k] = at, depth[at] + 1
        return meeting

    def kind(self, k: int) -> str:
        return self.nodes[k].operator.kind

    def widens(self, k: int) -> bool:
        return "widens" in self.nodes[k].operator.traits

    def shape(self, k: int) -> tuple[int, ...]:
        return self.graph.types[self.nodes[k].output].shape

    def between(self, first: int, last: int) -> list[int]:
        """Nodes on the paths from `first` to `last`, with `last`, without `first`."""
        found, stack = set[int](), [first]
        while stack:
            for k in self.readers[stack.pop()]:
                if k not in found:
                    found.add(k)
                    if k != last:
                        stack.append(k)
        return sorted(found)

    def bounded(self, members: Iterable[int]) -> bool:
        """Whether one kernel may compute all the nodes `members`."""
        own = sorted(members)
        if len(own) > MOST_NODES:
            return False
        factors: dict[int, int] = {}
        for k in own:
            node = self.nodes[k]
            parts = [factors.get(self.position.get(v, -1), 1) for v in node.inputs]
            if self.graph.types[node.output].dtype.startswith("int"):
                traits = node.operator.traits
                multiplies, adds = "integer_product" in traits, "integer_sum" in traits
                factors[k] = math.prod(parts) if multiplies else sum(parts) if adds else 1
        return max(factors.values(), default=0) <= MOST_FACTORS

    def members(self, root: int) -> list[int]:
        return [k for k, o in self.owner.items() if o == root]

    def grow(self, root: int) -> None:
        """Make a group of `root` and the free element-wise nodes of its shape that follow."""
        self.owner[root] = root
        at = root
        while (meet := self.meeting[at]) < len(self.nodes):
            run = self.between(at, meet)
            if at == root and run == [meet] and self.places(root, meet):
                self.owner[meet] = root
                at = meet
                continue
            for k in run:
                if k in self.owner or self.kind(k) != "elementwise" or self.widens(k):
                    return  # what widens is part of what reads it
                if self.shape(k) != self.shape(root if at == root else at):
                    return
            if not self.bounded([*self.members(root), *run]):
                return
            self.owner.update(dict.fromkeys(run, root))
            at = meet

    def release(self, root: int) -> None:
        """Leave a last node that dequantizes bytes to the kernel that reads it, if that one can."""
        last = max(self.members(root), default=root)
        if last == root or last in self.exits or self.owner[last] != root:
            return
        if "dequantizes" not in self.nodes[last].operator.traits:
            return
        into = {self.owner.get(r) for r in self.readers[last]}
        if len(into) > 1 or None in into or root in into:
            return
        if all(self.inlines(last, r) for r in self.readers[last]):
            del self.owner[last]

    def places(self, root: int, reader: int) -> bool:
        """Whether the reader is a transpose that decides only the order of a product's rows."""
        node = self.nodes[reader]
        joins = self.nodes[root].operator.transposed is not None and node.op == "transpose"
        if not joins or reader in self.owner:
            return False
        perm = ints(node.attrs, "perm")
        return perm[-1] == len(perm) - 1

    def grow_rows(self, root: int) -> None:
        """Make a group of the reduction `root` of rows and all that comes back to whole rows."""
        full = self.graph.types[self.nodes[root].inputs[0]].shape
        columns = self.row_columns(root, full)
        if not columns or root in self.owner or full == self.shape(root):
            return
        members, at, wide = [root], root, 0
        while (meet := self.meeting[at]) < len(self.nodes):
            run = self.between(at, meet)
            if not all(self.over_rows(k, full, self.shape(root), columns) for k in run):
                break
            if not self.bounded([*members, *run]):
                break
            members.extend(run)
            at = meet
            if any(self.kind(k) == "anchor" or self.shape(k) == full for k in run):
                wide = len(members)
        if wide:
            self.owner.update(dict.fromkeys(members, root))
            self.columns[root] = columns

    def row_columns(self, k: int, full: tuple[int, ...]) -> int:
        """How many of the last axes of `full` the node k reduces to 1; 0 if others or none."""
        node = self.nodes[k]
        if not node.operator.combiner or not node.attrs["keepdims"]:
            return 0
        axes = sorted(ints(node.attrs, "axes"))
        last = list(range(len(full) - len(axes), len(full)))
        return len(axes) if axes == last else 0

    def over_rows(
        self, k: int, full: tuple[int, ...], reduced: tuple[int, ...], columns: int
    ) -> bool:
        """Whether node k, in no group, reduces rows or is element-wise on whole or reduced rows."""
        if k in self.owner:
            return False
        if self.kind(k) == "elementwise":
            return self.shape(k) in (full, reduced)
        source = self.graph.types[self.nodes[k].inputs[0]].shape
        return source == full and self.row_columns(k, full) == columns

    def join(self, root: int) -> None:
        """Let the group of `root` join its only reading group, if no work is repeated."""
        members = self.members(root)
        last = max(members)
        readers = self.readers[last]
        into = {self.owner.get(k) for k in readers}
        if last in self.exits or len(into) != 1 or None in into:
            return
        if all(self.kind(k) == "elementwise" for k in members):
            allowed = all(self.inlines(last, k) for k in readers)
        else:
            moves = len(members) == 1 and self.nodes[last].op == "transpose"
            allowed = moves and all(self.nodes[k].operator.transposed is not None for k in readers)
        if allowed and self.bounded([*members, *self.members(self.owner[readers[0]])]):
            self.owner.update(dict.fromkeys(members, self.owner[readers[0]]))

    def inlines(self, last: int, reader: int) -> bool:
        """Whether `reader` reads each element of the element-wise node `last` at most once.

        What is as cheap as reading may be computed again, and windows of bytes are read as bytes.
        """
        if self.kind(reader) == "elementwise":
            return self.shape(reader) == self.shape(last)
        if self.owner.get(reader, reader) != reader:
            return False
        if self.widens(last):
            return True
        traits = self.nodes[reader].operator.traits
        if "dequantizes" in self.nodes[last].operator.traits and "reads_windows" in traits:
            return True
        return "reads_once" in traits and self.shape(reader) != self.shape(last)


def fuse(graph: Graph) -> tuple[Group, ...]:
    """The kernels of `graph` in an order in which they can run; views belong to no group."""
    growing = _Growing(graph)
    count = len(graph.nodes)
    for k in range(count):
        if growing.kind(k) == "source":
            node = graph.nodes[k]
            raise ModelError(f"node {node.name} ({node.op}) has no kernel: run graph.passes first")
    for k in range(count):
        if growing.kind(k) == "anchor":
            growing.grow_rows(k)
    # Where two anchors meet in one addition, the addition joins the later: the first is computed.
    for kind in ("anchor", "injective"):
        for k in reversed(range(count)):
            if growing.kind(k) == kind and k not in growing.owner:
                growing.grow(k)
    for k in range(count):
        if growing.owner.get(k) == k and not growing.columns.get(k):
            growing.release(k)
    for k in range(count):
        if growing.kind(k) == "elementwise" and k not in growing.owner:
            growing.grow(k)
    for k in reversed(range(count)):
        if growing.owner.get(k) == k and growing.kind(k) in ("elementwise", "injective"):
            growing.join(k)
    members: dict[int, list[int]] = {}
    for k in sorted(growing.owner):
        members.setdefault(growing.owner[k], []).append(k)
    groups = sorted(members.items(), key=lambda item: item[1][-1])
    return tuple(
        Group(
            tuple(graph.nodes[k] for k in nodes),
            None if growing.kind(root) == "elementwise" else graph.nodes[root],
            growing.columns.get(root, 0),
        )
        for root, nodes in groups
    )
