"""Sketches (step `sketch` of the flow): ComputeDAG -> programs with holes.

The rules derive structures; packing and compute locations give variants of each structure;
annotation opens the remaining holes. A `Sketch` is lowered once, on first use.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.errors import ScheduleError
from ansorlite.ir.expr import Load
from ansorlite.ir.program import Program
from ansorlite.ir.traverse import loads, tensors_read
from ansorlite.schedule.holes import Hole, row_values, values_row
from ansorlite.schedule.lower import check, fill, lower
from ansorlite.schedule.naming import canonical_names
from ansorlite.schedule.pads import PadInPlace, window_axes
from ansorlite.schedule.stage import Stage
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import (
    Annotate,
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
from ansorlite.space.anchors import fuse_anchors, keeps_rows
from ansorlite.space.annotate import annotate
from ansorlite.space.legality import Legality
from ansorlite.space.rows import fuse_rows
from ansorlite.space.rules import SKETCH_RULES, SketchRule, derive
from ansorlite.space.tile_blocks import fuse_tiles
from ansorlite.space.transpose_narrow import transpose_narrow
from ansorlite.target import Target
from ansorlite.te.access import is_strictly_inlineable
from ansorlite.te.dag import ComputeDAG
from ansorlite.te.tensor import ComputeOp
from ansorlite.te.work import pad_of

MAX_SKETCHES = 48  # target number of sketches per task, divided among its structures
ROWS = "-rows"  # in the names of sketches whose stages are fused over rows
TILES = "-tiles"  # likewise, over tiles of transforms
CHANNELS = "-channels"  # likewise, over tiles and channels
FUSION = "fuse_anchors"  # in `Sketch.fired`
FACTORED_VARIANTS = 2  # variants of a structure with rfactor, if there are other structures


@dataclass(frozen=True)
class SpaceOptions:
    """The search space of a task; `tune` and `auto_schedule` take it as `space`.

    All fields but `rules` go beyond the sketches of the paper:
    - `rules`: the sketch rules, asked at every stage in their order; a rule of one's own stands in
      the same tuple, see `scripts/examples/04_custom_sketch_rule.py`
    - `folding`: before the rules, evaluate constant stages at bind, inline copies and pads,
      transpose narrow stages
    - `packing`: pack operands in the loop order of their reader
    - `locations`: variants of compute locations
    - `apart`: where sketches fuse several anchors, also those that do not
    - `max_sketches`: target number of sketches

    Example: `SpaceOptions(packing=False, rules=(my_rule, *SKETCH_RULES))`.
    """

    folding: bool = True
    packing: bool = True
    locations: bool = True
    apart: bool = True
    rules: tuple[SketchRule, ...] = SKETCH_RULES
    max_sketches: int = MAX_SKETCHES


@dataclass(frozen=True)
class Sketch:
    """A program with holes. `name` is unique in its task; `fired` lists the rules applied.

    Example: `s = sketches(dag, target)[0]; program = s.fill(s.sample(1, rng)[0]); print(program)`.
    """

    name: str
    state: State
    fired: tuple[str, ...] = ()
    beyond_paper: bool = field(default=False)  # not a sketch of the paper

    @property
    def holes(self) -> tuple[Hole, ...]:
        """The open holes; a row has one option index per hole."""
        return self.state.holes

    @cached_property
    def program(self) -> Program:
        """The program with open holes, lowered on first use."""
        return lower(self.state)

    @cached_property
    def pattern(self) -> "Pattern":
        """What the sketch has in common with those of computations that differ by extents alone."""
        return _texts_of(self.state.dag).own(self.state)

    def legality(self, target: Target) -> Legality:
        """What makes its candidates legal; made once for a target."""
        known: dict[Target, Legality] = self.__dict__.setdefault("_legality", {})
        if target not in known:
            known[target] = Legality(self.program, target)
        return known[target]

    def fill(self, row: npt.ArrayLike) -> Program:
        """The concrete program for one row of option indices, int[holes]."""
        return fill(self.program, self.values(row))

    def values(self, row: npt.ArrayLike) -> dict[str, tuple[int, ...]]:
        """Hole values by name for one row of option indices; ScheduleError for a wrong length."""
        return row_values(self.holes, row)

    def row(self, values: Mapping[str, tuple[int, ...]]) -> npt.NDArray[np.int32]:
        """int32[holes]: the row with these hole values; ScheduleError if a value is no option."""
        return values_row(self.holes, values)

    def sample(self, n: int, rng: np.random.Generator) -> npt.NDArray[np.int32]:
        """int32[n, holes]: option indices drawn uniformly."""
        sizes = [len(h.options) for h in self.holes]
        return rng.integers(0, np.asarray(sizes), size=(n, len(sizes))).astype(np.int32)

    def __str__(self) -> str:
        holes = "".join(f"  {h}\n" for h in self.holes)
        return f"sketch {self.name} ({', '.join(self.fired) or 'no rule'})\n{holes}{self.program}"


def sketches(dag: ComputeDAG, target: Target, options: SpaceOptions | None = None) -> list[Sketch]:
    """All sketches of a DAG: each derived structure, followed by its variants.

    Example: `for s in sketches(task.dag, task.target): print(s)`.
    """
    opts = options or SpaceOptions()
    out = [
        Sketch(name, annotate(state, target), (FUSION,), True)
        for name, state in _fused(dag, target, opts)
    ]
    if out and not opts.apart:
        return out
    derived = [
        (state, fired, beyond_start)
        for start, beyond_start in _starts(dag, target, opts)
        for state, fired in derive(start, target, opts.rules)
    ]
    # Structures with rfactor are numerous and gain little from variants.
    factored = [n for n, (s, _, _) in enumerate(derived) if _is_factored(s)]
    unfactored = len(derived) - len(factored)
    share = max(4, (opts.max_sketches - FACTORED_VARIANTS * len(factored)) // max(1, unfactored))
    for n, (state, fired, beyond_start) in enumerate(derived):
        count = FACTORED_VARIANTS if n in factored and unfactored else share
        for label, variant, beyond_paper in islice(_variants(state, opts, target), count):
            ready = annotate(variant, target)
            out.append(Sketch(f"s{n}{label}", ready, fired, beyond_paper or beyond_start))
    return out


def _fused(dag: ComputeDAG, target: Target, opts: SpaceOptions) -> Iterator[tuple[str, State]]:
    """(name, state before annotation) of the sketches that fuse several anchors; mostly none.

    Where rows can be kept that windows share, those that compute them again were never faster.
    """
    if opts.folding and opts.locations:
        starts = enumerate(_starts(dag, target, opts))
        every = [(n, *way) for n, (start, _) in starts for way in fuse_anchors(start, target)]
        kept = [way for way in every if keeps_rows(way[1])]
        for n, label, state in kept or every:
            yield f"f{n}{label}", state


def fuses_anchors(name: str) -> bool:
    """True for the name of a sketch that fuses several anchors, as records have it."""
    return re.match(r"f\d+-", name) is not None


def _is_factored(state: State) -> bool:
    """True if the state contains an rfactor."""
    return any(isinstance(step, Rfactor) for step in state.steps)


def constants_evaluated(state: State) -> State:
    """The state whose constant stages are computed when the kernel is bound."""
    for s in state.schedule.stages:
        inner = not s.is_placeholder and s.name not in state.dag.output_names
        if inner and loads(s.compute.body) and state.schedule.is_constant(s.name):
            state = state.apply(EvaluateAtBind(s.name))
    return state


def _starts(dag: ComputeDAG, target: Target, opts: SpaceOptions) -> Sequence[tuple[State, bool]]:
    """(initial state for the rules, goes beyond the paper), in order."""
    return _folded(dag, target) if opts.folding else [(State(dag), False)]


@lru_cache(maxsize=16)
def _folded(dag: ComputeDAG, target: Target) -> Sequence[tuple[State, bool]]:
    """`_starts` with folding, which sketches of a task and of patterns begin with."""
    return tuple(_foldings(dag, target))


def _foldings(dag: ComputeDAG, target: Target) -> Iterator[tuple[State, bool]]:
    state = State(dag)
    state = constants_evaluated(state)
    yield state, False
    transposed = transpose_narrow(state, target)
    if transposed is not None:
        yield transposed, True
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
            with suppress(ScheduleError):  # inlining may exceed the size limit
                yield state.apply(*map(ComputeInline, names)), True


def _reading(state: State, name: str) -> list[ComputeOp]:
    """The operations that read a stage."""
    return [r.compute for r in state.schedule.readers(name)]


def _is_copy(op: ComputeOp) -> bool:
    """True for a copy that reorders elements, which the rule AlwaysInline does not inline."""
    return isinstance(op.body, Load) and not op.combiner and not is_strictly_inlineable(op)


def _is_pad_in_place(state: State, s: Stage) -> bool:
    """True for `select(inside, x, fill)` with the same condition for all lanes of every reader.

    Such a pad can be inlined: the readers load the elements of x, or use the fill value.
    """
    pad = pad_of(s.compute)
    if pad is None:
        return False
    test = pad.cond
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
    """(label, state, beyond the paper) of packing and location variants, the plain one first."""
    base = _pack_constants(state) if opts.packing else state
    yield "", base, False
    for label, tiles in _in_blocks(base) if opts.locations else ():
        yield label, tiles, True
    packed = [*_pack_operands(base)] if opts.packing else []
    for label, s in packed:
        yield label, s, True
    if opts.locations and not _is_factored(state):
        rows = fuse_rows(base, target) or fuse_rows(state, target)
        if rows is not None:
            yield ROWS, rows, True
    if opts.locations:
        starts = [("", base), *packed]
        for label, s in _locations(starts):
            yield label, s, True


def _read_in_vectors(state: State, name: str) -> bool:
    """True if a reader's last axis, which becomes its vector axis, moves the tensor."""
    return any(
        x.tensor == name and r.compute.axes[-1].name in x.free
        for r in state.schedule.readers(name)
        for x in loads(r.compute.body)
    )


