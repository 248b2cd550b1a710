"""Transform steps: frozen values that are replayed on a schedule.

One class per step: fields, `apply`, JSON tag (`tag`), and the rewrite in the docstring. `apply`
returns the next schedule. A factor is an int or a hole column. An illegal step raises
ScheduleError, which names step, stage and number.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from ansorlite.errors import ScheduleError
from ansorlite.ir.expr import Const, Expr, Load, Var, ceildiv, wrapped_int
from ansorlite.ir.traverse import loads, rename_loads, substitute, transform, walk
from ansorlite.schedule.pads import PadInPlace
from ansorlite.schedule.stage import (
    Factor,
    Iterator,
    Schedule,
    Stage,
    axis_of,
    factor_expr,
    initial_stage,
)
from ansorlite.schedule.step_fields import check_fields
from ansorlite.te.tensor import Axis, ComputeOp

MAX_INLINED = 8192  # operations that inlining may add to a reader


@dataclass(frozen=True)
class Split:
    """rewrite: `for i` -> `for i.0: for i.1: ...`; `factors` are the extents of the inner levels.

    Example: `Split("C", "i", (4, 8))` makes i.0, i.1 (extent 4) and i.2 (extent 8).
    """

    tag: ClassVar[str] = "split"
    stage: str
    axis: str
    factors: tuple[Factor, ...]

    def apply(self, s: Schedule) -> Schedule:
        def split(stage: Stage) -> Stage:
            axis_of(stage.compute, self.axis)
            if stage.factors(self.axis):
                raise ScheduleError(
                    f"cannot split {self.axis} of {self.stage}: it is split already, "
                    "give all levels in one step"
                )
            if s.attached(self.stage, self.axis):
                raise ScheduleError(
                    f"cannot split {self.axis} of {self.stage}: a stage is attached to it"
                )
            for st in s.stages:
                if self.stage in (st.leader, st.packed_for) and st.has_loops:
                    raise ScheduleError(
                        f"cannot split {self.axis} of {self.stage}: {st.name} follows its loops"
                    )
            if stage.leader is not None:
                raise ScheduleError(
                    f"cannot split {self.axis} of {self.stage}: it follows {stage.leader}"
                )
            for f in self.factors:
                if isinstance(f, int) and f < 1:
                    raise ScheduleError(f"cannot split {self.axis} of {self.stage} by factor {f}")
            iters: list[Iterator] = []
            for it in stage.iters:
                if it.axis == self.axis:
                    levels = range(len(self.factors) + 1)
                    iters += [Iterator(it.axis, lv, True, it.reduce) for lv in levels]
                else:
                    iters.append(it)
            tiling = (*stage.tiling, (self.axis, self.factors))
            return replace(stage, iters=tuple(iters), tiling=tiling)

        return s.update(self.stage, split)


@dataclass(frozen=True)
class FollowSplit:
    """rewrite: each spatial axis of `stage` is split by the factors of the same axis of `leader`.

    Axes correspond by position. Example: `FollowSplit("D", "C")`.
    """

    tag: ClassVar[str] = "follow_split"
    stage: str
    leader: str

    def apply(self, s: Schedule) -> Schedule:
        lead = s[self.leader]
        own, theirs = s[self.stage].compute.axes, lead.compute.axes
        if len(own) != len(theirs):
            raise ScheduleError(
                f"{self.stage} cannot follow {self.leader}: "
                f"{len(own)} axes, the leader has {len(theirs)}"
            )
        for a, b in zip(own, theirs, strict=True):
            if lead.factors(b.name):
                s = Split(self.stage, a.name, lead.factors(b.name)).apply(s)
        return s.update(self.stage, lambda st: replace(st, leader=self.leader))


@dataclass(frozen=True)
class Reorder:
    """rewrite: the loops of `stage` are nested in `order`, outermost first.

    Example: `Reorder("C", ("i.0", "j.0", "k", "i.1", "j.1"))`; `order` names every iterator once.
    """

    tag: ClassVar[str] = "reorder"
    stage: str
    order: tuple[str, ...]

    def apply(self, s: Schedule) -> Schedule:
        def reorder(stage: Stage) -> Stage:
            if sorted(self.order) != sorted(it.name for it in stage.iters):
                raise ScheduleError(
                    f"cannot reorder {self.stage} to {' '.join(self.order)}: its iterators are "
                    + " ".join(it.name for it in stage.iters)
                )
            return replace(stage, iters=tuple(stage.iters[stage.position(n)] for n in self.order))

        return check_locations(s.update(self.stage, reorder))


@dataclass(frozen=True)
class ComputeAt:
    """rewrite: `stage` at root -> in loop `iterator` of `target`, what one iteration reads.

    Example: `ComputeAt("pad", "C", "i.0")`. ScheduleError if a reader lies outside that loop.
    """

    tag: ClassVar[str] = "compute_at"
    stage: str
    target: str
    iterator: str

    def apply(self, s: Schedule) -> Schedule:
        s[self.target].position(self.iterator)
        if self.stage in s.outputs:
            raise ScheduleError(f"cannot attach {self.stage}: it is an output")
        if not s[self.stage].has_loops:
            raise ScheduleError(f"cannot attach {self.stage}: it has no loops of its own")
        where = (self.target, self.iterator)
        moved = s.update(self.stage, lambda st: replace(st, location=where, kept_at=None))
        return check_locations(moved)


@dataclass(frozen=True)
class StoreAt:
    """rewrite: in loop `i` of `target` all that it reads of `stage` -> what no `i` before it read.

    The stage's elements live as long as an iteration of `iterator`, the loop around `i`, which the
    stage is attached to: rows that windows share are computed once. Example:
    `StoreAt("expand", "filter", "h.0")` after `ComputeAt("expand", "filter", "h.1")`.
    """

    tag: ClassVar[str] = "store_at"
    stage: str
    target: str
    iterator: str

    def apply(self, s: Schedule) -> Schedule:
        at = s[self.stage].location
        if not isinstance(at, tuple) or at[0] != self.target:
            raise ScheduleError(f"cannot keep {self.stage}: it is not attached to {self.target}")
        s[self.target].position(self.iterator)
        return check_locations(s.update(self.stage, lambda st: replace(st, kept_at=self.iterator)))


def check_locations(s: Schedule) -> Schedule:
    """The schedule itself; ScheduleError if an attached stage is read outside its loop."""
    for st in s.stages:
        if not isinstance(st.location, tuple):
            continue
        target, iterator = st.location
        for r in s.readers(st.name):
            if not _inside(s, r, target, s[target].position(iterator)):
                raise ScheduleError(
                    f"cannot attach {st.name} to {target} at {iterator}: {r.name} reads it "
                    "outside of that loop"
                )
        if st.kept_at is not None:
            around = s[target]
            loop = around.iters[position := around.position(iterator)]
            if loop.reduce or around.position(st.kept_at) != position - 1:
                raise ScheduleError(
                    f"cannot keep {st.name} at {st.kept_at} of {target}: {iterator}, where it is "
                    "computed, is not the spatial loop next inside"
                )
    return s


def _inside(s: Schedule, reader: Stage, target: str, position: int) -> bool:
    """True if the reader is computed entirely inside the loop of `target` at this position."""
    while reader.name != target:
        if not isinstance(reader.location, tuple):
            return False
        around, iterator = reader.location
        if around == target:
            return s[target].position(iterator) >= position
        reader = s[around]
    return True


@dataclass(frozen=True)
class ComputeInline:
    """rewrite: x[i] = f(i); y[j] = g(x[j]) -> y[j] = g(f(j)).

    Example: `ComputeInline("x")`. ScheduleError for reductions, outputs, and stages with attached
    stages.
    """

    tag: ClassVar[str] = "compute_inline"
    stage: str

    def apply(self, s: Schedule) -> Schedule:
        op = s[self.stage].compute
        if op.combiner:
            raise ScheduleError(f"cannot inline {self.stage}: it is a reduction")
        if self.stage in s.outputs:
            raise ScheduleError(f"cannot inline {self.stage}: it is an output")
        if s.attached(self.stage):
            raise ScheduleError(
                f"cannot inline {self.stage}: {s.attached(self.stage)[0].name} is attached to it"
            )
        s = s.update(self.stage, lambda st: replace(st, location="inlined"))
        stages = tuple(
            st if st.is_placeholder else replace(st, op=inline_into(st.compute, op))
            for st in s.stages
        )
        return replace(s, stages=stages)


@dataclass(frozen=True)
class EvaluateAtBind:
    """rewrite: w = f(constants); y = g(w) -> y = g(w), with w computed when the kernel is bound.

    Example: `EvaluateAtBind("w")`. ScheduleError unless the stage depends only on constants.
    """

    tag: ClassVar[str] = "evaluate_at_bind"
    stage: str

    def apply(self, s: Schedule) -> Schedule:
        _check_unscheduled(s, self.stage, f"evaluate {self.stage} at bind")
        if self.stage in s.outputs:
            raise ScheduleError(f"cannot evaluate {self.stage} at bind: it is an output")
        if s.attached(self.stage):
            raise ScheduleError(f"cannot evaluate {self.stage} at bind: stages are attached to it")
        if not s.is_constant(self.stage):
            raise ScheduleError(f"cannot evaluate {self.stage} at bind: not all of it is constant")
        return s.update(self.stage, lambda st: replace(st, location="bound"))


def _check_unscheduled(s: Schedule, name: str, what: str) -> None:
    """ScheduleError if the stage is split or not at root."""
    if s[name].tiling or s[name].location != "root":
        raise ScheduleError(f"cannot {what}: it is scheduled already")


def inline_into(reader: ComputeOp, op: ComputeOp) -> ComputeOp:
    """The reader with every load of `op` replaced by the body of `op` at the load's indices."""
    found = {x for x in loads(reader.body) if x.tensor == op.name}
    if not found:
        return reader
    copies = sum(isinstance(x, Load) and x.tensor == op.name for x in walk(reader.body))
    if copies * op.body.size > MAX_INLINED:
        raise ScheduleError(
            f"cannot inline {op.name}: {copies} copies in {reader.name} have more than "
            f"{MAX_INLINED} operations"
        )
    values: dict[Expr, Expr] = {}
    for load in found:
        names = {a.name: i for a, i in zip(op.axes, load.indices, strict=True)}
        # A stored value wraps at the width of its dtype.
        values[load] = wrapped_int(substitute(op.body, names))
    return replace(reader, body=transform(reader.body, lambda e: values.get(e), {}))


