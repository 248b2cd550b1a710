"""Step `partition`, second half: a group of nodes -> a `ComputeDAG`.

In: a `Group` of an optimised graph. Out: the DAG, the graph value of each of its placeholders, and
of its result. Placeholders and result are row-major views of the graph's values: the same elements
in the same order, maybe in another shape. Constants of one element become literals, leading axes of
extent 1 go, so that equal kernels get equal workload keys.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ansorlite import te
from ansorlite.graph import te_ops
from ansorlite.graph.expressions import TensorFn
from ansorlite.graph.fuse import Group
from ansorlite.graph.ir import Graph, Node
from ansorlite.graph.layout import blocks
from ansorlite.graph.types import ints
from ansorlite.ir.expr import Expr
from ansorlite.te.tensor import Tensor

Shape = tuple[int, ...]
OPERANDS = {"conv": ("data", "weight"), "matmul": ("data", "weight")}
CONSTANTS = {"add": "bias", "mul": "scale"}
COMMUTATIVE = ("add", "mul", "maximum", "minimum")


def operand_view(shape: Shape, full: Shape, space: Shape) -> Shape | None:
    """The shape in which an operand that broadcasts to `full` broadcasts to its view `space`.

    None where there is none: an axis of `space` would be partly broadcast.
    """
    aligned = (1,) * (len(full) - len(shape)) + shape
    if full == space:
        view = aligned
    else:
        parts: dict[int, int] = {}
        for old, new in blocks(full, space):
            own = [aligned[d] for d in old]
            if own == [full[d] for d in old]:
                parts.update((d, space[d]) for d in new)
            elif all(n == 1 for n in own):
                parts.update((d, 1) for d in new)
            else:
                return None
        view = tuple(parts[d] for d in sorted(parts))
    lead = next((d for d, n in enumerate(view) if n != 1), len(view) - 1)
    return view[max(lead, 0) :] or (1,)


class _Lowering:
    """One group: placeholders by (value, shape), tensors of the group's own values."""

    def __init__(self, graph: Graph, group: Group) -> None:
        self.graph, self.group = graph, group
        self.own = {n.output for n in group.nodes}
        self.placeholders: dict[tuple[str, Shape], Tensor] = {}
        self.tensors: dict[str, Tensor] = {}

    def placeholder(self, value: str, shape: Shape, name: str) -> Tensor:
        key = (value, shape)
        if key not in self.placeholders:
            taken = {t.name for t in self.placeholders.values()}
            unique, k = name, 1
            while unique in taken:
                unique, k = f"{name}_{k}", k + 1
            dtype, known = self.graph.types[value].dtype, value in self.graph.constants
            self.placeholders[key] = te.placeholder(shape, dtype, unique, constant=known)
        return self.placeholders[key]

    def elementwise(self, node: Node, space: Shape, names: Sequence[str]) -> Tensor:
        """One compute over `space`, a view of the node's shape."""
        full = self.graph.types[node.output].shape
        inputs = list(node.inputs)
        if node.op in COMMUTATIVE and inputs[0] not in self.own and inputs[1] in self.own:
            inputs.reverse()
        reads = [self.reader(v, node, full, space) for v in inputs]
        scalar = node.operator.scalar
        assert scalar is not None

        def element(*at: Any) -> Expr:
            return scalar(node.attrs, [read(at) for read in reads])

        return te.compute(space, te_ops.named(names, element), name=node.op)

    def reader(self, value: str, node: Node, full: Shape, space: Shape) -> Any:
        """Indices of `space` -> the operand's element."""
        if value in self.tensors:
            tensor = self.tensors[value]
            return lambda at: tensor[at]
        known = self.graph.constants.get(value)
        if known is not None and known.size == 1:
            literal = te.const(known.reshape(-1)[0].item(), str(known.dtype))
            return lambda at: literal
        view = operand_view(self.graph.types[value].shape, full, space)
        assert view is not None, f"{value} has no view in {space}"
        name = "other" if known is None else CONSTANTS.get(node.op, "other")
        tensor = self.placeholder(value, view, name)
        skip = len(space) - len(view)

        def read(at: Sequence[Any]) -> Expr:
            own = zip(at[skip:], view, space[skip:], strict=True)
            return tensor[tuple(0 if n == 1 and e > 1 else i for i, n, e in own)]

        return read

    def fits(self, space: Shape, after: Sequence[Node]) -> bool:
        """Whether all operands of the nodes that follow the anchor have a view in `space`."""
        return all(
            operand_view(self.graph.types[v].shape, self.graph.types[n.output].shape, space)
            is not None
            for n in after
            for v in n.inputs
            if v not in self.own
        )

    def anchor(self, node: Node, after: Sequence[Node]) -> Tensor:
        """The anchor over the best views that the nodes after it can follow."""
        names = OPERANDS.get(node.op, ("data",) * len(node.inputs))
        types = tuple(self.graph.types[v] for v in node.inputs)
        options = node.operator.views(node.attrs, types)
        assert node.operator.tensor is not None
        for views in options:
            trial = [te.placeholder(s, t.dtype) for s, t in zip(views, types, strict=True)]
            space = node.operator.tensor(node.attrs, trial).shape
            if views is options[-1] or self.fits(space, after):
                break
        operands = [
            self.tensors[v] if v in self.tensors else self.placeholder(v, shape, name)
            for v, shape, name in zip(node.inputs, views, names, strict=True)
        ]
        return node.operator.tensor(node.attrs, operands)

    def other(self, node: Node, form: TensorFn) -> Tensor:
        """The anchor in another form, over its operands as the graph has them."""
        operands = [
            self.tensors[v] if v in self.tensors else self.placeholder(v, shape, name)
            for v, shape, name in zip(
                node.inputs,
                (self.graph.types[v].shape for v in node.inputs),
                OPERANDS.get(node.op, ("data",) * len(node.inputs)),
                strict=True,
            )
        ]
        return form(node.attrs, operands)

    def transposed_matmul(self, node: Node, moves: dict[str, Node]) -> Tensor:
        """A matrix product that reads transposed operands where they lie."""
        operands, perms = [], []
        for v, name in zip(node.inputs, OPERANDS["matmul"], strict=True):
            source = moves[v].inputs[0] if v in moves else v
            operands.append(self.placeholder(source, self.graph.types[source].shape, name))
            perms.append(ints(moves[v].attrs, "perm") if v in moves else None)
        return te_ops.batch_matmul(operands[0], operands[1], perms[0], perms[1])


