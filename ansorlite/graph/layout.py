"""Step `passes`: the whole graph from channels first to channels last.

rewrite: conv(x: [n, c, h, w]) -> transpose(conv(transpose(x): [n, h, w, c])), with the transposes
moved along until they meet their inverses, a constant, or an operator that needs the order.

Every old value v has a new value that equals transpose(v, perm) for a `perm` that the pass keeps
beside it; a transpose of the old graph only changes `perm`. Reshapes split and merge axes in place
where the order allows it (the channel shuffle, flattening a 1x1 image). Which orders an operator
can take is the rule `layout` of its entry in `graph.ops`.
"""

from collections.abc import Sequence

from ansorlite.graph.build import GraphBuilder, start
from ansorlite.graph.ir import Graph, Node
from ansorlite.graph.ops.op import Orders, Perm, Placed, in_graph_order
from ansorlite.graph.ops.windows import last_channels
from ansorlite.graph.rewrites import only_ones_move
from ansorlite.graph.types import Attr, ints


class Layouts:
    """The new graph so far: for every old value, new values by the perm they are stored in."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builder: GraphBuilder = start(graph, fold=True)
        self.stored: dict[str, dict[Perm, str]] = {}
        self.first: dict[str, Perm] = {}
        self.beside = beside_convolutions(graph)
        self.ending = before_outputs(graph)
        for v in [*graph.inputs, *graph.constants]:
            self.put(v, identity(graph.types[v].rank), v)

    def put(self, old: str, perm: Perm, new: str) -> None:
        self.stored.setdefault(old, {})[perm] = new
        self.first.setdefault(old, perm)

    def get(self, old: str, perm: Perm) -> str:
        """The new value equal to transpose(old, perm), by a transpose where there is none yet."""
        stored = self.stored[old]
        if perm not in stored:
            base = self.first[old]
            move = tuple(base.index(p) for p in perm)
            stored[perm] = self.moved(stored[base], move)
        return stored[perm]

    def moved(self, value: str, move: Perm) -> str:
        shape = self.builder.shape(value)
        if move == identity(len(move)):
            return value
        if only_ones_move(shape, move):
            return self.reshaped(value, tuple(shape[p] for p in move))
        return self.builder.emit("transpose", [value], tagged(value, "t"), perm=move)

    def reshaped(self, value: str, shape: tuple[int, ...], name: str = "") -> str:
        if shape == self.builder.shape(value):
            return value
        return self.builder.emit("reshape", [value], name or tagged(value, "view"), shape=shape)

    def cost(self, old: str, perm: Perm) -> int:
        """Elements to move for having `old` in `perm`."""
        base, shape = self.first[old], self.graph.types[old].shape
        if perm in self.stored[old] or old in self.graph.constants:
            return 0
        move = tuple(base.index(p) for p in perm)
        stays = only_ones_move(tuple(shape[p] for p in base), move)
        return 0 if stays else self.graph.types[old].size

    def cheapest(self, operands: Sequence[str], rank: int) -> Perm:
        """The perm that the fewest elements must move to; a permuted one among equals."""
        full = [v for v in operands if self.graph.types[v].rank == rank]
        plain = identity(rank)
        perms = {self.first[v]: None for v in full if v not in self.graph.constants}
        options = [p for p in perms if p != plain] + [plain]
        return min(options, key=lambda p: sum(self.cost(v, p) for v in full))

    def emit(self, node: Node, inputs: Sequence[str], perm: Perm, **attrs: Attr) -> None:
        changed = {**node.attrs, **attrs}
        new = self.builder.emit(node.op, inputs, node.output, node.name, **changed)
        self.put(node.output, perm, new)


def tagged(value: str, tag: str) -> str:
    """A name for another form of `value`, tagged once only."""
    return value if f".{tag}" in value else f"{value}.{tag}"


def identity(rank: int) -> Perm:
    return tuple(range(rank))


def channels_last(graph: Graph) -> Graph:
    """rewrite: conv, pools on [n, c, spatial] -> on [n, spatial, c], weights [*k, ci, co]"""
    layouts = Layouts(graph)
    for node in graph.nodes:
        if node.op == "transpose":
            transpose(layouts, node)
        elif node.op == "reshape":
            reshape(layouts, node)
        elif node.operator.kind == "elementwise":
            elementwise(layouts, node)
        else:
            placed(layouts, node)
    outputs = [layouts.get(v, identity(graph.types[v].rank)) for v in graph.outputs]
    return layouts.builder.finish(outputs)


def beside_convolutions(graph: Graph) -> set[str]:
    """Values of the same order of axes as data of convolutions and pools.

    Operators between that run in any order of axes keep it, from operands to results and back.
    """
    alike: dict[str, list[str]] = {}
    marked = set[str]()
    for node in graph.nodes:
        if node.attrs.get("layout") == "channels_first":
            marked |= {node.inputs[0], node.output}
        elif node.operator.kind == "elementwise" or node.operator.layout is not in_graph_order:
            rank = graph.types[node.output].rank
            for v in (v for v in node.inputs if graph.types[v].rank == rank):
                alike.setdefault(v, []).append(node.output)
                alike.setdefault(node.output, []).append(v)
    found, open_ = {*marked}, [*marked]
    while open_:
        new = {*alike.get(open_.pop(), ())} - found
        found |= new
        open_ += new
    return found


def before_outputs(graph: Graph) -> set[str]:
    """Values that only outputs of the graph are made of, element by element or enlarged."""
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for v in {*node.inputs}:
            readers.setdefault(v, []).append(node)
    found = set[str]()
    for node in reversed(graph.nodes):
        v = node.output
        after = readers.get(v, [])
        passed = all(_enlarges(graph, r) and r.output in found for r in after)
        if passed and (after or v in graph.outputs):
            found.add(v)
    return found


def _enlarges(graph: Graph, node: Node) -> bool:
    """Whether the node resamples its operand, or computes element by element from it alone."""
    data = [v for v in node.inputs if v not in graph.constants]
    return len(data) == 1 and (node.op == "resample" or node.operator.kind == "elementwise")


def placed(lay: Layouts, node: Node) -> None:
    """The operator by the rule of its entry: operands in the orders that the rule returns.

    What makes a larger output of the graph has the graph's order before, where fewer elements move.
    """
    types, rank = lay.graph.types, lay.graph.types[node.output].rank
    orders = Orders(tuple(lay.first[v] for v in node.inputs), lay.cheapest(node.inputs, rank))
    operands = tuple(types[v] for v in node.inputs)
    place = node.operator.layout(node.attrs, operands, orders)
    if node.op == "resample" and node.output in lay.ending:
        place = place if types[node.output].size <= types[node.inputs[0]].size else None
    if place is None:
        place = Placed(tuple(identity(t.rank) for t in operands), identity(rank))
    inputs = [lay.get(v, perm) for v, perm in zip(node.inputs, place.operands, strict=True)]
    lay.emit(node, inputs, place.result, **place.attrs)


def elementwise(lay: Layouts, node: Node) -> None:
    rank = lay.graph.types[node.output].rank
    perm = lay.cheapest(node.inputs, rank)
    inputs = []
    for v in node.inputs:
        shape = lay.graph.types[v].shape
        if len(shape) == rank:
            inputs.append(lay.get(v, perm))
            continue
        plain = lay.get(v, identity(len(shape)))
        if set(shape) <= {1}:
            inputs.append(lay.reshaped(plain, ()))
            continue
        full = (1,) * (rank - len(shape)) + shape
        inputs.append(
            lay.moved(lay.reshaped(plain, full), perm) if perm != identity(rank) else plain
        )
    lay.emit(node, inputs, perm)


def transpose(lay: Layouts, node: Node) -> None:
    """No element moves: the stored value stays, with another perm beside it."""
    perm, order = lay.first[node.inputs[0]], ints(node.attrs, "perm")
    stored = lay.get(node.inputs[0], perm)
    lay.put(node.output, tuple(order.index(p) for p in perm), stored)


def blocks(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Smallest runs of axes of `old` and of `new` that hold the same elements, in order."""
    out: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        left, right, p, q = list[int](), list[int](), 1, 1
        while not left or not right or p != q:
            # One axis of each first, then whichever side has fewer elements so far.
            behind = not left or (bool(right) and p < q)
            if i < len(old) and (behind or j == len(new)):
                left.append(i)
                p, i = p * old[i], i + 1
            elif j < len(new):
                right.append(j)
                q, j = q * new[j], j + 1
            else:
                break
        if out and (not left or not right):  # ones that are left over
            out[-1][0].extend(left)
            out[-1][1].extend(right)
        else:
            out.append((left, right))
    return out


