"""Merged kernels of networks: which chains are searched, and the cut that is fastest as measured.

In: the partitions of networks, with what their tasks were found to take. Out: partitions in which
one kernel stands where it is faster than the several that it computes (`graph.cuts`), with their
tasks and results. Merged kernels are searched once all tasks are, with a part of the budget.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ansorlite.graph.choice import Lowering
from ansorlite.graph.cuts import (
    Merge,
    chosen,
    is_often_merged,
    is_softmax,
    kernel_seconds,
    merges,
    with_merges,
)
from ansorlite.graph.partition import Partition
from ansorlite.search.budget import Budget
from ansorlite.search.forms import Forms
from ansorlite.search.result import TuneResult
from ansorlite.search.session import Session
from ansorlite.search.shipped import shipped
from ansorlite.search.task_scheduler import GradientScheduler
from ansorlite.search.tune_tasks import WeightedTask, tune_tasks
from ansorlite.shared_tasks import SharedTasks, network_tasks, shared_tasks
from ansorlite.space.sketch import fuses_anchors
from ansorlite.target import Target
from ansorlite.task import SearchTask

# Merged kernels are searched with a share of a budget of at least so many trials or seconds a task.
SHARE, TRIALS, SECONDS = 0.25, 32, 4.0
# Those that programs of similar chains are shipped of need less.
KNOWN_SHARE, KNOWN_TRIALS, KNOWN_SECONDS = 0.125, 8, 1.0
# Where there are half as many of these as tasks, or more, all gain most so.
MANY_SHARE, MANY_TRIALS, MANY_SECONDS = 0.4, 48, 1.5
# (trials, times the separate kernels' time) by their number: merged ones that take longer after so
# many wait until no other gains. Two took 1.3 to 2.7 times as long at first, 1.2 or less after 48.
BEHIND = {2: (48, 1.2), 3: (8, 1.5)}


@dataclass(frozen=True)
class Cuts:
    """The merges of each network that are worth a search, and the share of the budget for them.

    Those that are `predicted` are taken unmeasured: nothing is searched, and no log tells.
    """

    merges: Sequence[Sequence[Merge]]
    share: float
    target: Target
    predicted: bool = False

    def __bool__(self) -> bool:
        return any(self.merges)

    def are_hopeful(self, run: Session, parts: Sequence[Partition], found: Sequence[Forms]) -> bool:
        """Is any merge still worth a search, as far as the tasks were searched?"""
        if not self:
            return False
        known = {f.task.workload_key: t for f in found if (t := f.best_latency_s) is not None}
        rows = zip(self.merges, (kernel_seconds(p, known) for p in parts), strict=True)
        return any(True for own, times in rows for _ in self.hopeful(run, own, times))

    def hopeful(
        self, run: Session, own: Sequence[Merge], seconds: Mapping[str, float]
    ) -> Iterator[Merge]:
        """The merges of a network that promise to be faster; `seconds` by name of a subgraph.

        Those that save much traffic, and those of which similar ones were faster where programs
        were made that are shipped.
        """
        peak = run.peak(self.target)
        speed = None if peak is None else peak.copy_bytes_per_s
        for m in own:
            apart_s = m.apart_s(seconds)
            expected_s = shipped(self.target).latency_s(_task(m, self.target))
            if m.is_hopeful(seconds, self.target, speed) or expected_s < apart_s:
                yield m


def _task(m: Merge, target: Target) -> SearchTask:
    return SearchTask(m.subgraph.dag, target, m.subgraph.name)


def cuts_of(
    run: Session, parts: Sequence[Partition], ways: Sequence[Lowering], n_tasks: int, target: Target
) -> Cuts:
    """The merges that the budget of a run of so many tasks is large enough for.

    A kernel that has hardly been searched says little about a cut, unless similar ones are known.
    Without a search the log tells; without a log those are taken that begin with programs of
    similar chains: attention was never slower so, 1.03 to 1.3 times as fast. Networks with
    elements other than float32 have none: those are packed by kernels of their own.
    """
    none = Cuts([()] * len(parts), 0.0, target)
    if run.estimated or target.is_foreign or run.searcher.template:
        return none
    share, untuned = SHARE, None if run.store.history else run.untuned
    if run.searches:
        share = SHARE if _is_enough(run, n_tasks, TRIALS, SECONDS) else KNOWN_SHARE
        if not _is_enough(run, n_tasks, KNOWN_TRIALS, KNOWN_SECONDS):
            return none
    elif untuned is not None:
        share = 0.0
    elif not any(fuses_anchors(r.sketch) for r in run.store.history):
        return none
    through = None if share >= SHARE else is_softmax if untuned is not None else is_often_merged
    found = [
        merges(p, way.exact, through) if way.precision == "float32" else ()
        for p, way in zip(parts, ways, strict=True)
    ]
    similar = shipped(target)
    known = [tuple(m for m in own if similar.has_kin(_task(m, target))) for own in found]
    if share < SHARE:
        found = known
    n_known = len({m.subgraph.dag.workload_key for own in known for m in own})
    many = run.searches and 2 * n_known >= n_tasks
    if many and _is_enough(run, n_tasks, MANY_TRIALS, MANY_SECONDS):
        share = MANY_SHARE
    if untuned is not None:
        found = [tuple(m for m in own if untuned.has_kin(_task(m, target))) for own in found]
    return Cuts(found, share, target, predicted=untuned is not None)


class HopefulFirst(GradientScheduler):
    """Tasks that are slower than a limit after some trials wait until no other has anything left.

    Nothing is gained where a merged kernel that takes far longer than the separate ones becomes a
    little faster.
    """

    def __init__(self, *args: Any, limits: Sequence[tuple[int, float]], **options: Any) -> None:
        """`limits[i]`: trials and seconds of task i; the rest is `GradientScheduler`'s."""
        super().__init__(*args, **options)
        self._limits = limits

    def _choose(self, live: list[int]) -> int | None:
        latency_s, trials = self.latency_s, self.trials
        hopeful = [
            i for i in live if trials[i] < self._limits[i][0] or latency_s[i] <= self._limits[i][1]
        ]
        return super()._choose(hopeful or live)


