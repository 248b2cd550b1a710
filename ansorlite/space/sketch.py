"""Sketches (step `sketch` of the flow): ComputeDAG -> complete programs with holes.

The rules give the structures; packing and compute locations give variants of each; annotation opens
the remaining holes. A `Sketch` is lowered once, on first use.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.errors import ScheduleError
from ansorlite.ir.expr import Const, Load, Op
from ansorlite.ir.program import Program
from ansorlite.ir.traverse import loads
from ansorlite.schedule.holes import Hole, row_values, values_row
from ansorlite.schedule.lower import fill, lower
from ansorlite.schedule.naming import canonical_names
from ansorlite.schedule.pads import PadInPlace, window_axes
from ansorlite.schedule.stage import Stage
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import (
    CacheRead,
    ComputeAt,
    ComputeInline,
    EvaluateAtBind,
    LayoutRewrite,
    Rfactor,
    Step,
    packed_axes,
    step_to_json,
)
from ansorlite.space.annotate import annotate
from ansorlite.space.rows import fuse_rows
from ansorlite.space.rules import SKETCH_RULES, SketchRule, derive
from ansorlite.space.transpose_narrow import turned
from ansorlite.target import Target
from ansorlite.te.access import is_strictly_inlineable
from ansorlite.te.dag import ComputeDAG
from ansorlite.te.tensor import ComputeOp

MAX_SKETCHES = 48  # of one task, about, shared by its structures
FEW = 2  # variants of a structure with factored reductions, where there are others


@dataclass(frozen=True)
class SpaceOptions:
    """What belongs to the search space of a task; `tune` and `auto_schedule` take it as `space`.

    `rules` are asked at every stage in their order; a rule of one's own stands in the same tuple:
    `SpaceOptions(rules=(my_rule, *SKETCH_RULES))`, see `scripts/examples/04_custom_sketch_rule.py`.
    All other fields go beyond the sketches of the paper: `folding` evaluates stages of constants at
    bind, inlines copies and pads, and turns narrow stages, before the rules; `packing` stores
    operands in the order in which they are read; `locations` tries other compute locations.
    At most about `max_sketches` sketches are made.
    """

    folding: bool = True
    packing: bool = True
    locations: bool = True
    rules: tuple[SketchRule, ...] = SKETCH_RULES
    max_sketches: int = MAX_SKETCHES


@dataclass(frozen=True)
class Sketch:
    """A program with holes: `name` is unique in its task, `fired` the rules that made it."""

    name: str
    state: State
    fired: tuple[str, ...] = ()
    beyond: bool = field(default=False)  # not among the sketches of the paper

    @property
    def holes(self) -> tuple[Hole, ...]:
        return self.state.holes

    @cached_property
    def program(self) -> Program:
        """Lowered once, with its holes open."""
        return lower(self.state)

    def fill(self, row: npt.ArrayLike) -> Program:
        """The concrete program of one row of option indices."""
        return fill(self.program, self.values(row))

    def values(self, row: npt.ArrayLike) -> dict[str, tuple[int, ...]]:
        return row_values(self.holes, row)

    def row(self, values: Mapping[str, tuple[int, ...]]) -> npt.NDArray[np.int32]:
        return values_row(self.holes, values)

    def sample(self, n: int, rng: np.random.Generator) -> npt.NDArray[np.int32]:
        """int32[n, holes]: option indices drawn uniformly."""
        sizes = [len(h.options) for h in self.holes]
        return rng.integers(0, np.asarray(sizes), size=(n, len(sizes))).astype(np.int32)

    def __str__(self) -> str:
        holes = "".join(f"  {h}\n" for h in self.holes)
        return f"sketch {self.name} ({', '.join(self.fired) or 'no rule'})\n{holes}{self.program}"


def sketches(dag: ComputeDAG, target: Target, options: SpaceOptions | None = None) -> list[Sketch]:
    """All sketches of a DAG: each derived structure, then its variants."""
    opts = options or SpaceOptions()
    out: list[Sketch] = []
    derived = [
        (state, fired, more)
        for start, more in _starts(dag, target, opts)
        for state, fired in derive(start, target, opts.rules)
    ]
    # Factored reductions multiply the structures and gain little from variants.
    factored = [n for n, (s, _, _) in enumerate(derived) if _is_factored(s)]
    others = len(derived) - len(factored)
    share = max(4, (opts.max_sketches - FEW * len(factored)) // max(1, others))
    for n, (state, fired, more) in enumerate(derived):
        count = FEW if n in factored and others else share
        for label, variant, beyond in islice(_variants(state, opts, target), count):
            ready = annotate(variant, target)
            out.append(Sketch(f"s{n}{label}", ready, fired, beyond or more))
    return out


def _is_factored(state: State) -> bool:
    return any(isinstance(step, Rfactor) for step in state.steps)


def constants_evaluated(state: State) -> State:
    """The state whose stages of constants are computed when the kernel is bound."""
    for s in state.schedule.stages:
        inner = not s.is_placeholder and s.name not in state.dag.output_names
        if inner and loads(s.compute.body) and state.schedule.is_constant(s.name):
            state = state.apply(EvaluateAtBind(s.name))
    return state


def _starts(dag: ComputeDAG, target: Target, opts: SpaceOptions) -> Iterator[tuple[State, bool]]:
    """States that the rules start from, and whether the paper does not have them."""
    state = State(dag)
    if not opts.folding:
        yield state, False
        return
    state = constants_evaluated(state)
    yield state, False
    across = turned(state, target)
    if across is not None:
        yield across, True
    copies = [
        s.name
        for s in state.schedule.stages
        if s.has_loops and s.name not in dag.output_names and _is_copy(s.compute)
    ]
    scalar = [name for name in copies if not _read_in_vectors(state, name)]
    pads = [
        s.name
        for s in state.schedule.stages
        if s.has_loops and s.name not in dag.output_names and _is_pad_in_place(state, s)
    ]
    windows = [
        PadInPlace(name, axes)
        for name in pads
        if (axes := window_axes(state.schedule[name].compute, _reading(state, name)))
    ]
    if windows:
        yield state.apply(*map(ComputeInline, scalar), *windows), True
    for names in dict.fromkeys((tuple(copies), tuple(scalar), (*scalar, *pads))):
        if names:
            yield state.apply(*map(ComputeInline, names)), True


def _reading(state: State, name: str) -> list[ComputeOp]:
    return [r.compute for r in state.schedule.readers(name)]


def _is_copy(op: ComputeOp) -> bool:
    """A tensor's elements in another order: the rules inline it only if the order is the same."""
    return isinstance(op.body, Load) and not op.combiner and not is_strictly_inlineable(op)


