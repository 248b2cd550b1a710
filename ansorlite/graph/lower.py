"""Step `partition`, second half: a group of nodes -> a `ComputeDAG`.

In: a `Group` of an optimised graph. Out: the DAG, the graph value of each of its placeholders, and
of its result. Placeholders and result are row-major views of the graph's values: the same elements
in the same order, possibly in another shape. Constants of one element become literals, leading
axes of extent 1 are dropped, so that equal kernels get equal workload keys.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ansorlite import te
from ansorlite.graph.fuse import Group
from ansorlite.graph.ir import Graph, Node
from ansorlite.graph.layout import blocks
from ansorlite.graph.ops.op import Form, TensorFn, named
from ansorlite.graph.ops.reduce import reduce
from ansorlite.graph.types import Array, ints
from ansorlite.ir.expr import Expr, Load, Op
from ansorlite.ir.literals import WIDE
from ansorlite.ir.traverse import loads, substitute
from ansorlite.te.tensor import Tensor

Shape = tuple[int, ...]
FORM_RTOL = 1e-3  # relative error that other forms of a computation may have
BF16_LOSS = 32.0  # times as much where they round to bfloat16 on the way


def _names(node: Node) -> tuple[str, ...]:
    """Names of the placeholders of an anchor's operands."""
    return (node.operator.names or ("data",) * len(node.inputs))[: len(node.inputs)]


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


def _apart(node: Node) -> bool:
    """Whether the node's constants of one element are operands, so that layers are equal tasks."""
    return "scalars_apart" in node.operator.traits


