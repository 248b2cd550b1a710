"""`ConfigSpace`: what a schedule template writes on, in AutoTVM's terms (NeurIPS'18, section 2).

In: a `ComputeDAG` and a target. A template calls `define_split`, `define_reorder`, `define_knob`
and `define_annotate` and applies steps in between, a straight line. Out: a `State` with holes, the
same thing as a sketch, so that whatever lowers, scores, builds and measures sketches does so with
templates. Splits and annotations are holes; orders and knobs change the structure, so every
combination of them is a sketch of its own: the template is run once for each.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

from ansorlite.errors import ScheduleError
from ansorlite.ir.traverse import loads
from ansorlite.schedule.holes import (
    Hole,
    column,
    divisors,
    exact_options,
    reduce_options,
    sample_evenly,
    tile_options,
)
from ansorlite.schedule.stage import Stage
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import (
    Annotate,
    CacheRead,
    ComputeAt,
    ComputeInline,
    FollowSplit,
    LayoutRewrite,
    Reorder,
    Rfactor,
    Split,
    Step,
)
from ansorlite.space.annotate import annotate, lanes_hole
from ansorlite.space.plain import fixed_choice
from ansorlite.space.rows import fuse_rows
from ansorlite.space.rules import fusible_consumer, node_of
from ansorlite.space.sketch import constants_evaluated
from ansorlite.target import Target
from ansorlite.te.access import extent, has_data_reuse, is_strictly_inlineable
from ansorlite.te.dag import ComputeDAG
from ansorlite.te.work import body_flop

SplitPolicy = Literal["factors", "power2", "inexact"]
Annotation = Literal["vectorize", "unroll", "parallel", "register", "prefetch"]
MAX_FACTOR = 64
MAX_OPTIONS = 4096
UNROLL = ((0,), (16,), (64,))
AHEAD = ((0,), (8,), (32,))


class ConfigSpace:
    """The schedule of one template while it is written; `state` is what there is so far."""

    def __init__(self, dag: ComputeDAG, target: Target, taken: Sequence[int] = ()) -> None:
        self.target = target
        self.state = constants_evaluated(State(dag))
        self.asked: list[int] = []  # how many ways there were at each structural choice
        self.taken: list[int] = []  # and which one this run goes
        self._wanted = tuple(taken)
        self._knobs: set[str] = set()
        self._rest_open = False

    # ---- what there is --------------------------------------------------------------------------

    def stage(self, name: str) -> Stage:
        return self.state.schedule[name]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Those that have loops, producers first."""
        return tuple(s for s in self.state.schedule.stages if s.has_loops)

    @property
    def main(self) -> str:
        """The stage with the most arithmetic, of those with data reuse if there are any."""

        def work(s: Stage) -> float:
            axes = s.compute.axes + s.compute.reduce_axes
            return body_flop(s.compute) * math.prod(map(extent, axes))

        reusing = [s for s in self.stages if has_data_reuse(s.compute)]
        return max(reusing or self.stages, key=work).name

    def spatial(self, stage: str) -> list[str]:
        return [a.name for a in self.stage(stage).compute.axes]

    def reduction(self, stage: str) -> list[str]:
        return [a.name for a in self.stage(stage).compute.reduce_axes]

    def extent(self, stage: str, axis: str) -> int:
        op = self.stage(stage).compute
        return next(extent(a) for a in op.axes + op.reduce_axes if a.name == axis)

    # ---- what is left open ----------------------------------------------------------------------

    def define_split(
        self,
        stage: str,
        axis: str,
        parts: int = 2,
        policy: SplitPolicy = "factors",
        most: int = MAX_FACTOR,
    ) -> list[str]:
        """Split an axis into `parts` loops, outermost first; returns their names.

        "factors" are exact divisors, "power2" powers of two, "inexact" those tiles that waste
        little; `most` limits the innermost factor. An axis of extent 1 stays one loop.
        """
        n = self.extent(stage, axis)
        if parts < 2 or n == 1:
            return [axis]
        reduces = axis in self.reduction(stage)
        options = _split_options(n, parts - 1, policy, most, reduces)
        hole = Hole(f"{node_of(stage)}.{axis}", node_of(stage), "tile", options)
        self._open(hole)
        self.apply(Split(stage, axis, hole.columns))
        return [f"{axis}.{level}" for level in range(parts)]

    def define_reorder(self, stage: str, *orders: Sequence[str]) -> tuple[str, ...]:
        """Nest the loops of a stage in one of these orders, outermost first."""
        order = tuple(orders[self._choose(len(orders))])
        self.apply(Reorder(stage, order))
        return order

    def define_knob(self, values: Sequence[Any]) -> Any:
        """One of the values; each makes a structure of its own."""
        return values[self._choose(len(values))]

    def define_factor(self, stage: str, axis: str, keep: Literal["outer", "inner"]) -> None:
        """Reduce the parts of an axis apart, and then their results; how many is a knob."""
        n = self.extent(stage, axis)
        options = exact_options(n, n if keep == "outer" else MAX_FACTOR)
        hole = Hole(f"{stage}.rf.{axis}", stage, "factor", options)
        self._open(hole)
        self.apply(Rfactor(stage, axis, hole.columns[0], keep))

    def define_annotate(self, stage: str, loops: Sequence[str], how: Annotation) -> None:
        """Annotate loops; for "unroll", "prefetch" and "parallel" how far is a knob.

        "vectorize" takes one loop, with the target's vectors or half of them; "register" keeps the
        results of these loops in registers.
        """
        s, node = self.stage(stage), node_of(stage)
        match how:
            case "vectorize":
                (loop,) = loops
                n = self.extent(stage, s.iters[s.position(loop)].axis)
                hole = lanes_hole(node, n, s.compute.dtype, self.target)
                self._open(hole)
                self.apply(Annotate(stage, loop, "lanes", hole.columns[0]))
            case "register":
                self.apply(*(Annotate(stage, loop, "register", 1) for loop in loops))
            case "unroll":
                hole = Hole(f"{node}.unroll", node, "unroll", UNROLL)
                self._open(hole)
                self.apply(*(Annotate(stage, loop, "unroll", hole.columns[0]) for loop in loops))
            case "prefetch":
                hole = Hole(f"{node}.prefetch", node, "prefetch", AHEAD)
                self._open(hole)
                self.apply(*(Annotate(stage, loop, "prefetch", hole.columns[0]) for loop in loops))
            case "parallel":
                deep = tuple((d,) for d in range(1, len(loops) + 1))
                hole = Hole(f"{node}.parallel", node, "parallel", deep)
                self._open(hole)
                knob = column(hole.name, 1)
                notes = [
                    Annotate(stage, loop, "parallel", f"{knob}>{d}") for d, loop in enumerate(loops)
                ]
                self.apply(*notes)

    # ---- what is decided ------------------------------------------------------------------------

    def apply(self, *steps: Step) -> None:
        """Apply steps of `schedule.steps`; ScheduleError where one is illegal."""
        self.state = self.state.apply(*steps)

    def inline(self) -> None:
        """Inline every stage that costs nothing to compute where it is read."""
        for s in reversed(self.stages):
            if s.name in self.state.schedule.outputs or not is_strictly_inlineable(s.compute):
                continue
            with suppress(ScheduleError):  # where it would be too much
                self.apply(ComputeInline(s.name))

    def fuse_rows(self) -> bool:
        """Compute all stages for some rows of the output at a time; how many is a knob."""
        fused = fuse_rows(self.state, self.target)
        if fused is None:
            return False
        self._knobs |= {h.name for h in fused.holes}
        self.state = fused
        return True

    def leave_open(self) -> None:
        """What the template says nothing of (tiles, vectors, unrolling) is searched, too."""
        self._rest_open = True

    def pack(self, stage: str, tensor: str) -> bool:
        """Store an operand in the order in which `stage` reads it: constants ahead of time.

        Operands that are no constants are copied before the stage runs. False where that cannot be.
        """
        try:
            if self.state.schedule.is_constant(tensor) and not self.stage(tensor).has_loops:
                packed = self.state.apply(LayoutRewrite(tensor, stage))
            elif self.stage(tensor).is_placeholder:
                packed = self.state.apply(CacheRead(tensor, stage))
                packed = packed.apply(LayoutRewrite(f"{tensor}.packed", stage))
            else:
                return False
        except ScheduleError:
            return False
        self.state = packed
        return True

    def operands(self, stage: str) -> list[str]:
        """The tensors that a stage reads, in the DAG's order."""
        read = {x.tensor for x in loads(self.stage(stage).compute.body)}
        return [s.name for s in self.state.schedule.stages if s.name in read]

    def attach_to_consumer(self, stage: str, outer: Sequence[str]) -> bool:
        """Let the element-wise reader of a split stage take its tiles as they come.

        `outer` are the stage's spatial loops around a tile. False where there is no such reader.
        """
        s = self.stage(stage)
        consumer = fusible_consumer(self.state, s)
        if consumer is None:
            return False
        self.apply(FollowSplit(consumer.name, stage))
        follower = self.stage(consumer.name)
        own = {a.name: b.name for a, b in zip(s.compute.axes, consumer.compute.axes, strict=True)}
        first = [_renamed(loop, own) for loop in outer]
        rest = [it.name for it in follower.iters if it.name not in first]
        self.apply(Reorder(consumer.name, (*first, *rest)))
        self.apply(ComputeAt(stage, consumer.name, first[-1]))
        return True

    def finished(self) -> State:
        """The state with all that the template left open decided as the plain schedule does."""
        state = annotate(self.state, self.target)
        holes = []
        for h in state.holes:
            knob = self._rest_open or h.name in self._knobs or len(h.options) == 1
            holes.append(h if knob else replace(h, options=(fixed_choice(h, self.target),)))
        return replace(state, holes=tuple(holes))

    def _open(self, hole: Hole) -> None:
        self.state = self.state.open(hole)
        self._knobs.add(hole.name)

    def _choose(self, count: int) -> int:
        if count < 1:
            raise ScheduleError("a template offers a choice of nothing")
        place = len(self.asked)
        self.asked.append(count)
        self.taken.append(self._wanted[place] if place < len(self._wanted) else 0)
        return self.taken[-1]