def reshape(lay: Layouts, node: Node) -> None:
    """Axes split and merge in place; axes of one run that lie apart are moved together first."""
    (source,), target = node.inputs, ints(node.attrs, "shape")
    shape, perm = lay.graph.types[source].shape, lay.first[source]
    runs = blocks(shape, target)

    def place(run: tuple[list[int], list[int]]) -> int:
        # The run with the innermost axis stays innermost.
        real = [perm.index(a) for a in run[0] if shape[a] != 1]
        return max(real, default=-1)

    order = sorted(runs, key=place)
    gathered = tuple(a for run in order for a in run[0])
    # Extents of 1 may lie anywhere: the value is stored fittingly if the others are in order.
    real = [a for a in gathered if shape[a] != 1]
    if [a for a in perm if shape[a] != 1] == real:
        x = lay.get(source, perm)
    else:
        if node.output in lay.beside:  # elements move: to where convolutions want them
            last = last_channels(len(target))
            order = sorted(runs, key=lambda run: last.index(run[1][0]) if run[1] else -1)
            gathered = tuple(a for run in order for a in run[0])
        x = lay.get(source, gathered)
    out = tuple(a for run in order for a in run[1])
    if node.output in lay.beside:
        # Where only extents of 1 move, the value lies as the convolutions around it want it.
        last = last_channels(len(target))
        move = tuple(out.index(a) for a in last)
        out = last if only_ones_move(tuple(target[a] for a in out), move) else out
    new = lay.reshaped(x, tuple(target[a] for a in out), node.output)
    lay.put(node.output, out, new)