def _tiled(state: State) -> list[Stage]:
    """The tiled stages that do not follow another stage."""
    return [s for s in state.schedule.stages if s.has_loops and s.tiling and s.leader is None]


def _read_by(state: State, s: Stage) -> list[str]:
    """The tensors that a stage reads, in the order of the DAG, independent of names."""
    read = tensors_read(s.compute.body)
    return [stage.name for stage in state.schedule.stages if stage.name in read]


def _packable(state: State, tensor: str, reader: Stage) -> bool:
    """True if the tensor has one reader, and a split axis of the reader indexes the tensor."""
    if [r.name for r in state.schedule.readers(tensor)] != [reader.name]:
        return False
    try:
        axes = packed_axes(reader, state.schedule[tensor])
    except ScheduleError:
        return False
    return any(reader.factors(a) for a in axes)


def _pack_constants(state: State) -> State:
    """The state whose constants are stored in the loop order of their tiled reader."""
    for s in _tiled(state):
        for tensor in _read_by(state, s):
            known = not state.schedule[tensor].has_loops and state.schedule.is_constant(tensor)
            if known and _packable(state, tensor, s):
                state = state.apply(LayoutRewrite(tensor, s.name))
    return state


def _pack_operands(state: State) -> Iterator[tuple[str, State]]:
    """Variants with packed inputs of a tiled stage: operands of the vector axis, others, both."""
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
    """(stage, iterator) of the outermost and innermost useful attach points of a packing stage.

    Useful attach points: the loop moves the packed tensor, and some inner loop outside the register
    tile reads the packed part again.
    """
    schedule = state.schedule
    reader = schedule[s.packed_for or ""]
    axes = packed_axes(reader, s)
    # (stage, iterator, moves the tensor, is register tile)
    nest: list[tuple[str, str, bool, bool]] = []
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
    """(stage, iterator) where an untiled stage at root may be computed (Ansor's list)."""
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
    """The name of the stage at root that contains the stage."""
    while isinstance(s.location, tuple):
        s = state.schedule[s.location[0]]
    return s.name