class _Lowering:
    """One group: placeholders by (value, shape), tensors of the group's own values.

    With `whole` values have the graph's shapes, so that another group can read them.
    """

    def __init__(self, graph: Graph, group: Group, whole: bool = False) -> None:
        self.graph, self.group, self.whole = graph, group, whole
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
        commutes = "commutative" in node.operator.traits
        if commutes and inputs[0] not in self.own and inputs[1] in self.own:
            inputs.reverse()
        reads = [self.reader(v, node, full, space) for v in inputs]
        expression, dtype = node.operator.element, self.graph.types[node.output].dtype
        assert expression is not None

        def element(*at: Any) -> Expr:
            return te.cast(expression(node.attrs, [read(at) for read in reads]), dtype)

        return te.compute(space, named(names, element), name=node.op)

    def reader(self, value: str, node: Node, full: Shape, space: Shape) -> Any:
        """Indices of `space` -> the operand's element."""
        if value in self.tensors:
            tensor = self.tensors[value]
            return lambda at: tensor[tuple(at)[: len(tensor.shape)]]
        known = self.graph.constants.get(value)
        if known is not None and known.size == 1 and not _apart(node):
            dtype = str(known.dtype)
            literal = te.const(known.reshape(-1)[0].item(), WIDE.get(dtype, dtype))
            return lambda at: literal
        view = operand_view(self.graph.types[value].shape, full, space)
        assert view is not None, f"{value} has no view in {space}"
        own = node.operator.names
        name = own[-1] if own and known is not None else "other"
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
        names = _names(node)
        types = tuple(self.graph.types[v] for v in node.inputs)
        options = node.operator.views(node.attrs, types)
        own = [k for k, v in enumerate(node.inputs) if v in self.tensors]
        options = tuple(o for o in options if all(o[k] == types[k].shape for k in own)) or options
        assert node.operator.tensor is not None
        known = [self.graph.constants.get(v) for v in node.inputs]
        attrs = node.operator.refine(node.attrs, known)
        for views in options:
            trial = [te.placeholder(s, t.dtype) for s, t in zip(views, types, strict=True)]
            space = node.operator.tensor(attrs, trial).shape
            fits = not self.whole or space == self.graph.types[node.output].shape
            if views is options[-1] or (fits and self.fits(space, after)):
                break
        operands = [
            self.tensors[v] if v in self.tensors else self.placeholder(v, shape, name)
            for v, shape, name in zip(node.inputs, views, names, strict=True)
        ]
        return self.stored(node, node.operator.tensor(attrs, operands))

    def stored(self, node: Node, x: Tensor) -> Tensor:
        """The node's result in its own dtype; integers of few bytes are computed in a wide one."""
        dtype = self.graph.types[node.output].dtype
        if x.dtype == dtype:
            return x
        if isinstance(x.op, te.ComputeOp) and x.op.combiner is None:
            return Tensor(replace(x.op, body=te.cast(x.op.body, dtype)), x.inputs)
        return te.compute(x.shape, lambda *i: te.cast(x[i], dtype), f"{x.name}.stored")

    def over_rows(self, columns: int) -> None:
        """All nodes of a group over rows: whole values as [*rows, *row], reduced values as [*rows].

        Rows are one axis, and so are their elements, if all operands have such views.
        """
        anchor = self.group.anchor
        assert anchor is not None
        full = self.graph.types[anchor.inputs[0]].shape
        split = len(full) - columns
        merged = (math.prod(full[:split]), math.prod(full[split:]))
        space: Shape = full if split else (1, *full)
        rest = [n for n in self.group.nodes if n.operator.kind == "elementwise"]
        whole = [n for n in rest if self.graph.types[n.output].shape == full]
        apart = self.whole  # another group of the kernel reads or writes the values
        if not apart and self.fits(merged, whole) and self.reads_rows(anchor, merged):
            space, columns = merged, 1
        rows = space[: len(space) - columns]
        for n in self.group.nodes:
            if n in rest:
                own = space if n in whole else rows
                self.tensors[n.output] = self.elementwise(n, own, ())
                continue
            (value,) = n.inputs
            x = self.tensors.get(value) or self.placeholder(value, space, "data")
            axes = tuple(range(len(rows), len(space)))
            self.tensors[n.output] = self.stored(n, reduce(x, n.operator.combiner, axes, n.op))

    def reads_rows(self, anchor: Node, space: Shape) -> bool:
        """Whether the operands that have one element a row have a view in `space` too."""
        row = self.graph.types[anchor.output].shape
        narrow = [n for n in self.group.nodes if self.graph.types[n.output].shape == row]
        return self.fits(space[:1], [n for n in narrow if n.operator.kind == "elementwise"])

    def other(self, node: Node, form: TensorFn, after: Sequence[Node]) -> Tensor | None:
        """The anchor in another form; None if its operands, or the nodes after it, have no view."""
        types = tuple(self.graph.types[v] for v in node.inputs)
        views = tuple(t.shape for t in types)
        if isinstance(form, Form) and form.matrices:
            views = node.operator.views(node.attrs, types)[0]
        rows = list(zip(node.inputs, views, _names(node), strict=True))
        if any(v in self.tensors and self.tensors[v].shape != shape for v, shape, _ in rows):
            return None
        operands = [self.tensors.get(row[0]) or self.placeholder(*row) for row in rows]
        found = self.stored(node, form(node.attrs, operands))
        return found if self.fits(found.shape, after) else None

    def transposed(self, node: Node, moves: dict[str, Node], last: Node | None) -> Tensor:
        """An anchor that reads the operands of transposes, and no transposed copy.

        With a `last` transpose the anchor writes its result in the transposed order.
        """
        operands, perms = [], []
        for v, name in zip(node.inputs, _names(node), strict=True):
            source = moves[v].inputs[0] if v in moves else v
            made = self.tensors.get(source)
            if made is None:
                made = self.placeholder(source, self.graph.types[source].shape, name)
            operands.append(made)
            perms.append(ints(moves[v].attrs, "perm") if v in moves else None)
        order = None if last is None else ints(last.attrs, "perm")
        assert node.operator.transposed is not None
        return self.stored(node, node.operator.transposed(operands, perms, order))

    def undivided(self, node: Node) -> Tensor | None:
        """The quotient that is the first operand of a product; its dividend takes its place."""
        x = self.tensors.get(node.inputs[0])
        if node.operator.transposed is None or x is None or not isinstance(x.op, te.ComputeOp):
            return None
        body = x.op.body
        if x.op.combiner or not isinstance(body, Op) or body.name != "div":
            return None
        above, below = body.args
        own = tuple(a.var for a in x.op.axes)
        if not isinstance(above, Load) or not isinstance(below, Load) or above.indices != own:
            return None
        if len(below.indices) == len(own) or own[-1].name in below.free:
            return None
        self.tensors[node.inputs[0]] = _source(x, above)
        return x

    def divided(self, out: Tensor, quotient: Tensor) -> Tensor:
        """The sums of the dividend, divided: sum(a[i, k] / b[i] * x) is sum(a[i, k] * x) / b[i]."""
        assert isinstance(out.op, te.ComputeOp) and isinstance(quotient.op, te.ComputeOp)
        body = quotient.op.body
        assert isinstance(body, Op)
        above, below = body.args
        assert isinstance(above, Load) and isinstance(below, Load)
        dividend, divisor = _source(quotient, above), _source(quotient, below)
        (read,) = {x for x in loads(out.op.body) if _source(out, x) is dividend}
        at_axis = {a.name: i for a, i in zip(quotient.op.axes, read.indices, strict=True)}
        places = [substitute(i, at_axis) for i in below.indices]
        names = [a.name for a in out.op.axes]

        def element(*at: Any) -> Expr:
            here = dict(zip(names, at, strict=True))
            return out[at] / divisor[tuple(substitute(i, here) for i in places)]

        return te.compute(out.shape, named(names, element), name=quotient.op.name)

    def finished(self) -> "Lowered":
        """The DAG of the group's result."""
        dag = te.ComputeDAG([self.tensors[self.group.output]])
        values = {t.name: v for (v, _), t in self.placeholders.items()}
        return Lowered(dag, tuple(values[p.name] for p in dag.inputs))