@dataclass(frozen=True)
class CacheWrite:
    """rewrite: C[i] = f(i) -> C.cache[i] = f(i); C[i] = C.cache[i].

    Example: `CacheWrite("C")`.
    """

    tag: ClassVar[str] = "cache_write"
    stage: str

    def apply(self, s: Schedule) -> Schedule:
        _check_unscheduled(s, self.stage, f"cache {self.stage}")
        cache = replace(s[self.stage].compute, name=f"{self.stage}.cache")
        body = Load(cache.name, tuple(a.var for a in cache.axes), cache.dtype)
        copy = replace(s[self.stage].compute, reduce_axes=(), combiner=None, body=body, attrs=())
        s = s.insert_before(self.stage, initial_stage(cache))
        return check_locations(s.update(self.stage, lambda _: initial_stage(copy)))


@dataclass(frozen=True)
class CacheRead:
    """rewrite: y = f(x) -> x.packed[i] = x[i]; y = f(x.packed), for the one reader y.

    Example: `CacheRead("x", "y")`.
    """

    tag: ClassVar[str] = "cache_read"
    tensor: str
    reader: str

    def apply(self, s: Schedule) -> Schedule:
        source, reader = s[self.tensor], s[self.reader]
        if all(x.tensor != self.tensor for x in loads(reader.compute.body)):
            raise ScheduleError(f"cannot cache {self.tensor} for {self.reader}: it is not read")
        name = f"{self.tensor}.packed"
        axes = tuple(Axis(f"d{d}", e) for d, e in enumerate(source.op.extents))
        body = Load(self.tensor, tuple(a.var for a in axes), source.op.dtype)
        copy = ComputeOp(name, axes, (), None, body)
        s = s.insert_before(self.reader, initial_stage(copy))
        new_body = rename_loads(reader.compute.body, {self.tensor: name})
        reads = replace(reader.compute, body=new_body)
        return check_locations(s.update(self.reader, lambda st: replace(st, op=reads)))


