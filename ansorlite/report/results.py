"""What tuning logs say, gathered for a page: figures, curves and programs of each task.

In: `LogContents`, and the tasks that its records may belong to. Out: `MachineResult`s, plain
values. No program is run: programs are rebuilt from their records, checked against the search
space as `search.recorded` does, and compiled to assembly. A record that cannot be rebuilt says why.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ansorlite.codegen.build import kernel_assembly
from ansorlite.codegen.hot_loop import hot_loop
from ansorlite.errors import AnsorliteError
from ansorlite.measure.calibrate import Calibration, calibration
from ansorlite.measure.limits import task_peak, task_roofs
from ansorlite.measure.peak import Peak, cached_peak
from ansorlite.records import LogContents, Record
from ansorlite.search.recorded import best_of_log, record_program
from ansorlite.search.result import why_above_limit
from ansorlite.search.tune_tasks import WeightedTask
from ansorlite.target import Target
from ansorlite.task import SearchTask

PAUSE_S = 120.0  # without a record: the tuner did not run
Float = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Best latency so far: `trials`, `seconds` and `latency_s` are float64[n], steps in time.

    `seconds` count from the first record, without pauses between runs.
    """

    trials: Float
    seconds: Float
    latency_s: Float


@dataclass(frozen=True)
class BestOfTask:
    """A task's best program in print, and the hot loop of its assembly; or why there is none."""

    program: str = ""
    assembly: tuple[str, ...] = ()
    missing: str = ""


@dataclass(frozen=True)
class TaskResult:
    """One task on one machine. FLOP and limits are None where the task is not known.

    `weight` is how often the network has the task, 0 where it does not. `limit` names what binds
    any program, `least_s` is the time that it allows.
    """

    name: str
    weight: float
    records: tuple[Record, ...]
    latency_s: float | None
    curve: Curve
    best: BestOfTask
    flop: float | None = None
    least_s: float | None = None
    limit: str = ""
    above: str = ""
    peak_flop_per_s: float | None = None  # of the task's own instructions

    @property
    def failures(self) -> Counter[str]:
        """Trials that failed, by status."""
        return Counter(r.status for r in self.records if not r.ok)


@dataclass(frozen=True)
class MachineResult:
    """What was tuned on one machine, the target whose fingerprint the records have.

    `network` is the curve of the weighted sum over the tasks of the network; None where the
    network is not known or a task has no latency. `limits` are those that were kept here.
    """

    fingerprint: str
    target: Target | None
    limits: Calibration | Peak | None
    tasks: tuple[TaskResult, ...]
    network: Curve | None
    seconds: Mapping[str, float] = field(default_factory=dict)
    wall_s: float = 0.0

    @property
    def peak(self) -> Peak | None:
        return self.limits.peak if isinstance(self.limits, Calibration) else self.limits

    @property
    def latency_s(self) -> float | None:
        """Weighted sum of the tasks of the network; None where that is not known."""
        own = [t for t in self.tasks if t.weight]
        known = [t.weight * t.latency_s for t in own if t.latency_s is not None]
        return sum(known) if own and len(known) == len(own) else None

    @property
    def records(self) -> tuple[Record, ...]:
        return tuple(r for t in self.tasks for r in t.records)


def gather(
    contents: LogContents,
    network: Sequence[WeightedTask] = (),
    others: Mapping[str, SearchTask] | None = None,
) -> tuple[MachineResult, ...]:
    """One result for each target that the records name, in the order of the log.

    `network` are the tasks of the network that was tuned, `others` more tasks by workload key.
    """
    by_target: dict[str, list[Record]] = {}
    for r in contents.records:
        by_target.setdefault(r.target, []).append(r)
    return tuple(
        _machine(fingerprint, records, contents, network, others or {})
        for fingerprint, records in by_target.items()
    )


def _machine(
    fingerprint: str,
    records: Sequence[Record],
    contents: LogContents,
    network: Sequence[WeightedTask],
    others: Mapping[str, SearchTask],
) -> MachineResult:
    host = Target.detect()
    target = host if host.fingerprint == fingerprint else None
    limits = None if target is None else calibration(target) or cached_peak(target)
    clock = _active_seconds(records)
    groups: dict[str, list[Record]] = {}
    form_of = {form.workload_key: n for n, w in enumerate(network) for form in w.forms}
    for r in records:
        groups.setdefault(str(form_of.get(r.task, r.task)), []).append(r)
    found = []
    for key, own in groups.items():
        weighted = network[form_of[own[0].task]] if own[0].task in form_of else None
        forms = weighted.forms if weighted else [others[key]] if key in others else []
        weight = weighted.weight if weighted else 0.0
        found.append(_task(own, forms, weight, contents, target, limits, clock))
    untried = [w for n, w in enumerate(network) if str(n) not in groups]
    if not any(t.weight for t in found):
        untried = []
    # The tasks of the network first, in its order.
    order = {str(n): n for n in range(len(network))}
    found = [
        t for _, t in sorted(zip(groups, found, strict=True), key=lambda x: order.get(x[0], 1e9))
    ]
    wall_s = max(clock.values(), default=0.0)
    build_s, run_s = sum(r.build_s for r in records), sum(r.run_s for r in records)
    complete = bool(found) and not untried
    return MachineResult(
        fingerprint,
        target,
        limits,
        tuple(found),
        _sum_curve([t for t in found if t.weight]) if complete else None,
        {"building": build_s, "measuring": run_s},
        wall_s,
    )