def all_runs(
    write: Callable[[ConfigSpace], None], dag: ComputeDAG, target: Target
) -> Iterable[tuple[tuple[int, ...], State]]:
    """(structural choices, state) for every combination of them, the first one first."""
    work: list[tuple[int, ...]] = [()]
    while work:
        wanted = work.pop(0)
        cfg = ConfigSpace(dag, target, wanted)
        write(cfg)
        yield tuple(cfg.taken), cfg.finished()
        for place in range(len(wanted), len(cfg.asked)):
            work += [(*cfg.taken[:place], k) for k in range(1, cfg.asked[place])]


def _split_options(
    n: int, inner: int, policy: SplitPolicy, most: int, reduces: bool
) -> tuple[tuple[int, ...], ...]:
    if policy == "inexact":
        options_of = reduce_options if reduces else tile_options
        return options_of(n, inner, most)
    sizes = [d for d in divisors(n) if policy == "factors" or d & (d - 1) == 0]
    found: list[tuple[int, ...]] = [(d,) for d in sizes if d <= most]
    for _ in range(inner - 1):
        found = [(d, *rest) for rest in found for d in sizes if n % (d * math.prod(rest)) == 0]
    return sample_evenly(found, MAX_OPTIONS)


def _renamed(loop: str, axes: dict[str, str]) -> str:
    """The follower's loop for one of its leader."""
    axis, dot, level = loop.rpartition(".")
    return f"{axes[axis]}{dot}{level}" if axis in axes else axes.get(loop, loop)