@dataclass(frozen=True)
class Transpose:
    """rewrite: x[i, j] = f(i, j); y = g(x[a, b]) -> x[j, i] = f(i, j); y = g(x[b, a]).

    `axes` are all axes of x in their new order. The layout of an output must stay: for an output
    the transposed values are computed in x.turned[j, i] = f(i, j) and x becomes a copy of x.turned.
    Example: `Transpose("x", ("j", "i"))`.
    """

    tag: ClassVar[str] = "transpose"
    stage: str
    axes: tuple[str, ...]

    def apply(self, s: Schedule) -> Schedule:
        _check_unscheduled(s, self.stage, f"transpose {self.stage}")
        op = s[self.stage].compute
        old = [a.name for a in op.axes]
        if sorted(self.axes) != sorted(old):
            raise ScheduleError(
                f"cannot transpose {self.stage} to {' '.join(self.axes)}: its axes are "
                + " ".join(old)
            )
        if s.attached(self.stage):
            raise ScheduleError(f"cannot transpose {self.stage}: stages are attached to it")
        order = [old.index(name) for name in self.axes]
        transposed = replace(op, axes=tuple(op.axes[d] for d in order))
        if self.stage in s.outputs:
            transposed = replace(transposed, name=f"{self.stage}.turned")
            body = Load(transposed.name, tuple(a.var for a in transposed.axes), op.dtype)
            copy = replace(op, reduce_axes=(), combiner=None, body=body, attrs=())
            s = s.insert_before(self.stage, initial_stage(transposed))
            return check_locations(s.update(self.stage, lambda _: initial_stage(copy)))

        def read(st: Stage) -> Stage:
            if st.is_placeholder:
                return st
            found = {x for x in loads(st.compute.body) if x.tensor == self.stage}
            new: dict[Expr, Expr] = {
                x: Load(x.tensor, tuple(x.indices[d] for d in order), x.dtype) for x in found
            }
            body = transform(st.compute.body, lambda e: new.get(e), {})
            return replace(st, op=replace(st.compute, body=body))

        s = replace(s, stages=tuple(map(read, s.stages)))
        return s.update(self.stage, lambda _: initial_stage(transposed))