def _task(
    records: Sequence[Record],
    forms: Sequence[SearchTask],
    weight: float,
    contents: LogContents,
    target: Target | None,
    limits: Calibration | Peak | None,
    clock: Mapping[int, float],
) -> TaskResult:
    ordered = tuple(sorted(records, key=lambda r: clock[id(r)]))
    latency_s = min((r.latency_s for r in ordered if r.ok and r.latency_s), default=None)
    form, best_s, best = _best(contents, forms, records[0].target, target)
    plain = forms[0] if forms else None
    roof = None
    peak = limits.peak if isinstance(limits, Calibration) else limits
    if form is not None and limits is not None:
        roof = max(task_roofs(form, limits), key=lambda roof: roof.seconds)
    return TaskResult(
        records[0].task_name or records[0].task,
        weight,
        ordered,
        latency_s if best_s is None else best_s,
        _curve(ordered, clock),
        best,
        None if plain is None else plain.flop,
        None if roof is None else roof.seconds,
        "" if roof is None else roof.name,
        "" if form is None else why_above_limit(form),
        None if form is None or peak is None else task_peak(form, peak),
    )


def _best(
    contents: LogContents, forms: Sequence[SearchTask], fingerprint: str, target: Target | None
) -> tuple[SearchTask | None, float | None, BestOfTask]:
    """(form of the best program, its latency, the program in print)."""
    if not forms:
        return None, None, BestOfTask(missing="its task is not known: name the network")
    if target is None:
        here = Target.detect().fingerprint
        return None, None, BestOfTask(missing=f"it was made for {fingerprint}, this is {here}")
    found: list[tuple[float, int, Record]] = []
    why = "no program of it ran"
    for n, form in enumerate(forms):
        record, refused = best_of_log(contents, form)
        if record is not None and record.latency_s:
            found.append((record.latency_s, n, record))
        elif refused:
            why = f"its record in line {refused[0][0].line} does not fit: {refused[0][1]}"
    if not found:
        return None, None, BestOfTask(missing=why)
    latency_s, n, record = min(found, key=lambda x: x[:2])
    try:
        program = record_program(forms[n], record)
        loop = hot_loop(kernel_assembly(program, target))
    except AnsorliteError as error:
        return forms[n], latency_s, BestOfTask(missing=str(error))
    return forms[n], latency_s, BestOfTask(str(program), loop)


# ---- curves -------------------------------------------------------------------------------------


def _active_seconds(records: Sequence[Record]) -> dict[int, float]:
    """When each record was written, by identity: seconds of tuning, without pauses.

    Records without a time of their own are counted with the seconds that they took.
    """
    ordered = sorted(records, key=lambda r: r.timestamp)
    out: dict[int, float] = {}
    now = 0.0
    before: Record | None = None
    for r in ordered:
        took = r.build_s + r.run_s
        gap = r.timestamp - before.timestamp if before is not None else PAUSE_S
        now += gap if 0 < gap < max(PAUSE_S, 2 * took) else took
        out[id(r)] = now
        before = r
    return out


def _curve(ordered: Sequence[Record], clock: Mapping[int, float]) -> Curve:
    best, rows = float("inf"), []
    for n, r in enumerate(ordered, 1):
        if r.ok and r.latency_s and r.latency_s < best:
            best = r.latency_s
            rows.append((n, clock[id(r)], best))
    if rows:
        last = ordered[-1]
        rows.append((len(ordered), clock[id(last)], best))
    trials, seconds, latency = np.array(rows, np.float64).reshape(-1, 3).T
    return Curve(trials, seconds, latency)


def _sum_curve(tasks: Sequence[TaskResult]) -> Curve | None:
    """The weighted sum of the tasks' best, from when each has one."""
    if not tasks or any(len(t.curve.seconds) == 0 for t in tasks):
        return None
    seconds = np.unique(np.concatenate([t.curve.seconds for t in tasks]))
    seconds = seconds[seconds >= max(t.curve.seconds[0] for t in tasks)]
    latency, trials = np.zeros(len(seconds)), np.zeros(len(seconds))
    for t in tasks:
        place = np.searchsorted(t.curve.seconds, seconds, side="right") - 1
        latency += t.weight * t.curve.latency_s[place]
        # Between two improvements the trials of a task are spread evenly.
        trials += np.interp(seconds, t.curve.seconds, t.curve.trials)
    return Curve(np.round(trials), seconds, latency)