def _source(x: Tensor, read: Load) -> Tensor:
    """The tensor that a load in the body of x reads: `#1` is the second of its inputs."""
    return x.inputs[int(read.tensor[1:])]


class Lowered(NamedTuple):
    """A DAG and the graph value of each placeholder, in `dag.inputs` order."""

    dag: te.ComputeDAG
    inputs: tuple[str, ...]


def lower(graph: Graph, group: Group) -> Lowered:
    """The DAG of a group in its plain form."""
    low = _lowered(graph, group, None)
    assert low is not None, "the plain form has views"
    return low


FormKey = tuple[str, tuple[str, ...], str, tuple[tuple[str, object], ...], int]


def other_forms(
    graph: Graph,
    group: Group,
    plain: Lowered,
    made: dict[FormKey, te.ComputeDAG | None],
    in_float32: bool = False,
    form_rtol: float = FORM_RTOL,
) -> tuple[Lowered, ...]:
    """The group with its anchor in other forms; inputs and output are views of the same values.

    `plain` is the group in its plain form. Groups that are equal in it have equal forms: `made` has
    those that were made before.

    Forms are offered for constant weights, which they transform ahead of time. With `in_float32`
    products of fewer bits have one in arithmetic of float32, too. Forms that are expected to err
    more than `form_rtol`, in units of the largest result, are left out.
    """
    anchor = group.anchor
    if anchor is None or anchor.inputs[-1] not in graph.constants:
        return ()
    types = tuple(graph.types[v] for v in anchor.inputs)
    weights = graph.constants[anchor.inputs[-1]]
    forms = [*enumerate(anchor.operator.forms(anchor.attrs, types))]
    forms = [(k, f) for k, f in forms if _errs_little(f, weights, form_rtol)]
    if in_float32 and anchor.operator.in_float32 is not None:
        forms.append((-1, anchor.operator.in_float32))
    names = tuple(op.name for op in plain.dag.ops)
    attrs = tuple(sorted(anchor.attrs.items()))
    values = {p.name: v for p, v in zip(plain.dag.inputs, plain.inputs, strict=True)}
    found = []
    for k, fn in forms:
        key = plain.dag.workload_key, names, anchor.op, attrs, k
        if key not in made:
            low = _lowered(graph, group, fn)
            made[key] = None if low is None else low.dag
        dag = made[key]
        if dag is None:
            continue
        if {p.name for p in dag.inputs} == {*values} and dag.output_names == plain.dag.output_names:
            found.append(Lowered(dag, tuple(values[p.name] for p in dag.inputs)))
    return tuple(found)


