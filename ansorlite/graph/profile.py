"""Where the time of a compiled network goes, kernel by kernel (`CompiledModule.profile`).

In: a module and the arrays of a call. Out: a `Profile`, with a row a kernel. Each round runs the
network untouched, then with the clock around each kernel (times in place: the same kernels, buffers
and order), then kernels linked to threads that note their own times (waiting, and the trace).
Rounds follow one another without a pause, and medians over rounds count. Alone, a kernel runs
again and again on the data that it finds in the network, so caches and branches know them.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ansorlite.calls import in_order
from ansorlite.codegen.loader import load_image
from ansorlite.codegen.openmp import max_threads
from ansorlite.codegen.stamps import CALL, REGION, StampedCalls, StampedRegions, Stamps
from ansorlite.errors import MachineError
from ansorlite.files import write_whole
from ansorlite.graph.linked import Bound, BoundCall
from ansorlite.graph.trace import trace_events
from ansorlite.measure.limits import known_limits, task_roofs
from ansorlite.measure.peak import Peak
from ansorlite.names import shown
from ansorlite.search.arguments import check_whole
from ansorlite.search.result import why_above_limit
from ansorlite.tables import ABOVE, ABOVE_LIMIT, aligned, shortened
from ansorlite.target import Target
from ansorlite.task import SearchTask
from ansorlite.te.work import elements_read
from ansorlite.units import (
    format_bytes,
    format_gflops,
    format_latency,
    format_share,
    rate,
    share,
)

if TYPE_CHECKING:
    from ansorlite.graph.module import CompiledModule

REPEATS = 20  # rounds
ALONE_S, ALONE_RUNS = 2e-3, 5  # a run of one kernel lasts so long, or is one call; runs
MOST_CALLS = 10_000  # in such a run

_NOTES = "calls", "regions"

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Moved:
    """Bytes of one call's operands, each once: activations, constants as packed, own memory.

    Of a tensor in which elements are looked up, no more counts than is looked up. `scratch` is
    written and read again within the kernel, and no part of `total`.
    """

    read: int
    constants: int
    written: int
    scratch: int = 0

    @property
    def total(self) -> int:
        return self.read + self.constants + self.written

    def of_steps(self, n: int) -> "Moved":
        """What `n` steps move; their own memory is the same."""
        return Moved(n * self.read, n * self.constants, n * self.written, self.scratch)


@dataclass(frozen=True)
class KernelTime:
    """One kernel of the network; seconds, FLOP and bytes are of all `times` steps of its loop.

    `in_place_s`: within the network; `alone_s`: repeated, None where that was not asked for.
    `least_s`: what the machine's limits allow at best, which `bound_by` names: multiply-adds, or
    its operands once from the level of memory that holds them. `late_s` and `waiting_s` are the
    parts of the time in place in which a thread of its parallel regions, on average, has not begun
    yet (all of a region for one that never does), or has ended and waits for the region's end.
    """

    name: str
    nodes: tuple[str, ...]
    times: int
    in_place_s: float
    alone_s: float | None
    least_s: float
    bound_by: str
    flop: float
    moved: Moved
    regions: int
    threads: int
    late_s: float
    waiting_s: float
    above: str = ""

    @property
    def share_of_limit(self) -> float | None:
        """`least_s` as a share of the time in place: 1 is a kernel at the limit."""
        return share(self.least_s, self.in_place_s)


@dataclass(frozen=True)
class Profile:
    """Kernels in running order, and what the network takes without the clock around them.

    `call_s` is a call from Python, `network_s` the same kernels run untouched, `stamped_s` with
    the clock around each of them, `regions_s` with the clock in their regions, too. `calls` and
    `regions` are the notes of the fastest round with the latter, in nanoseconds, rows as
    `codegen.stamps` has them. Example: `print(module.profile(x)); module.profile(x).to_json()`.
    """

    network: str
    cpu: str
    threads: int
    rounds: int
    rows: tuple[KernelTime, ...]
    call_s: float
    network_s: float
    stamped_s: float
    regions_s: float
    peak: Peak
    calls: Stamps = field(compare=False, repr=False)
    regions: Stamps = field(compare=False, repr=False)

    @property
    def kernels_s(self) -> float:
        """The kernels' times in place together."""
        return sum(row.in_place_s for row in self.rows)

    @property
    def between_s(self) -> float:
        """What the untouched network takes beyond its kernels; negative where the clock costs."""
        return self.network_s - self.kernels_s

    def __str__(self) -> str:
        return "\n".join([self._title(), self._table(), *self._notes()])

    def _title(self) -> str:
        count = f"{len(self.rows)} kernels" if len(self.rows) != 1 else "1 kernel"
        threads = f"{self.threads} threads" if self.threads != 1 else "1 thread"
        return shown(f"{self.network}: {count}, {threads}, {self.rounds} rounds on {self.cpu}")

    def _table(self) -> str:
        head = ["ID", "Kernel", "In place", "Share", "Alone", "GFLOP/s", "Limit", "Bound by"]
        head += ["Data", "Constants", "Late", "Waiting"]
        lines = [
            [str(k), shortened(row.name), *self._figures([row], row.alone_s), *_bytes([row])]
            for k, row in enumerate(self.rows)
        ]
        for row, line in zip(self.rows, lines, strict=True):
            line[7:7] = [row.bound_by]
            line += _idle([row])
        known = [row.alone_s for row in self.rows if row.alone_s is not None]
        alone = sum(known) if len(known) == len(self.rows) else None
        total = ["", "total", *self._figures(self.rows, alone), "", *_bytes(self.rows)]
        return aligned(head, lines, [*total, *_idle(self.rows)], left=("Kernel", "Bound by"))

    def _figures(self, rows: Sequence[KernelTime], alone_s: float | None) -> list[str]:
        in_place_s = sum(row.in_place_s for row in rows)
        return [
            format_latency(in_place_s),
            format_share(share(in_place_s, self.kernels_s)),
            format_latency(alone_s),
            format_gflops(rate(sum(row.flop for row in rows), in_place_s)),
            format_share(share(sum(row.least_s for row in rows), in_place_s)),
        ]

    def _notes(self) -> list[str]:
        away = abs(self.between_s)
        more = "more" if self.between_s >= 0 else "less"
        lines = [
            f"kernels {format_latency(self.kernels_s)}; untouched, the network takes"
            f" {format_latency(self.network_s)}: {format_latency(away)} {more}"
            f" ({format_share(share(away, self.network_s))})",
            f"a call from Python {format_latency(self.call_s)}; with the clock around kernels"
            f" {format_latency(self.stamped_s)}, in their regions {format_latency(self.regions_s)}",
            f"the machine's limits: {self.peak}",
        ]
        found: dict[str, list[str]] = {}
        for k, row in enumerate(self.rows):
            if (row.share_of_limit or 0.0) > ABOVE:
                found.setdefault(row.above, []).append(str(k))
        return lines + [f"Limit above 100 %: {why} (ID {', '.join(k)})" for why, k in found.items()]

    def as_dict(self) -> dict[str, Any]:
        """All figures as values that JSON has, without the notes of the trace."""
        rows = []
        for row in self.rows:
            own = asdict(row)
            own["moved"]["total"] = row.moved.total
            rows.append({**own, "share_of_limit": row.share_of_limit})
        kept = ("network", "cpu", "threads", "rounds", "call_s", "network_s", "stamped_s")
        figures = {name: getattr(self, name) for name in (*kept, "regions_s", "kernels_s")}
        figures |= {"between_s": self.between_s, "peak": asdict(self.peak)}
        return {**figures, "kernels": rows}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> "Profile":
        """The profile of `as_dict`, without a trace. Raises ValueError for anything else."""
        none = np.zeros((0, REGION), np.int64)
        try:
            rows = []
            for row in found["kernels"]:
                own = {f.name: row[f.name] for f in fields(KernelTime)}
                own["moved"] = Moved(**{f.name: int(row["moved"][f.name]) for f in fields(Moved)})
                rows.append(KernelTime(**{**own, "nodes": tuple(own["nodes"])}))
            kept = [f.name for f in fields(cls) if f.name not in ("rows", "peak", *_NOTES)]
            figures = {name: found[name] for name in kept}
            peak = Peak(**found["peak"])
            made = cls(**figures, rows=tuple(rows), peak=peak, calls=none[:, :CALL], regions=none)
            str(made)  # numbers are numbers
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"no profile: {type(error).__name__} {error}") from None
        return made

    def to_json(self) -> str:
        """`as_dict` as indented JSON, seconds and bytes as numbers."""
        return json.dumps(self.as_dict(), indent=1) + "\n"

    def trace(self) -> dict[str, Any]:
        """The notes of one round in Chrome's trace format (chrome://tracing, ui.perfetto.dev)."""
        told = [
            {
                "flop": row.flop / row.times,
                "bytes": row.moved.total // row.times,
                "share of limit": row.share_of_limit,
                "bound by": row.bound_by,
            }
            for row in self.rows
        ]
        names = [row.name for row in self.rows]
        return trace_events(self.network, names, told, self.calls, self.regions)

    def save_trace(self, file: str | Path) -> Path:
        """Write `trace` to a file; raises MachineError where it cannot be written."""
        path = Path(file)
        try:
            write_whole(path, json.dumps(self.trace()) + "\n")
        except OSError as error:
            raise MachineError(f"cannot write {path}: {error.strerror}") from error
        return path


