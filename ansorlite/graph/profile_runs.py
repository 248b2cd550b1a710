"""The runs behind a `Profile`: a network in place, untouched and with the clock, kernels alone.

In: a module and the arrays of a call. Out: a `Profile`. Each round runs the network untouched, then
with the clock around each step (times in place), then with the clock on each thread, too (waiting,
shares of steps that run together, and the trace): the same kernels, buffers, order and team. Rounds
follow one another without a pause; medians over the faster half of them count. Alone, a kernel runs
again and again on the data that it finds in the network, so caches know them.
"""

import math
from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ansorlite.calls import in_order
from ansorlite.codegen.openmp import max_threads
from ansorlite.codegen.stamps import REGION, StampedCalls, Stamps
from ansorlite.graph.linked import Bound, BoundCall
from ansorlite.graph.profile import KernelTime, Moved, Profile
from ansorlite.measure.limits import known_limits, task_roofs
from ansorlite.measure.peak import Peak
from ansorlite.search.arguments import check_whole
from ansorlite.search.result import why_above_limit
from ansorlite.tables import ABOVE_LIMIT
from ansorlite.target import Target
from ansorlite.task import SearchTask
from ansorlite.te.work import elements_read

if TYPE_CHECKING:
    from ansorlite.graph.module import CompiledModule

REPEATS = 20  # rounds
ALONE_S, ALONE_RUNS = 2e-3, 5  # a run of one kernel lasts so long, or is one call; runs
MOST_CALLS = 10_000  # in such a run

OWNER = 3  # column of a region: the number of its call

Seconds = npt.NDArray[np.float64]


def profile(
    module: "CompiledModule", args: Sequence[npt.ArrayLike], repeats: int, alone: bool
) -> Profile:
    """See `CompiledModule.profile`."""
    check_whole("repeats", repeats, 1)
    given = in_order(module.graph_inputs, args, {})
    module(*given)  # wrong inputs are told here
    calls_s = sorted(_seconds(lambda: module(*given)) for _ in range(repeats))
    with module.bound(given) as bound:
        rounds = _Rounds(bound)
        rounds.run(repeats)
        quiet, slower = rounds.quiet()
        in_place = np.median(np.array(rounds.in_place)[quiet], axis=0)
        alone_s: list[float | None] = [None] * len(bound.calls)
        if alone:
            alone_s = [*_alone(bound, in_place)]
    target = Target.detect()
    limits = known_limits(target)
    late, waiting = (
        np.median(np.array(x)[quiet], axis=0) * in_place for x in (rounds.late, rounds.waiting)
    )
    regions, threads = rounds.teams()
    rows = []
    for k, call in enumerate(bound.calls):
        moved = _moved(module, call)
        least_s, by, above = _limit(call, moved, target, limits)
        times = call.subgraph.times
        rows.append(
            KernelTime(
                name=call.subgraph.name,
                nodes=call.subgraph.nodes,
                times=times,
                in_place_s=float(in_place[k]),
                alone_s=alone_s[k],
                least_s=least_s * times,
                bound_by=by,
                flop=call.subgraph.dag.flop * times,
                moved=moved.of_steps(times),
                regions=int(regions[k]),
                threads=int(threads[k]),
                late_s=float(late[k]),
                waiting_s=float(waiting[k]),
                above=above,
            )
        )
    return Profile(
        network=module.partition.graph.name,
        cpu=target.cpu,
        threads=max_threads(),
        rounds=repeats,
        rows=tuple(rows),
        call_s=median(calls_s[: half(repeats)]),
        network_s=float(np.median(np.array(rounds.network_s)[quiet])),
        round_s=float(np.median(np.array(rounds.in_place)[quiet].sum(axis=1))),
        stamped_s=float(np.median(np.array(rounds.stamped_s)[quiet])),
        regions_s=float(np.median(np.array(rounds.regions_s)[quiet])),
        slower_rounds=slower,
        peak=limits if isinstance(limits, Peak) else limits.peak,
        calls=rounds.notes[0],
        regions=rounds.notes[1],
    )


def _seconds(run: Any) -> float:
    began = perf_counter()
    run()
    return perf_counter() - began