def _is_pad_in_place(state: State, s: Stage) -> bool:
    """Is it `select(inside, x, fill)` with the test the same for all lanes of whoever reads it?

    Then its readers can have the elements, or the fill, from where they lie.
    """
    body = s.compute.body
    if s.compute.combiner or not (isinstance(body, Op) and body.name == "select"):
        return False
    test, x, fill = body.args
    if not (isinstance(x, Load) and isinstance(fill, Const)) or loads(test):
        return False
    tested = [d for d, a in enumerate(s.compute.axes) if a.name in test.free]
    for r in state.schedule.readers(s.name):
        if not r.compute.axes:
            return False
        last = r.compute.axes[-1].name
        for read in loads(r.compute.body):
            if read.tensor == s.name and any(last in read.indices[d].free for d in tested):
                return False
    return True


def _variants(
    state: State, opts: SpaceOptions, target: Target
) -> Iterator[tuple[str, State, bool]]:
    """Packing and compute-location variants of a derived state, the plain one first."""
    base = _pack_constants(state) if opts.packing else state
    yield "", base, False
    packed = [*_pack_operands(base)] if opts.packing else []
    for label, s in packed:
        yield label, s, True
    if opts.locations and not _is_factored(state):
        rows = fuse_rows(base, target) or fuse_rows(state, target)
        if rows is not None:
            yield "-rows", rows, True
    if opts.locations:
        starts = [("", base), *packed]
        for label, s in _locations(starts):
            yield label, s, True


def _read_in_vectors(state: State, name: str) -> bool:
    """Does a reader's last axis, which becomes its vectors, move the tensor?"""
    return any(
        x.tensor == name and r.compute.axes[-1].name in x.free
        for r in state.schedule.readers(name)
        for x in loads(r.compute.body)
    )