@dataclass(frozen=True)
class Rfactor:
    """rewrite: C = sum over k -> C.rf[.., k'] = sum over the rest of k; C = sum over k'.

    Reduction axis `axis` is split into k_o (outer) and k_i (inner, extent `factor`, exact). `keep`,
    "outer" or "inner", selects the part that becomes the last spatial axis k' of C.rf. Example:
    `Rfactor("C", "k", 16, "inner")`.
    """

    tag: ClassVar[str] = "rfactor"
    stage: str
    axis: str
    factor: Factor
    keep: str

    def apply(self, s: Schedule) -> Schedule:
        stage = s[self.stage]
        op = stage.compute
        axis = axis_of(op, self.axis)
        if not op.combiner or axis not in op.reduce_axes:
            raise ScheduleError(f"cannot rfactor {self.stage}: {self.axis} is not reduced")
        _check_unscheduled(s, self.stage, f"rfactor {self.stage}")
        if self.keep not in ("outer", "inner"):
            raise ScheduleError(f"rfactor of {self.stage} keeps {self.keep!r}: outer or inner")
        f = factor_expr(self.factor)
        if isinstance(f, Const) and f.value < 1:
            raise ScheduleError(f"cannot rfactor {self.axis} of {self.stage} by factor {f}")
        if isinstance(f, Const) and isinstance(axis.extent, Const) and axis.extent.value % f.value:
            raise ScheduleError(
                f"cannot rfactor {self.axis} of {self.stage}: {f.value} does not divide "
                f"extent {axis.extent.value}"
            )
        outer = Axis(f"{self.axis}_o", ceildiv(axis.extent, f))
        inner = Axis(f"{self.axis}_i", f)
        kept, rest = (outer, inner) if self.keep == "outer" else (inner, outer)
        for a in op.axes + op.reduce_axes:
            if a.name in (outer.name, inner.name):
                raise ScheduleError(
                    f"cannot rfactor {self.axis} of {self.stage}: it has an axis {a.name} already"
                )
        body = substitute(op.body, {self.axis: outer.var * f + inner.var})
        reduce_axes = tuple(rest if a == axis else a for a in op.reduce_axes)
        rf = replace(
            op,
            name=f"{self.stage}.rf",
            axes=(*op.axes, kept),
            reduce_axes=reduce_axes,
            body=body,
            attrs=(),
        )
        load = Load(rf.name, tuple(a.var for a in rf.axes), rf.dtype)
        final = replace(op, reduce_axes=(kept,), body=load, attrs=())
        new = initial_stage(rf)
        if self.keep == "inner":
            n = len(op.axes)
            iters = (*new.iters[:n], *new.iters[n + 1 :], new.iters[n])
            new = replace(new, iters=iters)
        s = s.insert_before(self.stage, new)
        return check_locations(s.update(self.stage, lambda _: initial_stage(final)))