def _bytes(rows: Sequence[KernelTime]) -> list[str]:
    return [
        format_bytes(sum(row.moved.read + row.moved.written for row in rows)),
        format_bytes(sum(row.moved.constants for row in rows)),
    ]


def _idle(rows: Sequence[KernelTime]) -> list[str]:
    whole = sum(row.in_place_s for row in rows)
    return [
        format_share(share(sum(row.late_s for row in rows), whole)),
        format_share(share(sum(row.waiting_s for row in rows), whole)),
    ]


# ---- the runs -----------------------------------------------------------------------------------


def profile(
    module: "CompiledModule", args: Sequence[npt.ArrayLike], repeats: int, alone: bool
) -> Profile:
    """See `CompiledModule.profile`."""
    check_whole("repeats", repeats, 1)
    given = in_order(module.graph_inputs, args, {})
    module(*given)  # wrong inputs are told here
    call_s = median(_seconds(lambda: module(*given)) for _ in range(repeats))
    with module.bound(given) as bound:
        rounds = _Rounds(bound)
        rounds.run(repeats)
        in_place = np.median(rounds.in_place, axis=0)
        alone_s: list[float | None] = [None] * len(bound.calls)
        if alone:
            alone_s = [*_alone(bound, in_place)]
    target = Target.detect()
    limits = known_limits(target)
    late, waiting = (np.median(x, axis=0) * in_place for x in (rounds.late, rounds.waiting))
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
        module.partition.graph.name,
        target.cpu,
        max_threads(),
        repeats,
        tuple(rows),
        call_s,
        median(rounds.network_s),
        median(rounds.stamped_s),
        median(rounds.regions_s),
        limits if isinstance(limits, Peak) else limits.peak,
        *rounds.notes,
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
        calls = [(c.native, c.args) for c in bound.calls]
        self._stamped = StampedCalls(calls, bound.loops)
        self._threads = StampedRegions()
        copies = {
            id(c.native): load_image(c.native.image, self._threads.threads) for c in bound.calls
        }
        noted = [(copies[id(f)], args) for f, args in calls]
        self._noted = StampedCalls(noted, bound.loops)

    def run(self, repeats: int) -> None:
        self._stamped.run()
        self._noted.run()  # counts the regions
        self._threads.allow(self._threads.count)
        for _ in range(repeats):
            self._threads.clear()
            self.bound.sequence.run()  # threads are awake, caches hold what a call leaves
            self.network_s.append(_seconds(self.bound.sequence.run))
            self.stamped_s.append(_seconds(self._stamped.run))
            self.regions_s.append(_seconds(self._noted.run))
            self._keep()

    def _keep(self) -> None:
        """Take over the notes of a round."""
        n = len(self.bound.calls)
        rows, noted, regions = self._stamped.rows, self._noted.rows, self._threads.rows
        spent = (rows[:, 2] - rows[:, 1]) / 1e9
        self.in_place.append(np.bincount(rows[:, 0], spent, n).astype(np.float64))
        owner, whole = (
            owners(noted, regions),
            np.bincount(noted[:, 0], noted[:, 2] - noted[:, 1], n),
        )
        for each, found in zip((self.late, self.waiting), idle(regions), strict=True):
            each.append(np.bincount(owner, found, n) / np.maximum(1, whole))
        if self.regions_s[-1] == min(self.regions_s):
            self.notes = noted.copy(), regions.copy()

    def teams(self) -> tuple[Stamps, Stamps]:
        """(regions, most threads of one) of each call."""
        n = len(self.bound.calls)
        calls, regions = self.notes
        owner, most = owners(calls, regions), np.ones(n, np.int64)
        np.maximum.at(most, owner, regions[:, 0])
        return np.bincount(owner, minlength=n), most


def owners(calls: Stamps, regions: Stamps) -> Stamps:
    """The number of the call in which each region ran."""
    found: Stamps = calls[np.searchsorted(calls[:, 1], regions[:, 1], "right") - 1, 0]
    return found


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
        return roof.seconds, "multiply-adds", why_above_limit(task)
    return roof.seconds, roof.name.rpartition(", ")[2], ABOVE_LIMIT