def _locations(starts: list[tuple[str, State]]) -> Iterator[tuple[str, State]]:
    """Breadth-first enumeration of compute locations: one stage moved, then two, ..."""
    seen: set[tuple[Any, ...]] = set()
    work = list(starts)
    while work:
        label, state = work.pop(0)
        for s in reversed(state.schedule.stages):
            for target, iterator in location_candidates(state, s.name):
                step = ComputeAt(s.name, target, iterator)
                key = tuple(sorted([*map(str, state.steps), str(step)]))
                if key in seen:  # the same moves in another order
                    continue
                seen.add(key)
                try:
                    moved = state.apply(step)
                    check(moved)
                except ScheduleError:
                    continue
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
    """The sketch with these canonical steps (see `schedule.naming`); None if no sketch has them.

    Steps are untrusted data: they are compared with the steps that the space generates, and never
    executed. The sketch may lie beyond the first `max_sketches`. Only states that agree with the
    steps so far are followed, which takes a tenth of the time of generating all sketches.
    """
    wanted = _RecordedSteps(dag, steps)
    given = options or SpaceOptions()
    n = 0
    for name, state in _fused(dag, target, replace(given, folding=True)):
        if wanted.begins(state):
            ready = annotate(state, target)
            if wanted.ends(ready):
                return Sketch(name, ready, (FUSION,), True)
    for opts in (given, replace(given, folding=not given.folding)):
        for start, beyond_start in _starts(dag, target, opts):
            for state, fired in derive(start, target, opts.rules):
                for label, base in _bases(state, target) if wanted.begins(state) else ():
                    found = _located(wanted, label, base, target)
                    if found is not None:
                        return Sketch(
                            f"s{n}{found[0]}", found[1], fired, beyond_start or bool(found[0])
                        )
                n += 1
    return None