def _tiled(state: State) -> list[Stage]:
    return [s for s in state.schedule.stages if s.has_loops and s.tiling and s.leader is None]


def _read_by(state: State, s: Stage) -> list[str]:
    """The tensors that a stage reads, in the DAG's order, which no name has a part in."""
    read = {x.tensor for x in loads(s.compute.body)}
    return [other.name for other in state.schedule.stages if other.name in read]


def _packable(state: State, tensor: str, reader: Stage) -> bool:
    if [r.name for r in state.schedule.readers(tensor)] != [reader.name]:
        return False
    try:
        axes = packed_axes(reader, state.schedule[tensor])
    except ScheduleError:
        return False
    return any(reader.factors(a) for a in axes)


def _pack_constants(state: State) -> State:
    """Constants read by a tiled stage are stored in the order in which it reads them."""
    for s in _tiled(state):
        for tensor in _read_by(state, s):
            known = not state.schedule[tensor].has_loops and state.schedule.is_constant(tensor)
            if known and _packable(state, tensor, s):
                state = state.apply(LayoutRewrite(tensor, s.name))
    return state


def _pack_operands(state: State) -> Iterator[tuple[str, State]]:
    """Inputs of a tiled stage are packed beforehand: what moves with its vectors, others, both."""
    for s in _tiled(state):
        tiled = [a.name for a in s.compute.axes if s.factors(a.name)]
        found: list[tuple[bool, str]] = []
        for tensor in _read_by(state, s):
            source = state.schedule[tensor]
            if not source.is_placeholder or source.packed_for or not tiled:
                continue
            try:
                axes = packed_axes(s, source)
            except ScheduleError:
                continue
            if len(axes) > 1 and any(a in tiled for a in axes):
                found.append((tiled[-1] not in axes, tensor))
        names = [tensor for _, tensor in sorted(found, key=lambda f: f[0])]
        for group in [*([n] for n in names), *([names] if len(names) == 2 else [])]:
            packed = state
            for tensor in group:
                packed = packed.apply(CacheRead(tensor, s.name))
                packed = packed.apply(LayoutRewrite(f"{tensor}.packed", s.name))
            yield "".join(f"+{n}.packed" for n in group), packed


def _packing_places(state: State, s: Stage) -> list[tuple[str, str]]:
    """(stage, iterator) where the largest and the smallest part read more than once is packed."""
    schedule = state.schedule
    reader = schedule[s.packed_for or ""]
    axes = packed_axes(reader, s)
    nest: list[tuple[str, str, bool, bool]] = []  # stage, iterator, moves it, is register tile
    covered: dict[str, int] = {}
    if isinstance(reader.location, tuple):
        around = schedule[reader.location[0]]
        if around.leader != reader.name or around.location != "root":
            return []
        follows = {
            b.name: a.name for a, b in zip(reader.compute.axes, around.compute.axes, strict=True)
        }
        for it in around.iters[: around.position(reader.location[1]) + 1]:
            axis = follows.get(it.axis, "")
            covered[axis] = covered.get(axis, 0) + 1
            nest.append((around.name, it.name, axis in axes, False))
    for it in reader.iters:
        if it.level >= covered.get(it.axis, 0):
            last = not it.reduce and it.level == len(reader.factors(it.axis))
            nest.append((reader.name, it.name, it.axis in axes, last))
    places = [
        (stage, iterator)
        for p, (stage, iterator, moves, _) in enumerate(nest)
        if moves and any(not m and not register for _, _, m, register in nest[p + 1 :])
    ]
    return list(dict.fromkeys([*places[:1], *places[-1:]]))


def location_candidates(state: State, name: str) -> list[tuple[str, str]]:
    """(stage, iterator) where an untiled root stage may be computed (reference: Ansor's list)."""
    schedule = state.schedule
    s = schedule[name]
    if s.is_placeholder or s.location != "root" or name in schedule.outputs:
        return []
    if s.packed_for is not None:
        return _packing_places(state, s)
    if s.tiling:
        return []
    targets = {_root_of(state, r) for r in schedule.readers(name)}
    if len(targets) != 1:
        return []
    target = schedule[targets.pop()]
    first_reduce = target.first_reduce
    tiled = bool(target.tiling)
    out: list[tuple[str, str]] = []
    for p, it in enumerate(target.iters):
        if not tiled and it.reduce:
            break
        if tiled and not it.reduce and p > first_reduce:
            break
        if any(a.name == it.axis and str(a.extent) == "1" for a in target.compute.axes):
            continue
        out.append((target.name, it.name))
        if schedule.attached(target.name, it.name):
            break
    return out