def _is_enough(run: Session, n_tasks: int, trials: int, seconds: float) -> bool:
    n_trials, timeout = run.options.n_trials, run.options.timeout
    enough = n_trials is None or n_trials >= trials * n_tasks
    return enough and (timeout is None or timeout >= seconds * n_tasks)


def recut(
    run: Session,
    parts: list[Partition],
    shared: SharedTasks,
    results: list[TuneResult],
    cuts: Cuts,
    budget: Budget,
) -> tuple[list[Partition], SharedTasks, list[TuneResult]]:
    """The cut of the networks that is fastest as measured: partitions, tasks and their results.

    Chains of kernels that one kernel may compute are searched with the rest of the budget, those
    first that promise most; of a log alone those that it has records of. The race of all kernels in
    their places keeps its time. Those that are predicted are all taken, the longest ones first.
    """
    searched, later_s = run.budget is not budget, run.budget.closing_s
    run.budget = budget
    if run.interrupted or not cuts:
        return parts, shared, results
    keys = [w.task.workload_key for w in shared.tasks]
    known = {k: r.best.latency_s for k, r in zip(keys, results, strict=True) if r.best is not None}
    seconds = [kernel_seconds(p, known) for p in parts]
    tasks_of: dict[str, WeightedTask] = {}
    limits: dict[str, tuple[int, float]] = {}
    for own, times in zip(cuts.merges, seconds, strict=True):
        wanted: Iterable[Merge] = own
        if not cuts.predicted:
            known_apart = (m for m in own if m.apart_s(times))
            wanted = cuts.hopeful(run, own, times) if searched else known_apart
        for m in wanted:
            task = _task(m, cuts.target)
            if not (searched or cuts.predicted or run.answered(task)):
                continue
            kinds = "+".join(op.combiner or "map" for op in task.dag.computes)
            w = tasks_of.get(task.workload_key, WeightedTask(task, 0.0, kinds))
            tasks_of[task.workload_key] = replace(w, weight=w.weight + m.subgraph.times)
            trials, near = BEHIND[len(m.replaces)]
            limits[task.workload_key] = trials, near * m.apart_s(times)
    if not tasks_of:
        return parts, shared, results
    run.merged.update(tasks_of)
    if searched and budget.n_trials is not None:
        run.budget = budget.part(1.0)
        run.budget.n_trials = int(cuts.share * budget.n_trials)
    run.later_s = later_s
    hopeful = partial(HopefulFirst, limits=[limits[k] for k in tasks_of])
    merged = tune_tasks(run, list(tasks_of.values()), hopeful)
    run.budget, run.later_s = budget, 0.0
    by_key = dict(zip(keys, results, strict=True)) | dict(zip(tasks_of, merged, strict=True))
    cut = []
    for p, own, times in zip(parts, cuts.merges, seconds, strict=True):
        if cuts.predicted:  # each kernel fewer counts as one gained
            times |= dict.fromkeys(
                [name for m in own for name in (*m.replaces, m.subgraph.name)], 1.0
            )
        for m in own:
            best = by_key[k].best if (k := m.subgraph.dag.workload_key) in tasks_of else None
            if best is not None:
                times[m.subgraph.name] = best.latency_s
        taken = chosen(p, own, times)
        cut.append(with_merges(p, taken) if taken else p)
    again = shared_tasks([network_tasks(p, cuts.target, 0.0) for p in cut])
    forms = {w.task.workload_key: w for w in shared.tasks}
    tasks_now = [
        replace(w, other_forms=forms[k].other_forms) if (k := w.task.workload_key) in forms else w
        for w in again.tasks
    ]
    return cut, again._replace(tasks=tasks_now), [by_key[w.task.workload_key] for w in tasks_now]