class _Rounds:
    """The rounds on bound arrays; rows of `in_place`, `late`, `waiting` are rounds.

    The latter two are shares of the kernel's time in the same round, so that a disturbed round
    weighs no more than others.
    """

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self.in_place: list[Seconds] = []
        self.late: list[Seconds] = []
        self.waiting: list[Seconds] = []
        self.network_s: list[float] = []
        self.stamped_s: list[float] = []
        self.regions_s: list[float] = []
        self.notes: tuple[Stamps, Stamps]
        self._stamped = StampedCalls(bound.sequence)
        self._noted = StampedCalls(bound.sequence, threads=True)

    def run(self, repeats: int) -> None:
        self._stamped.run()
        self._noted.run()
        for _ in range(repeats):
            self.bound.sequence.run()  # threads are awake, caches hold what a call leaves
            self.network_s.append(_seconds(self.bound.sequence.run))
            self.stamped_s.append(_seconds(self._stamped.run))
            self.regions_s.append(_seconds(self._noted.run))
            self._keep()

    def _keep(self) -> None:
        """Take over the notes of a round."""
        n = len(self.bound.calls)
        rows = self._stamped.rows_by(self._noted.work)
        noted, regions = self._noted.rows, self._noted.regions
        spent = (rows[:, 2] - rows[:, 1]) / 1e9
        self.in_place.append(np.bincount(rows[:, 0], spent, n).astype(np.float64))
        owner = regions[:, OWNER]
        whole = np.bincount(noted[:, 0], noted[:, 2] - noted[:, 1], n)
        for each, found in zip((self.late, self.waiting), idle(regions), strict=True):
            each.append(np.bincount(owner, found, n) / np.maximum(1, whole))
        if self.regions_s[-1] == min(self.regions_s):
            self.notes = noted.copy(), regions.copy()

    def quiet(self) -> tuple[npt.NDArray[np.intp], float]:
        """(the faster half of the rounds, how many times as long the others took in the median)."""
        total = np.sum([self.network_s, self.stamped_s, self.regions_s], axis=0)
        order = np.argsort(total, kind="stable")
        fast, slow = order[: half(len(order))], order[half(len(order)) :]
        if not len(slow):
            return fast, 1.0
        return fast, float(np.median(total[slow]) / np.median(total[fast]))

    def teams(self) -> tuple[Stamps, Stamps]:
        """(regions, most threads of one) of each call."""
        n = len(self.bound.calls)
        _, regions = self.notes
        owner, most = regions[:, OWNER], np.ones(n, np.int64)
        np.maximum.at(most, owner, regions[:, 0])
        return np.bincount(owner, minlength=n), most


def half(rounds: int) -> int:
    return (rounds + 1) // 2


def idle(regions: Stamps) -> tuple[Seconds, Seconds]:
    """(nanoseconds before a thread begins, after its end) of each region, means over its threads.

    Both, and a thread's own time, add up to the time of the region. A thread that never began is
    late for all of it.
    """
    begin, end = regions[:, 1:2], regions[:, 2:3]
    first, last = regions[:, REGION::2], regions[:, REGION + 1 :: 2]
    team = np.arange(first.shape[1]) < regions[:, :1]
    came = first > 0
    late = np.where(team, np.where(came, first, end) - begin, 0)
    waiting = np.where(team & came, end - last, 0)
    n = np.maximum(1, team.sum(axis=1))
    return late.sum(axis=1) / n, waiting.sum(axis=1) / n


def _alone(bound: Bound, in_place: Seconds) -> list[float]:
    """Seconds of each call alone, times the steps of its loop.

    The network runs on from call to call, so each finds its own data. What kernels of a loop change
    while they are repeated is put back before the loop runs.
    """
    found = [0.0] * len(bound.calls)
    loops = {x.first: x for x in bound.loops}
    k = entry = 0
    while k < len(bound.calls):
        loop = loops.get(k)
        count, times = (1, 1) if loop is None else (loop.calls, loop.times)
        kept = None if loop is None else bound.arena.copy()
        for n in range(k, k + count):
            found[n] = times * _repeated(bound.calls[n], float(in_place[n]) / times)
        if kept is not None:
            bound.arena[...] = kept
            bound.sequence.run(entry, 1)
        k, entry = k + count, entry + 1
    return found


def _repeated(call: BoundCall, expected_s: float) -> float:
    n = max(1, min(MOST_CALLS, math.ceil(ALONE_S / max(expected_s, 1e-9))))
    call.native.repeat(call.args, n)
    return median(_seconds(lambda: call.native.repeat(call.args, n)) / n for _ in range(ALONE_RUNS))


# ---- bytes and limits ---------------------------------------------------------------------------


def _moved(module: "CompiledModule", call: BoundCall) -> Moved:
    """The bytes of one step."""
    form = call.subgraph.forms[call.form]
    most = elements_read(form.dag.ops)
    inputs, places = iter(form.inputs), module.partition.places
    read = constants = written = scratch = 0
    for p in call.native.image.params:
        if p.role == "output":
            written += p.nbytes
        elif p.role == "workspace":
            scratch += p.nbytes
        elif p.role == "derived":
            constants += 0 if p.name in call.native.image.unread else p.nbytes
        else:
            value = next(inputs)
            owner = places[value].owner if value in places else value
            n = 0 if p.name in call.native.image.unread else p.nbytes
            if p.name in most:
                n = min(n, int(most[p.name]) * np.dtype(p.dtype).itemsize)
            if owner in module.constant_names:
                constants += n
            else:
                read += n
    return Moved(read, constants, written, scratch)


def _limit(call: BoundCall, moved: Moved, target: Target, limits: Any) -> tuple[float, str, str]:
    """(least seconds of one step, what binds, why a kernel may be faster)."""
    s = call.subgraph
    form = s.forms[call.form].dag
    task = SearchTask(form, target, s.name, None if form is s.dag else s.dag)
    roofs = task_roofs(task, limits, (moved.read + moved.constants, moved.written))
    roof = max(roofs, key=lambda r: r.seconds)
    if roof.is_flop:
        return roof.seconds, roof.name, why_above_limit(task)
    return roof.seconds, roof.name.rpartition(", ")[2], ABOVE_LIMIT