@dataclass(frozen=True)
class LayoutRewrite:
    """rewrite: x stored by dimensions -> x stored in the order in which loops of `reader` visit x.

    Condition: `reader` is the only reader of x, and each index of x is one axis of the reader. A
    computed x (a packing stage) gets the reader's tiles and loop order; a constant placeholder is
    packed when the kernel is bound. Example: `LayoutRewrite("B", "C")`.
    """

    tag: ClassVar[str] = "layout_rewrite"
    tensor: str
    reader: str

    def apply(self, s: Schedule) -> Schedule:
        if [r.name for r in s.readers(self.tensor)] != [self.reader]:
            raise ScheduleError(
                f"cannot rewrite the layout of {self.tensor}: {self.reader} is not the only reader"
            )
        reader, source = s[self.reader], s[self.tensor]
        axes = packed_axes(reader, source)
        if source.has_loops:
            own = [a.name for a in source.compute.axes]
            for d, axis in enumerate(axes):
                if reader.factors(axis):
                    s = Split(self.tensor, own[d], reader.factors(axis)).apply(s)
            order = []
            for it in reader.iters:
                if it.axis in axes:
                    d = axes.index(it.axis)
                    order.append(f"{own[d]}.{it.level}" if it.split else own[d])
            s = Reorder(self.tensor, tuple(order)).apply(s)
        return s.update(self.tensor, lambda st: replace(st, packed_for=self.reader))


def packed_axes(reader: Stage, tensor: Stage) -> list[str]:
    """For each dimension of the tensor, the axis of the reader that indexes the dimension.

    Raises ScheduleError if the reader has several distinct reads of the tensor, or if an index is
    not one whole axis.
    """
    name = tensor.name
    found = {x.indices for x in loads(reader.compute.body) if x.tensor == name}
    if len(found) != 1:
        raise ScheduleError(
            f"cannot pack {name}: {reader.name} reads it in {len(found)} different ways"
        )
    axes: list[str] = []
    for d, (i, n) in enumerate(zip(next(iter(found)), tensor.op.extents, strict=True)):
        if not isinstance(i, Var) or i.name in axes:
            raise ScheduleError(
                f"cannot pack {name}: index {i} in {reader.name} is not an axis of its own"
            )
        extent = axis_of(reader.compute, i.name).extent
        if extent != n:
            raise ScheduleError(
                f"axis {i} of {reader.name} has extent {extent}, dimension {d} of {name} has {n}"
            )
        axes.append(i.name)
    return axes


ANNOTATION_KEYS = ("parallel", "lanes", "register", "unroll", "prefetch", "stream")


@dataclass(frozen=True)
class Annotate:
    """rewrite: loop `iterator` gets annotation `key` with an int, a knob, or a depth `knob>n`.

    Keys: see `ir.program`. Example: `Annotate("C", "j.2", "lanes", 8)`.
    """

    tag: ClassVar[str] = "annotate"
    stage: str
    iterator: str
    key: str
    value: Factor

    def apply(self, s: Schedule) -> Schedule:
        if self.key not in ANNOTATION_KEYS:
            raise ScheduleError(f"cannot annotate {self.stage}.{self.iterator}: key {self.key!r}")
        s[self.stage].position(self.iterator)
        note = (self.iterator, self.key, str(self.value))
        return s.update(self.stage, lambda st: replace(st, notes=(*st.notes, note)))


Step = (
    Split
    | FollowSplit
    | Reorder
    | ComputeAt
    | StoreAt
    | ComputeInline
    | PadInPlace
    | EvaluateAtBind
    | CacheWrite
    | CacheRead
    | Transpose
    | Rfactor
    | LayoutRewrite
    | Annotate
)
STEPS: tuple[type[Any], ...] = (
    Split,
    FollowSplit,
    Reorder,
    ComputeAt,
    StoreAt,
    ComputeInline,
    PadInPlace,
    EvaluateAtBind,
    CacheWrite,
    CacheRead,
    Transpose,
    Rfactor,
    LayoutRewrite,
    Annotate,
)


def step_to_json(step: Step) -> dict[str, Any]:
    """The step as {"step": tag, field: value, ...}, with lists for tuples."""
    out: dict[str, Any] = {"step": step.tag}
    for f in fields(step):
        value = getattr(step, f.name)
        out[f.name] = list(value) if isinstance(value, tuple) else value
    return out


def step_from_json(data: Mapping[str, Any]) -> Step:
    """The inverse of `step_to_json`; ScheduleError names an unknown tag, field or value."""
    for cls in STEPS:
        if cls.tag == data.get("step"):
            given = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
            given.pop("step")
            check_fields(cls, given)
            step: Step = cls(**given)
            return step
    raise ScheduleError(f"unknown schedule step {str(data.get('step'))[:40]!r}")