def _root_of(state: State, s: Stage) -> str:
    while isinstance(s.location, tuple):
        s = state.schedule[s.location[0]]
    return s.name


def _locations(starts: list[tuple[str, State]]) -> Iterator[tuple[str, State]]:
    """Breadth first: one stage moved, then two, ...; each legal state once."""
    seen: set[tuple[Any, ...]] = set()
    work = list(starts)
    while work:
        label, state = work.pop(0)
        for s in reversed(state.schedule.stages):
            for target, iterator in location_candidates(state, s.name):
                try:
                    moved = state.apply(ComputeAt(s.name, target, iterator))
                    lower(replace(moved, holes=state.holes))
                except ScheduleError:
                    continue
                key = tuple(sorted(map(str, moved.steps)))
                if key in seen:
                    continue
                seen.add(key)
                new = (f"{label}@{s.name}:{iterator}", moved)
                yield new
                work.append(new)


# ---- recorded steps -----------------------------------------------------------------------------


def sketch_of(
    dag: ComputeDAG,
    target: Target,
    steps: Sequence[Mapping[str, Any]],
    options: SpaceOptions | None = None,
) -> Sketch | None:
    """The sketch that has these canonical steps (see `schedule.naming`); None if none has.

    Steps are data of any kind: they are compared with those that rules, packing, locations and
    annotation make, and never run. The sketch need not be among the first of its structure, as
    those of `sketches` are: only what the steps agree with so far is followed, which takes a tenth
    of the time that making all sketches does.
    """
    wanted = _Wanted(dag, steps)
    given = options or SpaceOptions()
    n = 0
    for opts in (given, replace(given, folding=not given.folding)):
        for start, more in _starts(dag, target, opts):
            for state, fired in derive(start, target, opts.rules):
                for label, base in _bases(state, target) if wanted.begins(state) else ():
                    found = _located(wanted, label, base, target)
                    if found is not None:
                        return Sketch(f"s{n}{found[0]}", found[1], fired, more or bool(found[0]))
                n += 1
    return None


class _Wanted:
    """Canonical steps of a record, with which steps of states are compared."""

    def __init__(self, dag: ComputeDAG, steps: Sequence[Mapping[str, Any]]) -> None:
        self._names = canonical_names(dag)
        self._steps = tuple(steps)
        self._own: dict[Step, Any] = {}

    def begins(self, state: State) -> bool:
        """Are the steps of the state the first ones?"""
        own = state.steps
        return len(own) <= len(self._steps) and all(self.has(s, k) for k, s in enumerate(own))

    def ends(self, state: State) -> bool:
        """Are the steps of the state all of them?"""
        return len(state.steps) == len(self._steps) and self.begins(state)

    def has(self, step: Step, place: int) -> bool:
        if step not in self._own:
            self._own[step] = self._names.frozen((step_to_json(step),))[0]
        return place < len(self._steps) and bool(self._own[step] == self._steps[place])


def _bases(state: State, target: Target) -> Iterator[tuple[str, State]]:
    """A derived state and what `_variants` may move stages in, with its label."""
    packed = _pack_constants(state)
    yield "", state
    yield "", packed
    yield from _pack_operands(packed)
    for base in (packed, state):
        rows = fuse_rows(base, target)
        if rows is not None:
            yield "-rows", rows


def _located(wanted: _Wanted, label: str, state: State, target: Target) -> tuple[str, State] | None:
    """(label, annotated state) after the moves of stages that are wanted; None if there is none."""
    if not wanted.begins(state):
        return None
    ready = annotate(state, target)
    if wanted.ends(ready):
        return label, ready
    for s in state.schedule.stages:
        for at in location_candidates(state, s.name):
            step = ComputeAt(s.name, *at)
            if wanted.has(step, len(state.steps)):
                try:
                    moved = state.apply(step)
                except ScheduleError:
                    return None
                return _located(wanted, f"{label}@{s.name}:{at[1]}", moved, target)
    return None