def _errs_little(form: TensorFn, weights: Array, form_rtol: float) -> bool:
    known = form if isinstance(form, Form) else Form(form)
    return known.error(weights) <= form_rtol * (BF16_LOSS if known.bf16 else 1.0)


def lower_together(graph: Graph, groups: Sequence[Group], exact: bool) -> Lowered | None:
    """The DAG of groups of which each is read by the next alone; None if views are in the way.

    Unless `exact`, a quotient that a product sums is divided after the product: what is divided by
    a value a row is divided once a row.
    """
    nodes = tuple(n for g in groups for n in g.nodes)
    low = _Lowering(graph, Group(nodes, groups[-1].anchor), whole=True)
    for g in groups:
        low.group = g
        _compute(low, g, None, divides_last=not exact)
        if g is not groups[-1] and low.tensors[g.output].shape != graph.types[g.output].shape:
            return None
    return low.finished()


def _lowered(graph: Graph, group: Group, form: TensorFn | None) -> Lowered | None:
    low = _Lowering(graph, group)
    return low.finished() if _compute(low, group, form) else None


def _compute(
    low: _Lowering, group: Group, form: TensorFn | None, divides_last: bool = False
) -> bool:
    """Make the tensors of a group; whether its anchor has the form."""
    graph, anchor = low.graph, group.anchor
    if group.columns:
        low.over_rows(group.columns)
        return True
    before, after = group.nodes, tuple[Node, ...]()
    if anchor is not None:
        feeds = _feeds(group, anchor)
        before = tuple(n for n in group.nodes if n.output in feeds)
        after = tuple(n for n in group.nodes if n.output not in feeds and n is not anchor)
    moves = {n.output: n for n in before if n.op == "transpose"}
    last = next((n for n in after if n.op == "transpose"), None)
    if form is not None and (moves or last is not None):
        return False  # forms are of operands and results as they are
    for n in before:
        if n.output not in moves:
            space = graph.types[n.output].shape or (1,)
            low.tensors[n.output] = low.elementwise(n, space, ())
    if anchor is not None:
        if form is not None:
            other = low.other(anchor, form, after)
            if other is None:
                return False
            out = other
        else:
            moved = moves or last is not None
            quotient = low.undivided(anchor) if divides_last else None
            out = low.transposed(anchor, moves, last) if moved else low.anchor(anchor, after)
            if quotient is not None:
                out = low.divided(out, quotient)
            if last is not None:  # the product itself is never stored
                anchor, after = last, tuple(n for n in after if n is not last)
        low.tensors[anchor.output] = out
        names = [a.name for a in out.op.axes] if isinstance(out.op, te.ComputeOp) else []
        for n in after:
            low.tensors[n.output] = low.elementwise(n, out.shape, names)
    return True


def _feeds(group: Group, anchor: Node) -> set[str]:
    """Values of the group that the anchor depends on."""
    feeds, wanted = set[str](), set(anchor.inputs)
    for n in reversed(group.nodes):
        if n is not anchor and n.output in wanted:
            feeds.add(n.output)
            wanted.update(n.inputs)
    return feeds