class _RecordedSteps:
    """The canonical steps of a record, compared with the steps of states."""

    def __init__(self, dag: ComputeDAG, steps: Sequence[Mapping[str, Any]]) -> None:
        self._names = canonical_names(dag)
        self._steps = tuple(steps)
        self._own: dict[Step, Any] = {}

    def begins(self, state: State) -> bool:
        """True if the steps of the state are a prefix of the wanted steps."""
        own = state.steps
        return len(own) <= len(self._steps) and all(self.has(s, k) for k, s in enumerate(own))

    def ends(self, state: State) -> bool:
        """True if the steps of the state are the wanted steps."""
        return len(state.steps) == len(self._steps) and self.begins(state)

    def has(self, step: Step, place: int) -> bool:
        """True if the wanted step at position `place` is `step`."""
        if step not in self._own:
            self._own[step] = self._names.frozen((step_to_json(step),))[0]
        return place < len(self._steps) and bool(self._own[step] == self._steps[place])


def _bases(state: State, target: Target) -> Iterator[tuple[str, State]]:
    """(label, state): a derived state and the states in which `_variants` moves stages."""
    packed = _pack_constants(state)
    yield "", state
    yield "", packed
    yield from _pack_operands(packed)
    for base in (packed, state):
        rows = fuse_rows(base, target)
        if rows is not None:
            yield ROWS, rows
        yield from _in_blocks(base)


def _in_blocks(state: State) -> Iterator[tuple[str, State]]:
    """(label, state) of the stages of transforms in blocks."""
    for label in (TILES, CHANNELS):
        found = fuse_tiles(state, channels=label == CHANNELS)
        if found is not None:
            yield label, found


def _located(
    wanted: _RecordedSteps, label: str, state: State, target: Target
) -> tuple[str, State] | None:
    """(label, annotated state) after the wanted compute locations; None if there is none."""
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


# ---- sketches of similar computations -----------------------------------------------------------

Pattern = tuple[str, ...]  # canonical steps without `Annotate`, which may depend on extents


@lru_cache(maxsize=64)
def _texts_of(dag: ComputeDAG) -> "_Patterns":
    return _Patterns(dag, ())


def sketches_alike(
    dag: ComputeDAG,
    target: Target,
    patterns: Sequence[Pattern],
    options: SpaceOptions | None = None,
) -> list[Sketch | None]:
    """The sketches of a DAG with these patterns, None where it has none; `sketches` makes all.

    Only states that begin as a pattern does are followed, which takes a fraction of the time.
    """
    opts, wanted = options or SpaceOptions(), _Patterns(dag, patterns)
    found: dict[Pattern, Sketch] = {}
    for name, state in _fused(dag, target, opts):
        ready = annotate(state, target) if wanted.begins(state) else state
        if (pattern := wanted.own(ready)) in patterns:
            found.setdefault(pattern, Sketch(name, ready, (FUSION,), True))
    if len(found) == len(set(patterns)):
        return [found.get(p) for p in patterns]
    for start, beyond_start in _starts(dag, target, opts):
        if not wanted.begins(start):
            continue
        for state, fired in derive(start, target, opts.rules, wanted.begins):
            for label, base in _bases(state, target):
                for end, ready in wanted.located(label, base, target):
                    pattern, beyond = wanted.own(ready), beyond_start or bool(end)
                    if pattern not in found:
                        name = f"s{patterns.index(pattern)}{end}"
                        found[pattern] = Sketch(name, ready, fired, beyond)
                    if len(found) == len(patterns):
                        return [found[p] for p in patterns]
    return [found.get(p) for p in patterns]


class _Patterns:
    """Patterns of another DAG of the same structure, compared with the steps of states."""

    def __init__(self, dag: ComputeDAG, patterns: Sequence[Pattern]) -> None:
        self._names = canonical_names(dag)
        self._whole = set(patterns)
        self._beginnings = {p[:n] for p in patterns for n in range(len(p) + 1)}
        self._texts: dict[Step, Pattern] = {}

    def own(self, state: State) -> Pattern:
        """The pattern of a state."""
        return tuple(text for step in state.steps for text in self._text(step))

    def _text(self, step: Step) -> Pattern:
        """One text, or none for an annotation."""
        if step not in self._texts:
            plain = self._names.steps((step_to_json(step),))[0]
            note = isinstance(step, Annotate)
            self._texts[step] = () if note else (json.dumps(plain, sort_keys=True),)
        return self._texts[step]

    def begins(self, state: State) -> bool:
        """Does a pattern begin with the steps of the state?"""
        return self.own(state) in self._beginnings

    def located(self, label: str, state: State, target: Target) -> Iterator[tuple[str, State]]:
        """(label, annotated state) after compute locations that give one of the patterns."""
        own = self.own(state)
        if own not in self._beginnings:
            return
        ready = annotate(state, target)
        if self.own(ready) in self._whole:
            yield label, ready
        for s in state.schedule.stages:
            for at in location_candidates(state, s.name):
                step = ComputeAt(s.name, *at)
                if (*own, *self._text(step)) in self._beginnings:
                    with suppress(ScheduleError):
                        moved = state.apply(step)
                        yield from self.located(f"{label}@{s.name}:{at[1]}", moved, target)