class Lowered(NamedTuple):
    """A DAG and the graph value of each placeholder, in `dag.inputs` order."""

    dag: te.ComputeDAG
    inputs: tuple[str, ...]


def lower(graph: Graph, group: Group) -> Lowered:
    """The DAG of a group in its plain form."""
    return _lowered(graph, group, None)


def other_forms(graph: Graph, group: Group) -> tuple[Lowered, ...]:
    """The group with its anchor in other forms; inputs and output are views of the same values.

    Forms are offered for constant weights, which they transform ahead of time.
    """
    anchor = group.anchor
    if anchor is None or anchor.inputs[-1] not in graph.constants:
        return ()
    types = tuple(graph.types[v] for v in anchor.inputs)
    plain = _lowered(graph, group, None)
    found = [_lowered(graph, group, fn) for fn in anchor.operator.forms(anchor.attrs, types)]
    names = [p.name for p in plain.dag.inputs], plain.dag.output_names
    return tuple(
        f
        for f in found
        if sorted(p.name for p in f.dag.inputs) == sorted(names[0])
        and f.dag.output_names == names[1]
    )


def _lowered(graph: Graph, group: Group, form: TensorFn | None) -> Lowered:
    low, anchor = _Lowering(graph, group), group.anchor
    before, after = group.nodes, tuple[Node, ...]()
    if anchor is not None:
        feeds = _feeds(group, anchor)
        before = tuple(n for n in group.nodes if n.output in feeds)
        after = tuple(n for n in group.nodes if n.output not in feeds and n is not anchor)
    moves = {n.output: n for n in before if n.op == "transpose"}
    for n in before:
        if n.output not in moves:
            space = graph.types[n.output].shape or (1,)
            low.tensors[n.output] = low.elementwise(n, space, ())
    if anchor is not None:
        if form is not None:
            out = low.other(anchor, form)
        else:
            out = low.transposed_matmul(anchor, moves) if moves else low.anchor(anchor, after)
        low.tensors[anchor.output] = out
        names = [a.name for a in out.op.axes] if isinstance(out.op, te.ComputeOp) else []
        for n in after:
            low.tensors[n.output] = low.elementwise(n, out.shape, names)
    dag = te.ComputeDAG([low.tensors[group.output]])
    values = {t.name: v for (v, _), t in low.placeholders.items()}
    return Lowered(dag, tuple(values[p.name] for p in dag.inputs))


def _feeds(group: Group, anchor: Node) -> set[str]:
    """Values of the group that the anchor depends on."""
    feeds, wanted = set[str](), set(anchor.inputs)
    for n in reversed(group.nodes):
        if n is not anchor and n.output in wanted:
            feeds.add(n.output)
            wanted.update(n.inputs)
    return feeds
